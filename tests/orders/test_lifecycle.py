"""Paid, cancelled, expired, returned: one state wins, and no unit comes back twice."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from unittest import mock

import pytest
from django.db import transaction
from django.utils import timezone

from inventory import Busy, Line
from inventory.models import Entry, Level
from orders import transactions
from orders.after_sale import payments
from orders.after_sale.fulfillment import ship, take_back
from orders.after_sale.lifecycle import (
    SWEEP_WAIT,
    TRANSITIONS,
    OrderUnknown,
    PaymentTooLate,
    TransitionRefused,
    cancel,
    expire,
    expire_overdue,
    pay,
)
from orders.models import CustomerPurchase, Order, PaymentEvent
from orders.selling.checkout import checkout
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import left
from tests.orders.shelf import receive as deliver

pytestmark = pytest.mark.django_db(transaction=True)
State = Order.State


@pytest.fixture
def order():
    """An order of three of ten units, by Ann, of a product with a limit."""
    ProductFactory.create(sku="mug", customer_limit=5)
    return checkout([Line("mug", 3)], "conditional_update", customer="ann")


def overdue(order: Order) -> Order:
    """Let the payment window of `order` be over."""
    Order.objects.filter(pk=order.pk).update(pay_by=timezone.now() - timedelta(seconds=1))
    return order


def test_a_payment_counts_once(order):
    """Paying twice is paying: nothing changes the second time, and no unit moves."""
    assert pay(order.pk).state == State.PAID
    assert pay(order.pk).state == State.PAID
    assert left() == 7


def receive(order: uuid.UUID) -> object:
    """Receive the whole payment of an order."""
    return payments.receive(payments.Payment("evt", "payment_intent.succeeded", order, "pi", 750, "EUR"))


def parcel(order: uuid.UUID) -> object:
    """Ship everything."""
    return ship(order, None, "parcel")


def come_back(order: uuid.UUID) -> object:
    """Take everything back."""
    return take_back(order, [Line("mug", 3)], "return")


@pytest.mark.parametrize(
    ("before", "step", "table"),
    [
        ([], pay, Order),
        ([], receive, Order),
        ([], cancel, Order),
        ([], cancel, Level),
        ([pay], parcel, Order),
        ([pay], parcel, Level),
        ([pay, parcel], come_back, Order),
        ([pay, parcel], come_back, Level),
    ],
)
def test_a_step_waits_for_a_locked_row_for_so_long(order, monkeypatch, before, step, table):
    """The order's row is locked, or the level's: the step is *busy*, and nothing has changed."""
    for one in before:
        one(order.pk)
    monkeypatch.setattr(transactions, "WAIT", 0.05)
    state, stock = Order.objects.get().state, left()
    with buyers() as start, transaction.atomic():
        list(table.objects.select_for_update())
        assert isinstance(start("A", partial(step, order.pk)).ends().error, Busy)
    assert (Order.objects.get().state, left()) == (state, stock)
    step(order.pk)
    assert Order.objects.get().state != state


def test_an_overdue_order_that_others_keep_locked_holds_up_no_other(order, monkeypatch):
    """The sweep leaves it and ends the next one; a later sweep ends the first one, too."""
    monkeypatch.setattr(transactions, "WAIT", 0.05)
    second = checkout([Line("mug", 1)], "conditional_update", customer="bob")
    for one in (order, second):
        overdue(one)
    with buyers() as start, transaction.atomic():
        list(Order.objects.select_for_update().filter(pk=order.pk))
        assert start("A", expire_overdue).ends().result == 1
    assert Order.objects.get(pk=second.pk).state == State.EXPIRED
    assert expire_overdue() == 1


def test_a_sweep_waits_little_for_each_order(order, monkeypatch):
    """Sixty orders of one locked product would else keep it from all others for ten minutes."""
    began = mock.Mock(wraps=transactions.change)
    monkeypatch.setattr("orders.after_sale.lifecycle.change", began)
    overdue(order)
    assert expire_overdue() == 1
    began.assert_called_once_with(f"expired:{order.pk}", SWEEP_WAIT)
    assert transactions.WAIT > SWEEP_WAIT


def test_a_payment_that_is_too_late_is_answered_although_the_stock_is_locked(order, monkeypatch):
    """It was judged and recorded: that the units can't go back yet is the sweep's business."""
    monkeypatch.setattr(transactions, "WAIT", 0.05)
    overdue(order)
    with buyers() as start, transaction.atomic():
        list(Level.objects.select_for_update())
        answered = start("A", partial(receive, order.pk)).ends()
    assert answered.error is None
    assert PaymentEvent.objects.get().outcome == "too_late"
    assert expire_overdue() == 1


@pytest.mark.parametrize("before", [[], [pay]])
def test_cancelling_puts_the_units_back_once(order, before):
    """Paid or not: ten mugs again, the customer's count at zero, and a second cancel moves nothing."""
    for step in before:
        step(order.pk)
    assert cancel(order.pk).state == State.CANCELLED
    assert cancel(order.pk).state == State.CANCELLED
    assert left() == 10
    assert CustomerPurchase.objects.get(customer="ann").units == 0
    entry = Entry.objects.get(kind=Entry.Kind.CANCEL)
    assert entry.of is not None
    assert (entry.cause, entry.of.cause) == (f"cancelled:{order.pk}", f"order:{order.pk}")


def test_a_cancelled_customer_may_buy_again(order):
    """What was given back doesn't count towards the limit of five."""
    cancel(order.pk)
    assert checkout([Line("mug", 5)], "conditional_update", customer="ann").state == State.PLACED


def test_the_cause_stands_against_a_double_restock(order):
    """Even if the order were set back by hand, the ledger has the cancellation, and stock stays."""
    cancel(order.pk)
    Order.objects.filter(pk=order.pk).update(state=State.PLACED)
    order.items.update(cancelled=0)
    CustomerPurchase.objects.update(units=3)
    cancel(order.pk)
    assert left() == 10


def test_an_overdue_order_expires_and_its_units_come_back(order):
    """Only orders whose window is over, each once; later payments are refused and sell nothing."""
    in_time = checkout([Line("mug", 1)], "conditional_update", customer="bob")
    overdue(order)
    assert expire_overdue() == 1
    assert expire_overdue() == 0
    assert left() == 9
    with pytest.raises(PaymentTooLate) as late:
        pay(order.pk)
    assert late.value.state == State.EXPIRED
    assert Order.objects.get(pk=in_time.pk).state == State.PLACED
    assert left() == 9


def test_a_late_payment_is_refused_before_a_sweep(order):
    """The window's end counts, not the sweep: the order expires in front of the payment."""
    with pytest.raises(PaymentTooLate):
        pay(overdue(order).pk)
    assert Order.objects.get().state == State.EXPIRED
    assert left() == 10


def test_an_order_without_a_window_never_expires(settings):
    """PAYMENT_WINDOW 0: it waits for its payment forever."""
    settings.PAYMENT_WINDOW = 0
    order = checkout([Line(ProductFactory.create().sku, 1)], "conditional_update")
    assert order.pay_by is None
    assert not expire(order.pk)
    assert pay(order.pk).state == State.PAID


def test_an_order_that_cannot_be_ended_holds_up_no_other(order, caplog):
    """Its customer's count is wrong, so the database refuses: it is logged, and the next one expires."""
    other = checkout([Line("mug", 1)], "conditional_update", customer="bob")
    for seconds, each in ((9, order), (5, other)):
        Order.objects.filter(pk=each.pk).update(pay_by=timezone.now() - timedelta(seconds=seconds))
    CustomerPurchase.objects.filter(customer="ann").update(units=0)
    assert expire_overdue() == 1
    assert Order.objects.get(pk=other.pk).state == State.EXPIRED
    assert Order.objects.get(pk=order.pk).state == State.PLACED
    assert f"order {order.pk} can't be ended; manage.py audit_orders says what is wrong" in caplog.text


TO: dict[State, Callable[[uuid.UUID], object]] = {
    State.PAID: pay,
    State.CANCELLED: cancel,
    State.EXPIRED: lambda pk: expire(pk),
}


@pytest.mark.parametrize("start", State)
@pytest.mark.parametrize("to", TO)
def test_only_the_listed_transitions_happen(order, start, to):
    """Every pair of states: what the table doesn't list leaves the order and the stock as they were."""
    pay_by = timezone.now() + timedelta(seconds=-1 if to == State.EXPIRED else 60)
    Order.objects.filter(pk=order.pk).update(state=start, pay_by=pay_by)
    with suppress(TransitionRefused):
        TO[to](order.pk)
    allowed = start in TRANSITIONS[to]
    assert Order.objects.get().state == (to if allowed else start)
    assert left() == (10 if allowed and to != State.PAID else 7)


@pytest.mark.parametrize(
    "step", [pay, cancel, lambda pk: ship(pk, None, "r1"), lambda pk: take_back(pk, [Line("mug", 1)], "r1")]
)
def test_an_order_that_is_not_there(step):
    """It is named, and nothing is done."""
    missing = uuid.uuid4()
    with pytest.raises(OrderUnknown, match=str(missing)):
        step(missing)


# The window ends while the customer pays --------------------------------------------------------------------


def test_the_payment_wins(order):
    """The customer has paid but not committed; the expiry waits, finds it paid, restocks nothing."""
    with buyers() as start:
        customer = start("customer", partial(pay, order.pk), "written").reaches("written")
        sweep = start("sweep", partial(expire_early, order.pk))
        assert sweep.ends_or_waits() == "waits"
        customer.ends()
        assert sweep.ends().result is None
    assert Order.objects.get().state == State.PAID
    assert left() == 7


def expire_early(order_id):
    """Expire whatever the clock says, as a sweep whose clock is ahead would."""
    from orders.after_sale.lifecycle import _end

    return _end(order_id, State.EXPIRED)


def test_the_expiry_wins(order):
    """The sweep has expired the order but not committed; the payment waits and is too late."""
    overdue(order)
    with buyers() as start:
        sweep = start("sweep", partial(expire, order.pk), "written").reaches("written")
        customer = start("customer", partial(pay, order.pk))
        sweep.ends()
        assert isinstance(customer.ends().error, PaymentTooLate)
    assert Order.objects.get().state == State.EXPIRED
    assert left() == 10


def test_the_expiry_dies_in_the_middle(order):
    """Killed between restock and commit: the order is as it was, and the next sweep ends it once."""
    overdue(order)
    with buyers() as start:
        start("sweep", partial(expire, order.pk), "written").reaches("written").dies()
    assert (Order.objects.get().state, left()) == (State.PLACED, 7)
    assert expire_overdue() == 1
    assert left() == 10


def test_cancel_and_expiry_together_restock_once(order):
    """Two ends of one order: the second waits for the first, and finds nothing left to do."""
    overdue(order)
    with buyers() as start:
        a = start("A", partial(cancel, order.pk), "written").reaches("written")
        b = start("B", partial(expire, order.pk))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert b.ends().result is False
    assert left() == 10


def test_orders_of_the_same_products_end_side_by_side(order):
    """Two cancels whose baskets name the products in opposite order end without a deadlock."""
    ProductFactory.create(sku="pen")
    first = checkout([Line("mug", 1), Line("pen", 1)], "conditional_update", customer="ann")
    second = checkout([Line("pen", 1), Line("mug", 1)], "conditional_update", customer="ann")
    with buyers() as start:
        a = start("A", partial(cancel, first.pk), "written").reaches("written")
        b = start("B", partial(cancel, second.pk))
        assert b.ends_or_waits() == "waits"
        assert a.ends().error is None
        assert b.ends().error is None
    assert left() == 7


def test_a_delivery_beside_a_cancel_is_not_lost(order):
    """Both add to the row: ten and five."""
    with buyers() as start:
        a = start("A", partial(cancel, order.pk), "written").reaches("written")
        b = start("B", partial(deliver, 5))
        assert b.ends_or_waits() == "waits"
        a.ends()
        b.ends()
    assert left() == 15
