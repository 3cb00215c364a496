"""`locked_transaction`: the lock outlives the transaction, and no lost work passes for success."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest
from django.contrib.auth.models import Group
from django.db import (
    DatabaseError,
    IntegrityError,
    connection,
    connections,
    transaction,
)
from django.test import TestCase

from locking import (
    BackendUnavailable,
    LockLost,
    LockNotAcquired,
    LockTransactionError,
    get_lock,
    locked_transaction,
)
from locking.core.lease import SingleLease
from tests.locking.support.helpers import committed, elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


def add(name: str, using: str = "default") -> Group:
    """Write a row."""
    return Group.objects.using(using).create(name=name)


def is_locked(name: str) -> bool:
    """Whether another thread finds the lock taken."""
    return elsewhere(get_lock(name).locked)


# --- the order of steps -----------------------------------------------------------------------------------


def test_the_commit_comes_before_the_release(at_release: list[list[str]]) -> None:
    """At the moment of the release another connection already sees the row."""
    with locked_transaction("shop"):
        add("row")
        assert committed() == []
    assert at_release == [["row"]]


def test_the_next_holder_reads_what_the_last_one_wrote() -> None:
    """A buyer who waits for the lock never reads the state from before the holder's commit."""
    read: list[list[str]] = []
    inside = threading.Event()

    def next_holder() -> None:
        inside.set()
        with locked_transaction("shop", wait=10):
            read.append(sorted(Group.objects.values_list("name", flat=True)))
        connections.close_all()

    other = threading.Thread(target=next_holder)
    with locked_transaction("shop"):
        add("row")
        other.start()
        inside.wait(timeout=30)
    other.join(timeout=30)
    assert read == [["row"]]


def test_a_lock_inside_the_transaction_lets_the_next_holder_read_old_data() -> None:
    """The same with the lock inside shows what the order is for: the next holder reads nothing."""
    with transaction.atomic():
        with get_lock("shop", on_open_transaction="ignore"):
            add("row")

        def next_holder() -> list[str]:
            with get_lock("shop", wait=0):
                return sorted(Group.objects.values_list("name", flat=True))

        assert elsewhere(next_holder) == []


def test_an_error_rolls_back_before_the_release(at_release: list[list[str]]) -> None:
    """The body's own error undoes its work, frees the lock and comes out unchanged."""
    with pytest.raises(RuntimeError, match="no"), locked_transaction("shop"):
        add("row")
        raise RuntimeError("no")
    assert at_release == [[]]
    assert not is_locked("shop")


def test_on_commit_hooks_run_under_the_lock() -> None:
    """A hook sees the row committed and the lock still held."""
    seen: list[object] = []
    with locked_transaction("shop"):
        add("row")
        transaction.on_commit(lambda: seen.extend([committed(), is_locked("shop")]))
    assert seen == [["row"], True]
    assert not is_locked("shop")


def test_a_hook_that_raises_does_not_keep_the_lock() -> None:
    """The row is committed, the hook's error comes out, and the lock is free."""

    def hook() -> None:
        raise RuntimeError("mail server down")

    with pytest.raises(RuntimeError, match="mail"), locked_transaction("shop"):
        add("row")
        transaction.on_commit(hook)
    assert committed() == ["row"]
    assert not is_locked("shop")


def test_several_databases_commit_before_the_release(
    second_database: str, at_release: list[list[str]]
) -> None:
    """Each of several databases has committed when the lock is let go."""
    with locked_transaction("shop", using=["default", second_database]):
        add("one")
        add("two", using=second_database)
        assert committed() == []
    assert at_release == [["one", "two"]]


def test_several_names_are_held_until_the_commit() -> None:
    """With several names all of them are held inside, and none afterwards."""
    with locked_transaction("b", "a") as lease:
        assert lease.names == ("a", "b")
        assert is_locked("a")
        assert is_locked("b")
    assert not is_locked("a")
    assert not is_locked("b")


# --- what can't be ordered is refused ---------------------------------------------------------------------


def test_an_open_transaction_is_refused() -> None:
    """Inside `atomic` the lock would be let go before the commit: refused before it is even asked for."""
    with transaction.atomic(), pytest.raises(LockTransactionError, match="lock outside") as caught:
        locked_transaction("shop").__enter__()
    assert "'default'" in str(caught.value)
    assert "'shop'" in str(caught.value)
    assert not is_locked("shop")


def test_an_open_transaction_on_another_database_is_refused(second_database: str) -> None:
    """A transaction on a database that isn't named commits too late just the same."""
    with (
        transaction.atomic(using=second_database),
        pytest.raises(LockTransactionError, match="open on database 'second'"),
        locked_transaction("shop"),
    ):
        pytest.fail("the body ran")


def test_autocommit_off_is_refused() -> None:
    """Without autocommit nothing commits at the end of an atomic block."""
    connection.set_autocommit(False)
    try:
        with pytest.raises(LockTransactionError, match="autocommit is off"), locked_transaction("shop"):
            pytest.fail("the body ran")
    finally:
        connection.set_autocommit(True)


def test_the_same_name_nests_as_a_savepoint(at_release: list[list[str]]) -> None:
    """A locked transaction inside another on the same name is a savepoint; the lock is let go once."""
    with locked_transaction("shop") as outer:
        add("kept")
        with pytest.raises(RuntimeError), locked_transaction("shop") as inner:
            assert inner is outer
            add("undone")
            raise RuntimeError
        with locked_transaction("shop"):
            add("kept too")
        assert at_release == []
    assert at_release == [["kept", "kept too"]]


@pytest.mark.parametrize("inner", [{"names": ["till"]}, {"names": ["shop", "till"]}])
def test_another_name_inside_is_refused(inner: dict[str, list[str]]) -> None:
    """A further lock inside would be let go before the outer commit; the message names what is held."""
    with locked_transaction("shop"), pytest.raises(LockTransactionError, match="it has only 'shop'"):
        locked_transaction(*inner["names"]).__enter__()


def test_another_database_inside_is_refused(second_database: str) -> None:
    """The inner block's database must be one that the outer one commits before the release."""
    with locked_transaction("shop"), pytest.raises(LockTransactionError, match="outermost"):
        locked_transaction("shop", using=second_database).__enter__()


def test_a_lock_that_is_held_plainly_is_entered_again() -> None:
    """Inside a plain `with get_lock(…)` the transaction still commits before the outer release."""
    with get_lock("shop"):
        with locked_transaction("shop"):
            add("row")
        assert committed() == ["row"]
        assert is_locked("shop")


class InsideTestCase(TestCase):
    """Users' own tests run in TestCase's transactions."""

    def test_the_transaction_of_a_test_case_does_not_count(self) -> None:
        """TestCase wraps each test in atomic blocks of its own, which no deployment has."""
        with locked_transaction("shop"):
            add("row")
        assert Group.objects.count() == 1


async def asynchronous() -> None:
    """A body that runs later."""


async def asynchronous_generator() -> AsyncIterator[None]:
    """Likewise."""
    yield


def generator() -> Iterator[None]:
    """Likewise."""
    yield


@pytest.mark.parametrize("function", [asynchronous, asynchronous_generator, generator])
def test_it_decorates_nothing_whose_body_would_run_without_the_lock(function: Callable[..., object]) -> None:
    """A call of such a function only makes an object; its body would run after the release."""
    with pytest.raises(TypeError, match=function.__name__):
        locked_transaction("shop")(function)


def test_a_function_may_be_decorated_with_it(at_release: list[list[str]]) -> None:
    """Each call has a lock and a transaction of its own."""
    function = locked_transaction("shop")(add)
    for name in ("a", "b"):
        assert function(name).name == name
    assert at_release == [["a"], ["a", "b"]]


# --- silent rollbacks -------------------------------------------------------------------------------------


def test_a_swallowed_integrity_error_is_no_success() -> None:
    """Django would roll back without a word; the error that was caught is named as the cause."""
    with pytest.raises(LockTransactionError, match="was caught") as caught, locked_transaction("shop"):
        add("row")
        with suppress(IntegrityError):
            add("row")
    assert isinstance(caught.value.__cause__, IntegrityError)
    assert committed() == []
    assert not is_locked("shop")


def test_a_swallowed_error_of_a_plain_statement_is_no_success() -> None:
    """PostgreSQL answers COMMIT with ROLLBACK after any failed statement, and the driver says nothing."""
    with pytest.raises(LockTransactionError, match="a statement failed"), locked_transaction("shop"):
        add("row")
        with suppress(DatabaseError):
            connection.cursor().execute("SELECT 1/0")
    assert committed() == []


def test_an_error_caught_around_a_savepoint_is_fine() -> None:
    """The advice of the message works: an error caught around its own atomic block spoils nothing."""
    with locked_transaction("shop"):
        add("row")
        try:
            with transaction.atomic():
                add("row")
        except IntegrityError:
            pass
    assert committed() == ["row"]


def test_a_connection_closed_inside_is_no_success() -> None:
    """A connection that is closed in the block takes the work with it."""
    with pytest.raises(LockTransactionError, match="closed inside"), locked_transaction("shop"):
        add("row")
        connection.close()
    assert committed() == []
    assert not is_locked("shop")


def test_a_silent_rollback_in_a_nested_section_is_no_success() -> None:
    """A nested block that would lose its work is refused there, not at the end."""
    with locked_transaction("shop"):
        add("kept")
        with (
            pytest.raises(LockTransactionError, match="was caught"),
            locked_transaction("shop"),
            suppress(IntegrityError),
        ):
            add("kept")
    assert committed() == ["kept"]


def fail_unseen() -> None:
    """Break a constraint, and catch the error."""
    with suppress(IntegrityError):
        add("row")


def fail_unseen_by_django() -> None:
    """Have a plain statement fail, and catch the error."""
    with suppress(DatabaseError):
        connection.cursor().execute("SELECT 1/0")


def close_the_connection() -> None:
    """Close it in the middle of its transaction."""
    connection.close()


@pytest.mark.parametrize("lose", [fail_unseen, fail_unseen_by_django, close_the_connection])
def test_mutant_a_block_that_is_not_looked_at_is_a_success_without_its_work(
    lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the look before COMMIT no error comes out, and the row isn't there."""
    monkeypatch.setattr("locking.transactions.locked_transaction.silent_rollback", lambda connection: None)
    with locked_transaction("shop"):
        add("row")
        lose()
    assert committed() == []


# --- a lock that was lost ---------------------------------------------------------------------------------


def test_a_lock_lost_before_the_commit_rolls_back() -> None:
    """Nothing is committed under a lease that has ended."""
    with pytest.raises(LockLost), locked_transaction("shop") as lease:
        add("row")
        lease.leases[0].lose()
    assert committed() == []


def test_mutant_a_commit_that_asks_no_lease_stores_what_was_done_without_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the question before COMMIT the block is a success, though another has the lock by then."""
    monkeypatch.setattr(SingleLease, "confirm", lambda lease: None)
    with locked_transaction("shop") as lease:
        add("row")
        lease.leases[0].lose()
    assert committed() == ["row"]


def test_a_lost_lock_does_not_mask_the_bodys_error() -> None:
    """The body's own error comes out even when the lock was lost as well."""
    with pytest.raises(RuntimeError, match="mine"), locked_transaction("shop") as lease:
        lease.leases[0].lose()
        raise RuntimeError("mine")


def test_a_lock_lost_after_the_commit_does_not_undo_the_success() -> None:
    """What is committed is committed: an error then would make the caller do it twice."""
    with locked_transaction("shop") as lease:
        add("row")
        transaction.on_commit(lease.leases[0].lose)
    assert committed() == ["row"]


# --- without the lock, and bad input ----------------------------------------------------------------------


def test_without_the_lock_the_body_does_not_run() -> None:
    """A lock that another holds is not waited for beyond `wait`, and the body doesn't run."""

    def late() -> None:
        with locked_transaction("shop", wait=0):
            pytest.fail("the body ran")

    with locked_transaction("shop"), pytest.raises(LockNotAcquired):
        elsewhere(late)


def test_without_the_backend_the_body_does_not_run(backend_down: str) -> None:
    """No answer is no lock."""
    with pytest.raises(BackendUnavailable), locked_transaction("shop", backend=backend_down):
        pytest.fail("the body ran")


@pytest.mark.parametrize("using", [[], None, 5, "nowhere", ["default", "nowhere"]])
def test_a_database_that_does_not_exist_is_named(using: object) -> None:
    """The message names what was given, and what there is."""
    with pytest.raises(ValueError, match="using="), locked_transaction("shop", using=using):  # type: ignore[arg-type]
        pytest.fail("the body ran")
