"""`on_open_transaction="hold"`: the lock outlasts a transaction that was open before, however that ends."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from locking import LockLost, LockTransactionError, distributed_lock, get_lock, locked_transaction
from locking.core.handler import locks
from locking.core.open_transactions import WATCH, WATCHED
from locking.core.pending_release import release_retrier
from locking.testing import override_locks, simulate_loss
from tests.locking.support.helpers import committed, elsewhere

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]


@distributed_lock(key="'order:7'", on_open_transaction="hold")
def pay(name: str = "paid") -> None:
    """Write a row under the lock."""
    Group.objects.create(name=name)


class OnMethod(View):
    @method_decorator(distributed_lock(key="'order:7'", on_open_transaction="hold"))
    def get(self, request: HttpRequest, fail: int) -> HttpResponse:
        """Write a row; fail afterwards where asked to."""
        Group.objects.create(name="method")
        if fail:
            raise ValueError("afterwards")
        return HttpResponse(status=201)


urlpatterns = [path("<int:fail>/", OnMethod.as_view())]


def is_held() -> bool:
    """Whether another would be refused now."""
    return elsewhere(get_lock("order:7").locked)


def assert_nothing_left() -> None:
    """The lock is free and the connection is as it was."""
    assert not is_held()
    assert not {*WATCHED, WATCH} & vars(connection).keys()


def test_the_lock_is_held_until_the_commit(at_release: list[list[str]]) -> None:
    """It is let go behind the outer block's COMMIT, not behind the function."""
    with transaction.atomic():
        pay()
        assert is_held()
        assert at_release == []
    assert at_release == [["paid"]]
    assert_nothing_left()


def test_the_lock_is_held_until_the_rollback() -> None:
    """An outer block that fails ends the hold as well, after its ROLLBACK."""
    with pytest.raises(ValueError, match="afterwards"), transaction.atomic():
        pay()
        assert is_held()
        raise ValueError("afterwards")
    assert committed() == []
    assert_nothing_left()


def test_the_rows_are_rolled_back_when_the_lock_is_let_go(at_release: list[list[str]]) -> None:
    """At the release another connection sees nothing of a rolled-back block, and its row locks are gone."""
    Group.objects.create(name="before")
    with transaction.atomic():
        pay()
        Group.objects.filter(name="before").update(name="after")
        transaction.set_rollback(True)
    assert at_release == [["before"]]
    with transaction.atomic():
        Group.objects.select_for_update(nowait=True).get(name="before")


def test_inner_blocks_do_not_end_it() -> None:
    """Savepoints come and go, committed or rolled back; only the outermost block counts."""
    with transaction.atomic():
        with transaction.atomic():
            pay()
        assert is_held()
        with suppress(ValueError), transaction.atomic():
            raise ValueError
        assert is_held()
    assert committed() == ["paid"]
    assert_nothing_left()


def test_a_rolled_back_savepoint_keeps_the_lock() -> None:
    """The function's own failure undoes its work; the lock stays until the outer block's end."""
    with transaction.atomic():
        with suppress(IntegrityError):
            pay("twice")
            pay("twice")
        assert is_held()
    assert committed() == ["twice"]
    assert_nothing_left()


def test_hooks_run_under_the_lock() -> None:
    """`on_commit` hooks run before the release, also behind one that has a transaction of its own."""
    held: list[bool] = []

    def hook() -> None:
        with transaction.atomic():
            Group.objects.create(name=f"hook {len(held)}")
        held.append(is_held())

    with transaction.atomic():
        pay()
        transaction.on_commit(hook)
        transaction.on_commit(hook)
    assert held == [True, True]
    assert committed() == ["hook 0", "hook 1", "paid"]
    assert_nothing_left()


def test_a_hook_that_raises_loses_no_release() -> None:
    """The rows are committed, the error is told, the lock is free."""
    with pytest.raises(ValueError, match="hook"), transaction.atomic():
        pay()
        transaction.on_commit(lambda: int("hook"))
    assert committed() == ["paid"]
    assert_nothing_left()


def test_a_closed_connection_ends_the_hold() -> None:
    """Closing the connection ends the transaction at the server, and the hold with it."""
    with suppress(DatabaseError), transaction.atomic():
        pay()
        connection.close()
        assert not is_held()
    assert committed() == []
    assert_nothing_left()


def test_a_terminated_session_ends_the_hold() -> None:
    """The server ends the session before the COMMIT: an error, nothing stored, the lock free."""
    with pytest.raises(DatabaseError), transaction.atomic():
        pay()
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pid = cursor.fetchone()[0]
        elsewhere(lambda: terminate(pid))
    assert committed() == []
    assert_nothing_left()


def terminate(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 30000)", [pid])


def test_a_lock_lost_before_the_commit_rolls_the_block_back() -> None:
    """The outer block must not commit what was done under a lock that is gone."""
    with pytest.raises(LockLost), transaction.atomic():
        pay()
        simulate_loss("order:7")
    assert committed() == []
    assert connection.get_autocommit()
    assert_nothing_left()


def test_two_locks_are_held_to_the_same_end() -> None:
    """Several functions in one block each add their lock, and a repeated one is a re-entry."""
    with transaction.atomic():
        pay("first")
        with locked_transaction("order:8", on_open_transaction="hold"):
            Group.objects.create(name="second")
        pay("third")
        assert is_held()
        assert elsewhere(get_lock("order:8").locked)
    assert not elsewhere(get_lock("order:8").locked)
    assert_nothing_left()


@pytest.fixture
def in_memory() -> Any:
    """No server is needed for the locks."""
    with override_locks():
        yield


def test_an_interrupted_release_behind_a_transaction_keeps_no_other_lock(
    in_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit strikes in the first of three releases: the others are made, and that one is made later."""
    backend: Any = locks["default"]
    scheduled, release = list[str](), backend.release
    monkeypatch.setattr(release_retrier, "schedule", lambda _, key, owner, ttl: scheduled.append(key))

    def interrupted(key: str, owner: str) -> bool:
        monkeypatch.setattr(backend, "release", release)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), transaction.atomic():
        with get_lock("a", "b", "c", on_open_transaction="hold"):
            pass
        monkeypatch.setattr(backend, "release", interrupted)
    assert [name for name in "abc" if get_lock(name).locked()] == ["c"]
    assert scheduled == [backend.key("c")]


def test_two_databases_hold_until_the_last_has_ended(second_database: str) -> None:
    """With two transactions open, the second one's end counts."""
    with transaction.atomic(using=second_database):
        with transaction.atomic():
            pay()
        assert is_held()
        assert committed() == ["paid"]
    assert not {*WATCHED, WATCH} & vars(connections[second_database]).keys()
    assert_nothing_left()


def test_without_an_open_transaction_nothing_changes(at_release: list[list[str]]) -> None:
    """The function opens its own, commits, and lets go."""
    pay()
    assert at_release == [["paid"]]
    assert_nothing_left()


@pytest.mark.django_db(transaction=False)
def test_it_works_inside_a_test_case() -> None:
    """Under TestCase the block is a savepoint of the test's own transaction, and its end counts."""
    with transaction.atomic():
        pay()
        assert is_held()
    assert_nothing_left()
    with suppress(ValueError), transaction.atomic():
        pay("rolled back")
        raise ValueError
    assert_nothing_left()


@pytest.mark.parametrize("fail", [0, 1])
def test_a_method_under_atomic_requests_may_hold(client: Client, atomic_requests: None, fail: int) -> None:
    """The lock of a method lasts until ATOMIC_REQUESTS has committed or rolled back."""
    client.raise_request_exception = False
    assert client.get(f"/{fail}/").status_code == (500 if fail else 201)
    assert committed() == ([] if fail else ["method"])
    assert_nothing_left()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_sees_the_past_is_refused(level: str) -> None:
    """At these levels the lock would order nothing: the transaction goes on seeing what was there before."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        with pytest.raises(LockTransactionError, match=level.lower()):
            pay()
    assert_nothing_left()


def test_autocommit_off_is_refused() -> None:
    """A block that doesn't end its transaction can't say when to release."""
    transaction.set_autocommit(False)
    try:
        with transaction.atomic(), pytest.raises(LockTransactionError, match="autocommit is off"):
            pay()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert_nothing_left()


def test_mistakes_are_told_at_decoration() -> None:
    """A word that isn't one, and what has no transaction to hold over."""
    with pytest.raises(ValueError, match="'refuse', 'hold' or 'ignore'"):
        distributed_lock(on_open_transaction="wait")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="atomic=False"):
        distributed_lock(on_open_transaction="hold", atomic=False)
    with pytest.raises(LockTransactionError, match="async"):

        @distributed_lock(on_open_transaction="hold")
        async def function() -> None: ...


def test_the_refusal_names_this_way_out() -> None:
    """The refusal names the option."""
    with transaction.atomic(), pytest.raises(LockTransactionError, match="on_open_transaction='hold'"):
        distributed_lock(key="'order:7'")(pay)()


def test_the_request_factory_is_a_view_like_any() -> None:
    """A view that is called inside a transaction of its caller holds over it too."""
    request: Any = RequestFactory().get("/0/")
    with transaction.atomic():
        assert OnMethod.as_view()(request, fail=0).status_code == 201
        assert is_held()
    assert_nothing_left()


@pytest.mark.parametrize("option", [{"fenced": True}, {"retries": 2}])
def test_hold_refuses_what_the_open_transaction_cannot_give(option):
    """A fence stands first in its transaction, and a retry begins it anew: neither can be had in mid-way."""
    with pytest.raises(ValueError, match="can't be combined"):
        distributed_lock(key="'a'", on_open_transaction="hold", **option)(print)
