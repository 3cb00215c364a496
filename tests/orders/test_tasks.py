"""The tasks of the schedule: what they sweep, one at a time, and that low stock is told once."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from importlib import import_module

import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from inventory.services import change_stock

from inventory import Line
from inventory import tasks as stock_tasks
from inventory.models import StockMovement, StockReservation
from inventory.signals import back_in_stock, low_stock
from locking import get_lock
from orders import tasks
from orders.catalog.low_stock import notice_low_stock
from orders.models import IdempotencyKey, Order, Product
from orders.selling.checkout import checkout
from orders.selling.reservations import reserve
from orders.selling.writing import ClientKey
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def mug():
    """Ten mugs; five are few."""
    product = ProductFactory.create(sku="mug")
    Product.objects.update(low_stock_threshold=5)
    return Product.objects.get(pk=product.pk)


@pytest.fixture
def told():
    """The `low_stock` signals, as (sku, available)."""
    heard: list[tuple[str, int]] = []

    def hear(sender, product, available, **kwargs):
        heard.append((product.sku, available))

    low_stock.connect(hear)
    yield heard
    low_stock.disconnect(hear)


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
    StockReservation.objects.update(expires_at=past)
    assert (tasks.expire_orders(), stock_tasks.sweep_reservations()) == (1, 1)
    assert (tasks.expire_orders(), stock_tasks.sweep_reservations()) == (0, 0)
    mug.refresh_from_db()
    assert (mug.on_hand, mug.reserved) == (10, 0)
    assert set(tasks.audit_stock().values()) == {0}


def test_one_sweep_at_a_time(mug):
    """While another worker sweeps, a second one ends without doing anything."""
    with get_lock("orders:expire", "stock:sweep-reservations"):
        import threading

        results: list[object] = []
        sweeps = [tasks.expire_orders, stock_tasks.sweep_reservations]
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


def test_every_strategy_is_reconciled(mug):
    """Those that keep stock of their own are asked; nothing is left of a shop at rest."""
    checkout([Line("mug", 1)], "redis_gate")
    settled = stock_tasks.reconcile() or {}
    assert "redis_gate" in settled
    assert set(settled.values()) == {0}


def test_low_stock_is_told_once_each_time(mug, told):
    """When the sixth is sold, not when the seventh is; again after a delivery, and never for others."""
    for _ in range(4):
        checkout([Line("mug", 1)], "conditional_update")
    assert told == []
    checkout([Line("mug", 1)], "conditional_update")
    checkout([Line("mug", 1)], "redis_script")
    assert told == [("mug", 5)]
    change_stock(mug, StockMovement.Kind.RECEIVED, 10, "note:1")
    checkout([Line("mug", 9)], "conditional_update")
    assert told == [("mug", 5), ("mug", 5)]


def test_a_reservation_makes_stock_low(mug, told):
    """What is promised isn't available."""
    reserve([Line("mug", 6)], timedelta(minutes=1))
    assert told == [("mug", 4)]


def test_the_task_tells_what_a_dead_worker_did_not(mug, told):
    """Nobody was there to tell after the commit; the task is, once."""
    Product.objects.update(on_hand=1)
    assert (stock_tasks.tell_low_stock(), stock_tasks.tell_low_stock()) == (1, 0)
    assert told == [("mug", 1)]


def test_an_ear_that_fails_harms_no_order(mug, told):
    """The order is committed; the next receiver hears all the same."""

    def fail(sender, **kwargs):
        raise RuntimeError("no mail server")

    low_stock.connect(fail)
    try:
        assert checkout([Line("mug", 6)], "conditional_update").state == "placed"
    finally:
        low_stock.disconnect(fail)
    assert told == [("mug", 4)]


def test_an_ear_without_a_name_that_fails_harms_no_order(mug):
    """A partial has no `__qualname__`, which Django's log of a failure names; the next receiver hears too."""

    def fail(to, sender, **kwargs):
        raise RuntimeError("no mail server")

    heard = []

    def hear(sender, product, **kwargs):
        heard.append(product.sku)

    ear = partial(fail, "buyer@shop")
    low_stock.connect(ear)
    low_stock.connect(hear)
    try:
        assert checkout([Line("mug", 6)], "conditional_update").state == "placed"
    finally:
        low_stock.disconnect(ear)
        low_stock.disconnect(hear)
    assert heard == ["mug"]


def test_no_failure_of_the_notice_harms_an_order(mug, monkeypatch, caplog):
    """The order is committed, whatever is wrong with who is told of it."""

    def fail(keys):
        raise ZeroDivisionError("a bug of the notice")

    monkeypatch.setattr("orders.selling.checkout.notice_low_stock", fail)
    assert checkout([Line("mug", 6)], "conditional_update").state == "placed"
    assert "a bug of the notice" in caplog.text


def test_low_stock_is_marked_in_primary_key_order(mug):
    """Kept out of the row with the lowest key, wherever it lies, the look holds none of the others."""
    second = ProductFactory.create(sku="ant", on_hand=1)
    Product.objects.filter(pk=second.pk).update(low_stock_threshold=5)
    change_stock(mug, StockMovement.Kind.ADJUSTED, -9, "count:1")
    Product.objects.update(low_stock_since=None)
    Product.objects.filter(pk=mug.pk).update(name="Moved to the end")
    with buyers() as start, transaction.atomic():
        Product.objects.select_for_update().get(pk=mug.pk)
        b = start("B", notice_low_stock)
        assert b.ends_or_waits() == "waits"
        assert Product.objects.select_for_update(nowait=True).get(pk=second.pk)
        transaction.set_rollback(True)
    assert b.outcome.result == 2


def test_low_stock_is_noticed_in_one_statement(mug, told, django_assert_num_queries):
    """Both marks are looked at together, and a product is read again only for its signal."""
    with django_assert_num_queries(1):
        assert notice_low_stock() == 0
    Product.objects.update(on_hand=0)
    with django_assert_num_queries(2):
        assert notice_low_stock([mug.pk]) == 1
    mug.refresh_from_db()
    assert (mug.low_stock_since, mug.sold_out_since) != (None, None)
    assert mug.low_stock_since == mug.sold_out_since


def test_a_product_without_a_threshold_keeps_no_mark(mug, told):
    """Watched no more, it isn't low; that it was sold out is known until units are back."""
    back: list[str] = []

    def hear(sender, product, **kwargs):
        back.append(product.sku)

    back_in_stock.connect(hear)
    Product.objects.update(on_hand=0)
    notice_low_stock()
    Product.objects.update(low_stock_threshold=None)
    assert notice_low_stock() == 0
    mug.refresh_from_db()
    assert (mug.low_stock_since, mug.sold_out_since is None) == (None, False)
    Product.objects.update(on_hand=2)
    assert (notice_low_stock(), notice_low_stock()) == (1, 0)
    assert (told, back) == ([("mug", 0)], ["mug"])
