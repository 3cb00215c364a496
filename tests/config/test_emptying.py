"""The tests' own way to empty the database leaves nothing behind, and nothing ajar."""

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction

from inventory.models import Product, StockMovement
from locking.models import LockEvent
from orders.models import Order
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
    assert StockMovement.objects.exists()
    before = set(Permission.objects.values_list("pk", flat=True))
    empty()
    assert not any(model.objects.exists() for model in (Order, Product, StockMovement, LockEvent))
    assert before == set(Permission.objects.values_list("pk", flat=True)) != set()


def test_what_is_immutable_is_so_again():
    """After emptying, the database refuses again to delete a movement."""
    empty()
    OrderFactory.create()
    with pytest.raises(DatabaseError, match="immutable"), connection.cursor() as cursor:
        cursor.execute("DELETE FROM inventory_stockmovement")


def test_a_transaction_left_open_is_waited_for():
    """A test that leaves a transaction open is noticed, though that only read."""

    def refused() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '20ms'")
        with pytest.raises(CommandError) as caught:
            empty()
        assert "lock timeout" in str(caught.value.__cause__)

    with transaction.atomic():
        assert not Product.objects.exists()
        elsewhere(refused)
