import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import ProgrammingError, connection
from django.utils.module_loading import import_string

from locking import BackendUnavailable, get_lock, get_read_lock, get_semaphore, get_write_lock
from locking.admin.held import CELLS
from locking.backends.capabilities import Listing
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.inspection import admin_actions
from locking.inspection.admin_actions import extend_held, force_release
from locking.inspection.columns import COLUMNS, facts
from locking.inspection.deadlocks import holders_of
from locking.inspection.heartbeat import WAITS, reporter
from locking.inspection.held import (
    HeldLock,
    Waiter,
    find_hold,
    held_locks,
    holds_of,
    known_waiters,
    wait_trees,
    waiters,
    waits_for,
)
from locking.management.locks import output
from locking.models import Fence, LockEvent
from locking.testing import override_locks
from tests.backends import BACKENDS, any_engine
from tests.locking.support.helpers import elsewhere, publishing
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

KINDS: dict[str, Any] = {
    "lock": get_lock,
    "read": get_read_lock,
    "write": get_write_lock,
    "fair": get_fair_lock,
    "semaphore": lambda name: get_semaphore(name, 2),
}


LISTING = [
    name for name, row in BACKENDS.items() if issubclass(import_string(row.settings["BACKEND"]), Listing)
]


@pytest.fixture(params=LISTING)
def each_backend(request, settings):
    """One backend of the table that can list after the other."""
    settings.LOCKING = {"default": {**BACKENDS[request.param].reached(request), "KEY_PREFIX": "shop:"}}
    return locks["default"]


@pytest.mark.parametrize(
    ("length", "left", "state"),
    [
        (30.0, 5.1, "held"),
        (30.0, 3.0, "expiring"),
        (None, 3.0, "expiring"),
        (3.0, 2.0, "held"),
        (3.0, 1.5, "expiring"),
    ],
)
def test_a_lease_expires_in_its_last_seconds_or_in_the_half_of_a_short_one(length, left, state):
    """A lease of 3 s that is renewed in time never has less than 2: no operator is to be alarmed by it."""
    assert (
        HeldLock(backend="x", name="a", key="a", kind="lock", owner="me", remaining=left, ttl=length).state
        == state
    )


def test_one_table_is_shown_by_all():
    """A row of it is a column of the command and the admin, a fact of a lock's page, and a key in JSON."""
    hold = HeldLock(backend="x", name="a", key="a", kind="lock", owner="me")
    names = [column.name for column in COLUMNS]
    assert set(hold.as_dict()) == set(names)
    assert {field.name for field in dataclasses.fields(hold)} <= set(names), "all that is known is in JSON"
    assert output.cells_of([])[0] == [column.heading for column in COLUMNS if column.heading]
    small = [column.name for column in COLUMNS if column.small]
    assert [cell.__name__ for cell in CELLS] == [
        column.name for column in COLUMNS if column.heading and column.name not in small
    ]
    labels = [column.label for column in COLUMNS if column.label and column.name != "name"]
    assert [label for label, _ in facts(hold)] == labels


def test_every_kind_is_listed_by_name_oldest_first(each_backend):
    """A hold of each kind that the backend has is a row, in the order in which they were taken."""
    known = {"lock", *getattr(each_backend, "kinds", ())}
    kinds = {kind: make for kind, make in KINDS.items() if kind in known}
    held = [make(f"a-{kind}").acquire() for kind, make in kinds.items()]
    page: Any = held_locks()
    assert [row.name for row in page.rows] == [f"a-{kind}" for kind in kinds]
    assert [row.owner for row in page.rows] == [lease.owner for lease in held]
    assert page.total == len(kinds)
    # A session of ZooKeeper or etcd has neither an end nor a beginning that its servers tell.
    assert all(row.remaining is None or 0 < row.remaining <= 30 for row in page.rows)
    assert all(row.held_for is None or row.held_for >= 0 for row in page.rows)
    for lease in held:
        lease.release()
    assert held_locks().rows == []


def test_force_release_is_audited_and_advances_the_fence(each_backend):
    """The lock is free, the reason kept, and the old holder's token is refused by the database."""
    lease = get_lock("a", fenced=True).acquire()
    (hold,) = holds_of("a")
    result = force_release(hold, reason="worker 7 was killed", actor="ada")
    assert result.done
    assert held_locks().rows == []
    event = LockEvent.objects.get()
    assert (event.name, event.owner, event.reason, event.actor) == (
        "a",
        lease.owner,
        "worker 7 was killed",
        "ada",
    )
    assert Fence.objects.get(name="shop:a").token == lease.fencing_token


def test_a_page_of_no_rows_has_none(each_backend):
    """A limit of 0 asks for the number alone, and is not *without limit*."""
    with get_lock("a"), get_lock("b"):
        page = held_locks("default", limit=0)
        assert (page.rows, page.total) == ([], 2)


def test_a_newer_holder_is_not_hit(each_backend):
    """A hold that has ended since it was shown is reported, and its successor keeps the lock."""
    with get_lock("a"):
        (shown,) = holds_of("a")
    with get_lock("a") as newer:
        result = force_release(shown, reason="too late")
        assert not result.done
        assert not LockEvent.objects.get().done
        newer.confirm()
        assert find_hold("default", "shop:a", newer.owner) is not None


@pytest.fixture
def held_in_memory():
    """What is shown of the one hold of a lock in memory."""
    with override_locks():
        lease = get_lock("a", fenced=True).acquire()
        yield next(hold for hold in holds_of("a") if hold.owner == lease.owner)


def test_an_operator_without_a_name_breaks_a_lock(held_in_memory, monkeypatch):
    """In a container the user may be a mere number: it is the actor then, and the lock is broken."""
    monkeypatch.setattr("getpass.getuser", Mock(side_effect=KeyError("getpwuid(): uid not found: 1001")))
    assert force_release(held_in_memory, reason="stuck").event.actor == f"os:{os.getuid()}"
    assert held_locks().rows == []


def rename(table, name):
    """Give a table another name."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {name}")


def test_a_lock_is_broken_where_there_is_no_fence(held_in_memory):
    """A router may keep the tables of `locking` off a database: nothing is fenced there."""
    rename("locking_fence", "elsewhere")
    try:
        result = force_release(held_in_memory, reason="stuck")
    finally:
        rename("elsewhere", "locking_fence")
    assert result.done
    assert result.event.details == "fence in 'default': there is no table locking_fence"


@pytest.fixture
def without_audit():
    """A database in which no event can be written."""
    rename("locking_lockevent", "elsewhere")
    yield
    rename("elsewhere", "locking_lockevent")


@pytest.mark.usefixtures("without_audit")
def test_what_cannot_be_audited_is_not_done(held_in_memory):
    """The row is written first: where it can't be, the lock stays with its holder."""
    with pytest.raises(ProgrammingError):
        force_release(held_in_memory, reason="stuck")
    assert find_hold("default", held_in_memory.key, held_in_memory.owner) is not None


@pytest.mark.usefixtures("without_audit")
def test_mutant_a_break_that_is_audited_afterwards_leaves_no_trace(held_in_memory, monkeypatch):
    """The rule of the test above taken out: the lock is gone, without a record of who did it."""

    def carry_out(event, step):
        event.done = step()
        event.save()

    monkeypatch.setattr(admin_actions, "_carry_out", carry_out)
    with pytest.raises(ProgrammingError):
        force_release(held_in_memory, reason="stuck")
    assert find_hold("default", held_in_memory.key, held_in_memory.owner) is None


def fenced_at_the_release(hold, monkeypatch):
    """Break a hold; return whether the database refused its token when the lock was taken away."""
    engine, real, seen = any_engine(), any_engine().force_release, []

    def release(key, owner):
        seen.append(Fence.objects.filter(name=key, token__gte=hold.token).exists())
        return real(key, owner)

    monkeypatch.setattr(engine, "force_release", release)
    assert force_release(hold, reason="stuck").done
    return seen


def test_the_fence_is_advanced_before_the_lock_is_taken_away(held_in_memory, monkeypatch):
    """The next holder must not meet a broken one that the database still lets in."""
    assert fenced_at_the_release(held_in_memory, monkeypatch) == [True]


def test_mutant_a_fence_that_is_advanced_afterwards_only_comes_late(held_in_memory, monkeypatch):
    """The rule of the test above taken out: for a moment the lock has two who may write."""
    advance, calls = admin_actions._advance_fence, iter([False, True])
    later = lambda hold, database: advance(hold, database) if next(calls) else ""  # noqa: E731
    monkeypatch.setattr(admin_actions, "_advance_fence", later)
    assert fenced_at_the_release(held_in_memory, monkeypatch) == [False]


@pytest.mark.parametrize("error", [BackendUnavailable("no answer"), KeyboardInterrupt()])
def test_a_break_without_an_answer_is_audited(held_in_memory, monkeypatch, error):
    """The reason is found in the audit, also where the server's answer was lost, or not waited for."""
    engine, real = any_engine(), any_engine().force_release

    def unanswered(key, owner):
        real(key, owner)
        raise error

    monkeypatch.setattr(engine, "force_release", unanswered)
    with pytest.raises(type(error)):
        force_release(held_in_memory, reason="stuck", actor="ada")
    event = LockEvent.objects.get()
    assert (event.actor, event.reason, event.done) == ("ada", "stuck", True)
    assert "not confirmed" in event.details


def test_what_was_never_sent_is_not_audited(held_in_memory, monkeypatch):
    """Nothing can have been done, so nothing is written."""
    error = BackendUnavailable("connection refused")
    error.sent = False
    monkeypatch.setattr(locks["default"], "force_release", Mock(side_effect=error))
    with pytest.raises(BackendUnavailable):
        force_release(held_in_memory, reason="stuck")
    assert not LockEvent.objects.exists()


def test_a_wait_on_an_alias_of_others_spoils_no_list(held_in_memory):
    """Another program that shares the server may have aliases that this one lacks; the rest is shown."""
    wait = {"alias": "theirs", "kind": "lock", "key": "b", "name": "b", "since": 1, "waited": 1, "holds": []}
    ours = {**wait, "alias": "default", "key": "a", "name": "a"}
    text = json.dumps({"host": "h", "pid": 1, "holds": {}, "waits": {"x": wait, "y": ours}})
    any_engine().publish_heartbeats({"another": text})
    (row,) = held_locks(order="contention").rows
    assert [each.id for each in row.waiting] == ["y"]
    assert [node.who for node in wait_trees(waiters())] == [row.holder]


@pytest.fixture
def among_longer_names():
    """1,001 older holds whose names begin as the lock's does, and the two holds of a read lock."""
    with override_locks():
        older = [get_read_lock(f"a{number}").acquire() for number in range(1001)]
        mine = [get_read_lock("a").acquire(), elsewhere(get_read_lock("a").acquire)]
        yield {lease.owner for lease in mine}
        del older


def test_a_lock_is_found_among_longer_names(among_longer_names):
    """Of one name all holders are shown, however many longer names are held."""
    assert {hold.owner for hold in holds_of("a")} == among_longer_names
    for owner in among_longer_names:
        assert find_hold("default", locks["default"].key("a"), owner, "read") is not None


def test_a_waiters_holders_are_found_among_longer_names(among_longer_names):
    """A circle through such a lock is a deadlock all the same, and drawn as one."""
    key = locks["default"].key("a")
    wait = Waiter(id="w", backend="default", kind="write", key=key, name="a", since=1.0, waited=1.0)
    assert set(holders_of(wait)) == among_longer_names
    owner = min(among_longer_names)
    waits = [wait, dataclasses.replace(wait, id="h", key="b", holds=(("default", owner, "a"),))]
    _, edges = waits_for(waits)
    assert edges["w"] == ["h"]


def test_extending_keeps_others_out_for_longer(each_backend):
    """The lease ends later, and a shorter one is refused."""
    with get_lock("a", ttl=20):
        (hold,) = holds_of("a")
        assert extend_held(hold, 100).done
        longer: Any = holds_of("a")[0]
        assert longer.remaining > 90
        with pytest.raises(ValueError, match="wouldn't extend"):
            extend_held(holds_of("a")[0], 5)


def test_extending_from_an_old_row_shortens_nothing(each_backend):
    """The holder extended its lease after the list was read, and counts on that."""
    with get_lock("a", ttl=5) as lease:
        (hold,) = holds_of("a")
        lease.extend(100)
        extend_held(hold, 20)
        left: Any = holds_of("a")[0].remaining
        assert left > 90


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_contended_locks_come_first_whatever_their_age(settings, redis_database, kind):
    """A page of one row has the contended lock in addition, once; filters count here, too."""
    settings.LOCKING = {"default": {**BACKENDS["redis"].settings, "KEY_PREFIX": "shop:"}}
    wanted = get_lock("b") if kind == "lock" else get_semaphore("b", 1)
    with publishing(), ThreadPoolExecutor(1) as pool, get_lock("a"), wanted:
        waiting = pool.submit(wait_in_vain, kind)
        until(lambda: WAITS, "a waiter")
        next(iter(WAITS.values())).begun -= 1  # long enough to be published
        reporter.beat()
        first = held_locks(order="contention", limit=1)
        narrowed = held_locks(order="contention", prefix="a")
        everything = held_locks(order="contention")
    assert waiting.result() is None
    assert [row.name for row in first.rows] == ["b", "a"]
    assert [row.waiter_count for row in first.rows] == [1, 0]
    assert [row.name for row in narrowed.rows] == ["a"]
    assert [row.name for row in everything.rows] == ["b", "a"]


def wait_in_vain(kind):
    """Wait for b until the test is over."""
    (get_lock("b", wait=20) if kind == "lock" else get_semaphore("b", 1, wait=20)).acquire().release()


@pytest.fixture
def beyond_the_search(monkeypatch):
    """Three holds, of which a search looks at the oldest two; returns the lease of the third."""
    monkeypatch.setattr("locking.inspection.held.MOST_SEARCHED", 2)
    with override_locks():
        leases = [get_lock(name).acquire() for name in ("order:1", "order:2", "order:3")]
        yield leases[-1]


def test_an_exact_name_is_found_beyond_what_a_search_looks_at(beyond_the_search):
    """The lock of that very name is asked for directly; the page still says that not all was searched."""
    page = held_locks(search="order:3")
    assert [row.owner for row in page.rows] == [beyond_the_search.owner]
    assert not page.searched_all
    assert held_locks(search="order:3", prefix="other").rows == []
    assert len(held_locks(search="order:").rows) == 2


def test_an_exact_name_comes_first_and_once(each_backend):
    """Older locks whose names have the text, too, come after it."""
    leases = [get_lock(name).acquire() for name in ("order:30", "order:3", "order:31")]
    page = held_locks(search="order:3")
    assert sorted(row.name for row in page.rows) == ["order:3", "order:30", "order:31"]
    assert (page.rows[0].name, page.total, page.searched_all) == ("order:3", 3, True)
    for lease in leases:
        lease.release()


def test_a_page_that_lacks_a_backend_is_not_complete(backend_down):
    """What isn't known isn't said to be nothing."""
    page = held_locks("down")
    assert (page.rows, page.complete, page.as_dict()["complete"]) == ([], False, False)
    _, problems = known_waiters()
    assert [problem.backend for problem in problems if not problem.unsupported] == ["down"]


def test_the_one_that_blocks_most_stands_first(held_in_memory):
    """Those behind another waiter count too, and a root says for how long."""

    def wait(name, waited, *holds):
        who: dict[str, Any] = {"id": f"{name}-{waited}", "thread": f"{waited}", "holds": holds}
        return Waiter(backend="default", kind="lock", key=name, name=name, since=0.0, waited=waited, **who)

    leases = {name: get_lock(name).acquire() for name in ("few", "many")}
    behind = elsewhere(get_lock("behind").acquire)
    chain = [wait("many", 9.0, ("default", behind.owner, "behind")), wait("behind", 5.0)]
    trees = wait_trees([wait("few", 20.0), *chain])
    assert [(node.name, node.blocked, node.longest) for node in trees] == [("many", 2, 9.0), ("few", 1, 20.0)]
    assert [hold.owner for hold in trees[0].holds] == [leases["many"].owner]
