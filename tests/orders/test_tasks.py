"""The tasks of the schedule: what they sweep, one at a time, and low stock."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module

import pytest
from django.conf import settings
from django.utils import timezone

from inventory import Line, ReservationGone
from inventory.models import Reservation
from locking import get_lock
from orders import tasks
from orders.models import Basket, IdempotencyKey, Order, OrderEvent
from orders.selling.checkout import checkout
from orders.selling.reservations import find, reserve
from orders.selling.writing import ClientKey
from tests.factories import ProductFactory
from tests.orders.shelf import left, reserved

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def mug():
    """Ten mugs; five are few."""
    return ProductFactory.create(sku="mug", low_stock_threshold=5)


def test_every_task_of_the_schedule_is_there():
    """Beat would queue a name that no worker knows without a word."""
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        module, _, name = entry["task"].rpartition(".")
        assert getattr(import_module(module), name).name == entry["task"]


def test_the_sweeps_free_what_is_overdue(mug):
    """An order and a reservation whose time is over, each once."""
    checkout([Line("mug", 2)], "conditional_update")
    reserve([Line("mug", 3)], timedelta(minutes=1))
    past = timezone.now() - timedelta(seconds=1)
    Order.objects.update(pay_by=past)
    Reservation.objects.update(expires_at=past)
    assert (tasks.expire_orders(), tasks.sweep_reservations()) == (1, 1)
    assert (tasks.expire_orders(), tasks.sweep_reservations()) == (0, 0)
    assert (left(), reserved()) == (10, 0)
    assert set(tasks.audit_orders().values()) == {0}


def test_one_sweep_at_a_time(mug):
    """While another worker sweeps, a second one ends without doing anything."""
    with get_lock("orders:expire", "orders:sweep-reservations"):
        import threading

        results: list[object] = []
        sweeps = [tasks.expire_orders, tasks.sweep_reservations]
        threads = [threading.Thread(target=lambda sweep=sweep: results.append(sweep())) for sweep in sweeps]
        for thread in threads:
            thread.start()
            thread.join()
    assert results == [None, None]


def test_old_keys_are_forgotten(mug):
    """After a day."""
    checkout([Line("mug", 1)], "conditional_update", key=ClientKey("", "k", "f"))
    assert tasks.forget_keys() == 0
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(days=2))
    assert tasks.forget_keys() == 1


def test_old_baskets_are_forgotten(mug):
    """A fortnight after they were made; the ledger keeps what became of their units."""
    made = reserve([Line("mug", 1)], timedelta(minutes=1))
    assert tasks.forget_keys() == 0
    Basket.objects.update(created_at=timezone.now() - timedelta(days=15))
    assert tasks.forget_keys() == 1
    with pytest.raises(ReservationGone):
        find(made.id)


def test_low_stock_is_published_by_the_task(mug):
    """Five are few."""
    checkout([Line("mug", 5)], "combined")
    assert (tasks.notice_low_stock(), tasks.notice_low_stock()) == (1, 0)
    assert OrderEvent.objects.get(product=mug).data == {"available": 5}
