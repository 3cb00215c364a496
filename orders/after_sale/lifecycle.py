"""What becomes of an order after it was placed: paid, cancelled or expired.

Shipments, returns and cancelled units are in `orders.after_sale.fulfillment`.

Each change of state is one conditional UPDATE of the order's row, so of two that come together one wins and
the other sees it. Locks are taken in one order: the order's row, levels of stock, the customer's counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, Q
from django.db.models.functions import Now

from inventory import Busy, InventoryError, stock
from inventory.hooks import reach
from orders.events.outbox import publish
from orders.models import Order, OrderEvent, OrderItem
from orders.selling.limits import uncount
from orders.selling.refusals import Refused
from orders.selling.writing import sale_of
from orders.transactions import change

logger = logging.getLogger(__name__)

State = Order.State

TRANSITIONS: Final[Mapping[State, tuple[State, ...]]] = {
    State.PAID: (State.PLACED,),
    State.CANCELLED: (State.PLACED, State.PAID),
    State.EXPIRED: (State.PLACED,),
}
"""From which states an order may come to which. What follows from its items is `fulfillment`'s."""

SINCE_PAID: Final = (State.PAID, State.PARTLY_SHIPPED, State.SHIPPED, State.RETURNED)
"""States of an order that was paid, whatever came after."""

SWEEP_WAIT: Final = 0.5
"""Seconds that a sweep waits for a row that others keep locked: the orders behind it wait as well."""

_OVERDUE = Q(pay_by__lte=Now())
_IN_TIME = Q(pay_by=None) | Q(pay_by__gt=Now())


class OrderUnknown(Refused, LookupError):
    """There is no order of this id."""

    def __init__(self, order: UUID) -> None:
        self.order = order
        super().__init__(f"there is no order {order}")


class TransitionRefused(Refused):
    """The order is in a state from which this can't be done.

    Args:
        order: which. state: what it is. to: what it should become.
    """

    def __init__(self, order: UUID, state: str, to: str) -> None:
        self.order, self.state, self.to = order, state, to
        super().__init__(f"order {order} is {state} and can't become {to}")


class PaymentTooLate(TransitionRefused):
    """Money came for an order that has ended: give it back."""

    def __str__(self) -> str:
        return f"order {self.order} is {self.state}: the payment came too late, nothing was sold"


class AlreadyShipped(TransitionRefused):
    """Units of the order have left; they come back as returns, and what is left is cancelled by itself."""

    def __str__(self) -> str:
        return f"order {self.order} is {self.state}: its units can be returned, not cancelled"


def pay(order_id: UUID, *, record: Callable[[], object] | None = None) -> Order:
    """Note that the order is paid, once; a second call changes nothing.

    Args:
        record: writes what belongs to the change, in its transaction; not called where nothing changes.

    Raises:
        OrderUnknown: there is no such order.
        PaymentTooLate: it was cancelled, or its window has ended, whether a sweep has noticed or not.
        Busy, DatabaseUnavailable: nothing was changed. OutcomeUnknown: repeat it, it takes effect once.

    Example:
        >>> pay(order.pk).state  # doctest: +SKIP
        'paid'
    """
    with change(f"pay:{order_id}"):
        reach("paying", order=order_id)
        paid = mark_paid(order_id)
        if paid and record is not None:
            record()
        order = find_order(order_id)
        reach("written", order=order_id)
    if not paid and expire(order_id):
        order = find_order(order_id)
    if order.state not in SINCE_PAID:
        raise PaymentTooLate(order_id, order.state, State.PAID)
    return order


def mark_paid(order_id: UUID) -> bool:
    """Mark the order as paid in the current transaction; False: it is not placed, or its window has ended."""
    paid = _move(order_id, State.PAID, _IN_TIME, paid_at=Now())
    if paid:
        publish(OrderEvent.Kind.PAID, order=order_id)
    return paid


def cancel(order_id: UUID, *, record: Callable[[], object] | None = None) -> Order:
    """Cancel an order, paid or not, and put its units back; a second call changes nothing.

    Paying back what was paid is not done here.

    Raises:
        OrderUnknown: there is no such order.
        AlreadyShipped: units of it have left the building; `fulfillment.cancel_units` cancels the rest.
        TransitionRefused: it has expired. And as `pay`.
    """
    order = _end(order_id, State.CANCELLED, record=record) or find_order(order_id)
    if order.state != State.CANCELLED:
        refusal = AlreadyShipped if order.state in SINCE_PAID else TransitionRefused
        raise refusal(order_id, order.state, State.CANCELLED)
    return order


def expire(order_id: UUID, *, wait: float | None = None) -> bool:
    """End an order whose payment window is over, and put its units back; False: nothing was to be done."""
    return _end(order_id, State.EXPIRED, _OVERDUE, wait=wait) is not None


def expire_overdue(limit: int = 500) -> int:
    """Expire at most `limit` overdue orders, each in a transaction of its own; returns how many it were.

    One that can't be ended, because its counts are wrong or its rows are locked, is logged and holds up no
    other.
    """
    overdue = Order.objects.filter(_OVERDUE, state=State.PLACED).order_by("pay_by")
    return sum(try_to_expire(order_id) for order_id in list(overdue.values_list("pk", flat=True)[:limit]))


def try_to_expire(order_id: UUID) -> bool:
    """`expire`, where a failure is logged: the next sweep tries again."""
    try:
        return expire(order_id, wait=SWEEP_WAIT)
    except Busy as busy:
        logger.warning("order %s isn't ended yet: %s", order_id, busy)
    except (IntegrityError, InventoryError):
        logger.exception("order %s can't be ended; manage.py audit_orders says what is wrong", order_id)
    return False


def find_order(order_id: UUID) -> Order:
    """Return the order, as it is now and unlocked; raise OrderUnknown where there is none."""
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        raise OrderUnknown(order_id)
    return order


def items_of(order_id: UUID) -> list[OrderItem]:
    """Return the order's items with their products, in order of the SKUs."""
    return list(OrderItem.objects.filter(order=order_id).select_related("product").order_by("product__sku"))


def _move(order_id: UUID, to: State, *conditions: Q, **dates: Now) -> bool:
    """Change the state, if the order is in one from which it may be; the row stays locked till the commit."""
    allowed = Order.objects.filter(*conditions, pk=order_id, state__in=TRANSITIONS[to])
    return allowed.update(state=to, **dates) == 1


def _end(
    order_id: UUID,
    to: State,
    *conditions: Q,
    record: Callable[[], object] | None = None,
    wait: float | None = None,
) -> Order | None:
    """End the order and return it; None where it isn't in a state from which it may be."""
    cause = f"{to}:{order_id}"
    with change(cause, wait):
        reach("ending", order=order_id)
        if not _move(order_id, to, *conditions):
            return None
        publish(OrderEvent.Kind(to), order=order_id)
        order = find_order(order_id)
        units = [(item, item.open) for item in OrderItem.objects.filter(order=order)]
        stock.cancel(cause=cause, of=sale_of(order_id))
        OrderItem.objects.filter(order=order).update(cancelled=F("quantity") - F("shipped"))
        uncount(order.customer, units)
        if record is not None:
            record()
        reach("written", order=order_id)
    return order
