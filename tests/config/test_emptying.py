"""The tests' own way to empty the database leaves nothing behind, and nothing ajar."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connection, transaction

from inventory.models import Movement
from locking.models import LockEvent
from orders.models import Order, Product
from tests import emptying
from tests.factories import OrderFactory
from tests.locking.support.helpers import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


def empty():
    """Do what follows each test."""
    call_command("flush", verbosity=0, interactive=False, reset_sequences=False)


def test_rows_go_and_permissions_stay():
    """An order, its product, its movements and a lock's event are gone; what migrations made is there."""
    OrderFactory.create()
    LockEvent.objects.create(action=LockEvent.Action.EXTEND, actor="me", name="a")
    assert Movement.objects.exists()
    before = set(Permission.objects.values_list("pk", flat=True))
    empty()
    assert not any(model.objects.exists() for model in (Order, Product, Movement, LockEvent))
    assert before == set(Permission.objects.values_list("pk", flat=True)) != set()


DELETE = "DELETE FROM inventory_movement"


def test_what_is_immutable_is_so_again():
    """After emptying, the database refuses again to delete a movement."""
    OrderFactory.create()
    empty()
    OrderFactory.create()
    with pytest.raises(DatabaseError, match="never changed or deleted"), connection.cursor() as cursor:
        cursor.execute(DELETE)


def test_a_transaction_left_open_is_waited_for(monkeypatch):
    """A test that leaves a transaction open is noticed, though that only read."""
    monkeypatch.setattr(emptying, "LOCK_ALL", emptying.LOCK_ALL.replace("20 s", "20 ms"))

    def refused() -> None:
        with pytest.raises(CommandError) as caught:
            empty()
        assert "lock timeout" in str(caught.value.__cause__)

    with transaction.atomic():
        assert not Product.objects.exists()
        elsewhere(refused)


LOCK_ONCE = "LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"


@pytest.mark.parametrize(
    ("statement", "victims"), [(emptying.LOCK_ALL, 0), (LOCK_ONCE, 1)], ids=["backs off", "mutant"]
)
def test_a_transaction_that_goes_on_is_no_deadlock(monkeypatch, statement, victims):
    """One that holds a late table and takes an early one gets it: neither side is ended as a victim."""
    monkeypatch.setattr(emptying, "LOCK_ALL", statement)
    with ThreadPoolExecutor(1) as pool:

        def late_then_early():
            with transaction.atomic():
                assert not Order.objects.exists()
                others.append(pool.submit(is_victim, partial(elsewhere, empty)))
                wait_until_one_is_blocked()
                assert not Movement.objects.exists()

        others: list[Future[bool]] = []
        here = is_victim(late_then_early)
    assert here + others[0].result() == victims


def is_victim(step):
    """Whether the database ended this step because of a deadlock."""
    try:
        step()
    except (OperationalError, CommandError) as error:
        assert "deadlock detected" in f"{error} {error.__cause__}"  # noqa: PT017
        return True
    return False


def wait_until_one_is_blocked():
    """Wait until a session waits for this one, not for an autovacuum that is gone in a moment."""
    deadline = time.monotonic() + 20
    with connection.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
            )
            if cursor.fetchone():
                return
    raise AssertionError("no session waited")
