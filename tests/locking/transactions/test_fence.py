"""`fenced=True`: what it costs, what it refuses, and what it tells."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis
from django.contrib.auth.models import Group
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, ProgrammingError, connection, connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory, TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from locking import (
    LockLost,
    LockNotAcquired,
    LockNotSupported,
    LockTransactionError,
    StaleFencingToken,
    distributed_lock,
    get_lock,
    get_semaphore,
    get_write_lock,
    locked_transaction,
)
from locking.backends.memory import STORES, MemoryBackend
from locking.core.lease import State
from locking.models import Fence
from locking.transactions import fence
from locking.transactions.fence import advance, forbid
from locking.utils.databases import OVERTAKEN, fence_name
from tests.locking.support.fenced_databases import MARIADB, POSTGRESQL, SQLITE, sales, sell
from tests.locking.support.helpers import committed, elsewhere
from tests.locking.support.players import two_players

pytestmark = pytest.mark.django_db(transaction=True)


def add(name: str, using: str = "default") -> None:
    """Write a row."""
    Group.objects.using(using).create(name=name)


def fence_of(name: str, using: str = "default") -> Fence:
    """The fence row of a lock, as committed."""
    return elsewhere(lambda: Fence.objects.using(using).get(name=name))


def be_overtaken(redis_database: redis.Redis, name: str = "shop") -> None:
    """Have Redis forget the lock, and another holder use the fence."""
    redis_database.flushdb()

    def overtake() -> None:
        with locked_transaction(name, fenced=True):
            pass

    elsewhere(overtake)


# --- the order of steps -----------------------------------------------------------------------------------


def test_the_fence_is_the_first_statement() -> None:
    """Between BEGIN and the body there are the limits of waiting and the fence, and nothing else."""
    with CaptureQueriesContext(connection) as queries, locked_transaction("shop", fenced=True):
        add("row")
    statements = [query["sql"].split()[0] for query in queries]
    assert statements == ["BEGIN", "SET", "INSERT", "INSERT", "COMMIT"]
    assert "locking_fence" in queries[2]["sql"]


def test_the_row_has_token_and_owner_of_the_hold() -> None:
    """The fence's row is committed together with the work."""
    with locked_transaction("shop", fenced=True) as lease:
        assert not elsewhere(Fence.objects.filter(name="shop").exists)
    row = fence_of("shop")
    assert (row.token, row.owner) == (lease.fencing_token, lease.leases[0].owner)


def test_each_transaction_leaves_a_mark_of_its_own() -> None:
    """The row changes physically even under the same token: snapshots must notice."""
    marks = []
    with get_lock("shop", fenced=True):
        for _ in range(2):
            with locked_transaction("shop", fenced=True):
                pass
            marks.append(fence_of("shop").mark)
    assert len(set(marks)) == 2


def test_a_savepoint_that_is_rolled_back_leaves_the_fence_standing() -> None:
    """The fence belongs to the outermost block: what is undone inside doesn't undo it."""
    with locked_transaction("shop", fenced=True) as lease:
        with pytest.raises(RuntimeError), locked_transaction("shop", fenced=True) as inner:
            assert inner is lease
            raise RuntimeError
        add("row")
    assert fence_of("shop").token == lease.fencing_token
    assert committed() == ["row"]


def test_several_names_are_fenced_in_sorted_order() -> None:
    """One row a name, one at a time, in the order in which the locks are taken."""
    with CaptureQueriesContext(connection) as queries, locked_transaction("b", "a", fenced=True) as lease:
        pass
    fences = [query["sql"] for query in queries if "INSERT INTO locking_fence" in query["sql"]]
    assert ["'a'" in fences[0], "'b'" in fences[1], len(fences)] == [True, True, 2]
    assert [fence_of(name).token for name in ("a", "b")] == [single.token for single in lease.leases]


@pytest.mark.parametrize("fenced_database", [SQLITE, MARIADB[0]], indirect=True, ids=str)
def test_each_of_several_databases_has_its_fence(fenced_database: str, redis_database: redis.Redis) -> None:
    """Each checks the token by itself, and one that refuses it is enough."""
    both = ["default", fenced_database]
    with locked_transaction("shop", fenced=True, using=both) as lease:
        add("row")
        sell("A")
    seen = {fence_of("shop").token, Fence.objects.using(fenced_database).get(name="shop").token}
    assert seen == {lease.fencing_token}
    held = get_lock("shop", fenced=True, ttl=60).acquire()
    be_overtaken(redis_database)
    with pytest.raises(StaleFencingToken, match="'default'"):
        locked_transaction("shop", fenced=True, using=both).__enter__()
    assert held.state is State.LOST
    assert Fence.objects.using(fenced_database).get(name="shop").token == lease.fencing_token


def test_one_stale_name_of_several_is_enough(redis_database: redis.Redis) -> None:
    """Overtaken on one of two names, the whole section is refused, and the other's fence isn't moved."""
    lease = get_lock("a", "shop", fenced=True, ttl=60).acquire()
    be_overtaken(redis_database)
    with pytest.raises(StaleFencingToken, match="'shop'"), locked_transaction("a", "shop", fenced=True):
        pytest.fail("the body ran")
    assert not Fence.objects.filter(name="a").exists()
    assert lease.state is State.LOST


# --- the refusal ------------------------------------------------------------------------------------------


def test_a_stale_holder_learns_that_it_has_lost(redis_database: redis.Redis) -> None:
    """The message has both tokens, the lease counts as lost, and `on_lost` is called."""
    reported = threading.Event()
    lease = get_lock("shop", fenced=True, ttl=60, on_lost=lambda lost: reported.set()).acquire()
    be_overtaken(redis_database)
    with pytest.raises(StaleFencingToken) as refused, locked_transaction("shop", fenced=True):
        pytest.fail("the body ran")
    assert str(lease.fencing_token) in str(refused.value)
    assert str(fence_of("shop").token) in str(refused.value)
    assert lease.state is State.LOST
    assert reported.wait(30)


def test_a_decorated_function_is_fenced(redis_database: redis.Redis) -> None:
    """`@distributed_lock(fenced=True)` refuses the stale holder in the same way."""

    @distributed_lock(key="'shop'", fenced=True, ttl=60)
    def work() -> None:
        add("row")

    work()
    held = get_lock("shop", fenced=True, ttl=60).acquire()
    be_overtaken(redis_database)
    with pytest.raises(StaleFencingToken):
        work()
    assert held.state is State.LOST
    assert committed() == ["row"]


def test_without_a_transaction_the_functions_own_ones_are_fenced(redis_database: redis.Redis) -> None:
    """`atomic=False`: the lock is held around several fenced transactions of the function's own."""

    @distributed_lock(key="'shop'", fenced=True, atomic=False, ttl=60)
    def work(overtaken: bool) -> None:
        with locked_transaction("shop", fenced=True):
            add(f"first {overtaken}")
        if overtaken:
            be_overtaken(redis_database)
        with locked_transaction("shop", fenced=True):
            add(f"second {overtaken}")

    work(False)
    with pytest.raises(StaleFencingToken):
        work(True)
    assert committed() == ["first False", "first True", "second False"]


class InsideTestCase(TestCase):
    """Users' own tests run in TestCase's transactions."""

    def test_the_fence_works_in_the_transaction_of_a_test_case(self) -> None:
        """The section is a savepoint there; the limits of waiting would outlive it, so they aren't set."""
        with self.captureOnCommitCallbacks() as hooks, locked_transaction("shop", fenced=True) as lease:
            add("row")
        assert hooks == [], "the user's own hooks can be counted"
        assert Fence.objects.get(name="shop").token == lease.fencing_token
        with connection.cursor() as cursor:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            assert cursor.fetchone() == ("0",)


# --- what can't be fenced is refused before any I/O -------------------------------------------------------


class NoTokens(MemoryBackend):
    """A backend without fencing tokens."""

    supports_fencing = False


def test_a_backend_without_tokens_is_refused(settings: Any) -> None:
    """Without a number nothing can be checked: refused before the lock is asked for."""
    settings.LOCKING = {"bare": {"BACKEND": f"{__name__}.NoTokens"}}
    locked = locked_transaction("shop", fenced=True, backend="bare")
    with pytest.raises(LockNotSupported, match="fencing tokens"), locked:
        pytest.fail("the body ran")
    assert STORES.get("bare") is None


def test_a_database_without_a_fence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that the fence doesn't know is named, with another way, and the lock isn't asked for."""
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    with (
        pytest.raises(LockNotSupported, match=r"'default'.*lease\.fencing_token"),
        locked_transaction("shop", fenced=True),
    ):
        pytest.fail("the body ran")


def test_the_app_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its app the table can't be there: the message says what to add."""
    monkeypatch.setattr("locking.transactions.fence.apps.is_installed", lambda name: False)
    with pytest.raises(ImproperlyConfigured, match="INSTALLED_APPS"), locked_transaction("shop", fenced=True):
        pytest.fail("the body ran")


def test_a_table_that_is_not_there_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's own error comes with the command that fixes it."""
    monkeypatch.setattr(
        "locking.transactions.fence.UPSERT", "INSERT INTO no_such_table VALUES (%s, %s, %s, %s, %s)"
    )
    with pytest.raises(ProgrammingError) as missing, locked_transaction("shop", fenced=True):
        pytest.fail("the body ran")
    assert "migrate --database default" in missing.value.__notes__[0]


def test_a_fence_inside_an_unfenced_section_is_refused() -> None:
    """What the outer section has read isn't behind the fence any more."""
    with locked_transaction("shop"), pytest.raises(LockTransactionError, match="outermost"):
        locked_transaction("shop", fenced=True).__enter__()
    with locked_transaction("shop", fenced=True), locked_transaction("shop"):
        add("row")
    assert committed() == ["row"]


@pytest.mark.parametrize("option", [{"fenced": True}, {"retries": 2}])
def test_async_functions_have_no_transaction_to_fence(option: Any) -> None:
    """An async function is refused at decoration, with the way to do it."""
    with pytest.raises(LockTransactionError, match="sync_to_async"):

        @distributed_lock(key="'shop'", **option)
        async def work() -> None: ...


# --- how long a frozen holder stands in the way -----------------------------------------------------------


@pytest.mark.parametrize("fenced_database", [POSTGRESQL[0], MARIADB[0]], indirect=True, ids=str)
def test_a_fence_that_stays_locked_is_not_waited_for_without_end(
    fenced_database: str, redis_database: redis.Redis, settings: Any
) -> None:
    """An older holder's transaction that stays open counts as a lock that wasn't acquired."""
    with two_players(fenced_database) as (a, _):
        a.enters(locked_transaction("shop", using=fenced_database, fenced=True))
        redis_database.flushdb()
        settings.LOCKING = {"default": {**settings.LOCKING["default"], "FENCE_TIMEOUT": 0.5}}
        with (
            pytest.raises(LockNotAcquired, match="older holder is still open on database 'fenced'") as busy,
            locked_transaction("shop", using=fenced_database, fenced=True),
        ):
            pytest.fail("the body ran")
        assert busy.value.retry_after == 0.5
        a.does(sell, "A")
        a.leaves()
    assert sales() == ["A"]


def test_a_holder_that_stands_idle_is_ended_by_the_database(
    redis_database: redis.Redis, settings: Any
) -> None:
    """Frozen behind its fence beyond FENCE_TIMEOUT, A is ended, and B gets in; nothing of A stays."""
    settings.LOCKING = {"default": {**settings.LOCKING["default"], "FENCE_TIMEOUT": 20}}
    with two_players("default") as (a, b):
        a.enters(locked_transaction("shop", fenced=True, ttl=600))
        a.does(add, "A")
        assert a.does(limits) == ["20s", "20s"]
        redis_database.flushdb()
        a.does(stand_idle)
        b.enters(locked_transaction("shop", fenced=True))
        b.does(add, "B")
        b.leaves()
        with pytest.raises(LockLost, match="FENCE_TIMEOUT"):
            a.leaves()
    assert committed() == ["B"]


def stand_idle() -> None:
    """Have the limit of FENCE_TIMEOUT be over a tenth of a second after this last statement."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '100ms'")


def limits() -> list[str]:
    """How long a statement of this transaction waits for a row, and how long it may stand idle."""
    found: list[str] = []
    with connection.cursor() as cursor:
        for name in ("lock_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"SHOW {name}")
            found += cursor.fetchone()
    return found


def test_both_limits_are_those_of_the_lease_and_of_the_transaction_alone() -> None:
    """A frozen holder blocks the next one for its ttl; behind it the session's own limits are back."""
    before = limits()
    with locked_transaction("shop", fenced=True, ttl=7):
        assert limits() == ["7s", "7s"]
    assert limits() == before


def test_mutant_a_fence_without_limits_lets_a_frozen_holder_block_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the session's own limits are left, which are off by default."""
    monkeypatch.setattr("locking.utils.databases.limit_waits", lambda connection, seconds: None)
    before = limits()
    with locked_transaction("shop", fenced=True, ttl=7):
        assert limits() == before


@pytest.mark.parametrize("fenced_database", [MARIADB[0]], indirect=True, ids=str)
def test_the_sessions_own_limit_is_put_back(fenced_database: str) -> None:
    """MariaDB's limit belongs to the session: after the fence it is as it was, in the body already."""

    def limit() -> int:
        with connections[fenced_database].cursor() as cursor:
            cursor.execute("SELECT @@innodb_lock_wait_timeout")
            seconds: int = cursor.fetchone()[0]
        return seconds

    before = limit()
    with locked_transaction("shop", using=fenced_database, fenced=True, ttl=7):
        assert limit() == before


def test_a_view_answers_409_while_the_fence_is_locked(redis_database: redis.Redis, settings: Any) -> None:
    """A fence that can't be locked in time is a conflict like any other: 409, with Retry-After."""

    @distributed_lock(key="'shop'", fenced=True)
    def view(request: Any) -> HttpResponse:
        return HttpResponse("sold")

    with two_players("default") as (a, _):
        a.enters(locked_transaction("shop", fenced=True))
        redis_database.flushdb()
        with override_settings(LOCKING={"default": {**settings.LOCKING["default"], "FENCE_TIMEOUT": 0.5}}):
            refused = view(RequestFactory().post("/"))
        a.leaves()
    assert (refused.status_code, refused["Retry-After"]) == (409, "1")
    assert view(RequestFactory().post("/")).content == b"sold"


@pytest.mark.parametrize("seconds", [0, -1, "5", True])
def test_a_fence_timeout_that_can_not_be_meant_is_named(seconds: object, settings: Any) -> None:
    """The setting is checked like every other."""
    settings.LOCKING = {"default": {"CACHE": "default", "FENCE_TIMEOUT": seconds}}
    with pytest.raises(ImproperlyConfigured, match="FENCE_TIMEOUT"):
        get_lock("shop")


# --- retries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fenced_database", [POSTGRESQL[1], POSTGRESQL[2], MARIADB[1]], indirect=True, ids=str
)
def test_a_transaction_that_was_given_up_is_run_again(fenced_database: str) -> None:
    """Another transaction changes the row in between: the whole function runs again, under the same token."""
    tokens: list[int] = []
    sell("no one")

    def interfere() -> None:
        with connections[fenced_database].cursor() as cursor:
            cursor.execute("UPDATE sale SET buyer = 'B'")

    @distributed_lock(key="'shop'", using=fenced_database, fenced=True, retries=2)
    def work() -> list[str]:
        with get_lock("shop") as lease:
            tokens.append(lease.fencing_token)
        seen = sales()
        if len(tokens) == 1:
            elsewhere(interfere)
        with connections[fenced_database].cursor() as cursor:
            cursor.execute("UPDATE sale SET buyer = 'A'")
        return seen

    assert work() == ["B"], "the second run reads again"
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert sales() == ["A"]


def failing(code: str, times: int, runs: list[int]) -> Any:
    """A function that fails with an error of PostgreSQL."""

    @distributed_lock(key="'shop'", fenced=True, retries=2)
    def work() -> str:
        runs.append(1)
        add(f"run {len(runs)}")
        if len(runs) <= times:
            with connection.cursor() as cursor:
                cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$")
        return "done"

    return work


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_retries_have_an_end(code: str) -> None:
    """After its retries the error comes out, nothing is stored, and the lock is free."""
    runs: list[int] = []
    with pytest.raises(OperationalError):
        failing(code, 3, runs)()
    assert len(runs) == 3
    assert committed() == []
    assert not get_lock("shop").locked()


def test_a_retry_that_succeeds_leaves_one_result() -> None:
    """The writes of failed runs are undone."""
    runs: list[int] = []
    assert failing("40P01", 2, runs)() == "done"
    assert committed() == ["run 3"]


@pytest.mark.parametrize("code", ["55P03", "57014", "23505"])
def test_other_errors_are_not_retried(code: str) -> None:
    """A lock that wasn't got in time, a cancelled statement or a broken rule would only fail again."""
    runs: list[int] = []
    with pytest.raises(Exception, match="no"):
        failing(code, 1, runs)()
    assert len(runs) == 1


@pytest.mark.parametrize("code", ["55P03", "57014"])
def test_mutant_a_longer_list_of_errors_works_again_in_vain(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule of the test above taken out: work that only fails again holds the lock for as many runs."""
    monkeypatch.setattr("locking.utils.databases.OVERTAKEN", OVERTAKEN | {code})
    runs: list[int] = []
    with pytest.raises(OperationalError, match="no"):
        failing(code, 3, runs)()
    assert len(runs) == 3


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_mutant_a_shorter_list_of_errors_gives_up_what_would_succeed(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that was given up for another's sake is not run again."""
    monkeypatch.setattr("locking.utils.databases.OVERTAKEN", OVERTAKEN - {code})
    runs: list[int] = []
    with pytest.raises(OperationalError, match="no"):
        failing(code, 1, runs)()
    assert committed() == []


def test_inside_another_section_nothing_is_retried() -> None:
    """The whole transaction was given up, so the outermost function must start again."""
    runs: list[int] = []
    with pytest.raises(OperationalError), locked_transaction("shop", fenced=True):
        failing("40001", 1, runs)()
    assert len(runs) == 1


def test_retries_do_not_wait_for_the_lock_again() -> None:
    """The lock is held between two runs, so that no other caller comes in between."""
    seen: list[bool] = []

    @distributed_lock(key="'shop'", retries=1)
    def work() -> None:
        seen.append(elsewhere(get_lock("shop").locked))
        if len(seen) == 1:
            with connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")

    work()
    assert seen == [True, True]
    assert not get_lock("shop").locked()


def test_retries_are_refused_inside_an_open_transaction() -> None:
    """As ever, the lock is outside the transaction."""

    @distributed_lock(key="'shop'", retries=1)
    def work() -> None:
        pytest.fail("the body ran")

    with transaction.atomic(), pytest.raises(LockTransactionError, match="lock outside"):
        work()


def test_a_conflict_under_retries_follows_the_policy() -> None:
    """A lock that another has is answered as without retries."""

    @distributed_lock(key="'shop'", retries=1, wait=0, on_conflict="skip")
    def work() -> str:
        return "done"

    with get_lock("shop"):
        assert elsewhere(work) is None
    assert work() == "done"


def run_twice(**options: Any) -> list[bool]:
    """Run a function that a serialization failure ends once; return whether others were locked out."""
    seen: list[bool] = []

    def is_locked() -> bool:
        try:
            with locked_transaction("shop", **other):
                return False
        except LockNotAcquired:
            return True

    other = {name: value for name, value in options.items() if name == "backend"} | {"wait": 0}

    @distributed_lock(key="'shop'", retries=1, wait=0, **options)
    def work() -> None:
        seen.append(elsewhere(is_locked) if "kind" not in options else _are_all_out(options["kind"]))
        if len(seen) == 1:
            with connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$")

    work()
    return seen


def _are_all_out(kind: Any) -> bool:
    lock = get_semaphore("shop", permits=1) if kind == "semaphore" else get_write_lock("shop")
    return bool(elsewhere(lock.locked))


@pytest.mark.parametrize(
    "options", [{"kind": "semaphore", "permits": 1}, {"kind": "write"}, {"kind": "read"}], ids=str
)
def test_a_function_is_run_again_under_any_kind_of_lock(options: Any) -> None:
    """Each run enters the one hold again, a permit too: it is no second one, for which it would wait."""
    assert run_twice(**options) == [True, True]


@pytest.mark.parametrize("backend", ["TransactionLockBackend", "RowLockBackend"])
def test_a_function_is_run_again_under_a_lock_of_its_transaction(backend: str, settings: Any) -> None:
    """Such a lock ends with each transaction, and each begins with it."""
    entry = {"BACKEND": f"locking.backends.database.{backend}"}
    settings.LOCKING = {**settings.LOCKING, "in-transaction": entry}
    assert run_twice(backend="in-transaction") == [True, True]


# --- names, and breaking a lock ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "vendor", "kept"),
    [
        ("sku:mug", "postgresql", True),
        ("SKU:Mug", "postgresql", True),
        ("sku:mug", "mysql", True),
        ("sku:Mug", "mysql", False),
        ("sku:mug ", "mysql", False),
        ("sku:müg", "mysql", False),
        ("x" * 255, "postgresql", True),
        ("x" * 256, "postgresql", False),
        ("a\x00b", "postgresql", False),
    ],
)
def test_a_name_that_the_database_would_confuse_is_hashed(key: str, vendor: str, kept: bool) -> None:
    """MySQL takes `Mug` for `mug`; a name too long for the column is hashed everywhere."""
    name = fence_name(key, vendor)
    assert (name == key) is kept
    assert len(name) <= 255


def test_long_names_are_fenced() -> None:
    """Names of up to 1024 characters have a fence too."""
    with locked_transaction("x" * 1000, fenced=True) as lease:
        pass
    assert fence_of(fence_name("x" * 1000, "postgresql")).token == lease.fencing_token


@pytest.mark.parametrize("fenced_database", [POSTGRESQL[0], MARIADB[0]], indirect=True, ids=str)
def test_a_broken_holder_can_be_kept_out(fenced_database: str) -> None:
    """A holder that was broken by force could still write: `forbid` keeps it out, and the next one passes."""
    lease = get_lock("shop", fenced=True, ttl=60).acquire()
    assert forbid(lease.leases[0].key, lease.fencing_token, fenced_database)
    with pytest.raises(StaleFencingToken), transaction.atomic(fenced_database):
        advance(fenced_database, lease)
    with pytest.raises(Exception, match="lost"):
        lease.release()
    with locked_transaction("shop", fenced=True, using=fenced_database) as successor:
        sell("B")
    assert not forbid("shop", lease.fencing_token, fenced_database), "a newer holder has been here"
    assert successor.fencing_token > lease.fencing_token
    assert sales() == ["B"]


@pytest.mark.parametrize("fenced_database", [POSTGRESQL[0], MARIADB[0], SQLITE], indirect=True, ids=str)
def test_mutant_a_force_release_that_compares_no_tokens_lets_a_frozen_holder_in(
    fenced_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its condition taken out: it lowers the token that the row has, and an overtaken holder passes."""
    made = fence.FORBID_MADE.replace("token <= %s", "%s > 0")
    unmade = fence.FORBID.replace("locking_fence.token <= excluded.token", "TRUE")
    assert (made, unmade) != (fence.FORBID_MADE, fence.FORBID)
    monkeypatch.setattr(fence, "FORBID_MADE", made)
    monkeypatch.setattr(fence, "FORBID", unmade)
    holders = []
    for _ in range(2):
        with get_lock("shop", fenced=True, ttl=60) as lease:
            holders.append(lease)
    broken, frozen = holders
    with locked_transaction("shop", fenced=True, using=fenced_database):
        sell("B")
    assert forbid("shop", broken.fencing_token, fenced_database)
    with transaction.atomic(fenced_database):
        advance(fenced_database, frozen)


def test_tokens_of_the_memory_backend_outlive_the_process(settings: Any) -> None:
    """The database remembers an earlier process's tokens, so a new one must not begin at 1."""
    settings.LOCKING = {"default": {"BACKEND": "locking.backends.memory.MemoryBackend"}}
    with locked_transaction("shop", fenced=True) as first:
        pass
    STORES.clear()
    with locked_transaction("shop", fenced=True) as second:
        pass
    assert second.fencing_token > first.fencing_token
