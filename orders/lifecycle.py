"""What becomes of an order after it was placed: paid, cancelled or expired.

Shipments and returns are in `orders.fulfillment`.

Each change of state is one conditional UPDATE of the order's row, so of two that come together one wins and
the other sees it. Locks are taken in one order: the order's row, then products by primary key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, Q
from django.db.models.functions import Now

from inventory.checkpoints import checkpoint
from inventory.domain import Busy, PickledWhole
from inventory.limits import uncount_units
from inventory.models import StockMovement
from inventory.rows import sale_transaction
from inventory.services import change_stock
from inventory.strategies import Strategy
from orders.allocation import assign_locations, returned_to
from orders.events import publish
from orders.models import Order, OrderEvent, OrderItem

logger = logging.getLogger(__name__)

State = Order.State

TRANSITIONS: Final[Mapping[State, tuple[State, ...]]] = {
    State.PAID: (State.PLACED,),
    State.CANCELLED: (State.PLACED, State.PAID),
    State.EXPIRED: (State.PLACED,),
    State.PARTLY_SHIPPED: (State.PAID, State.PARTLY_SHIPPED),
    State.SHIPPED: (State.PAID, State.PARTLY_SHIPPED),
    State.RETURNED: (State.SHIPPED,),
}
"""From which states an order may come to which; there is no other list of them."""

_SINCE_PAID: Final = (State.PAID, State.PARTLY_SHIPPED, State.SHIPPED, State.RETURNED)
"""States of an order that was paid, whatever came after."""

SWEEP_WAIT: Final = 0.5
"""Seconds that a sweep waits for a row that others keep locked: the orders behind it wait as well."""

_OVERDUE = Q(pay_by__lte=Now())
_IN_TIME = Q(pay_by=None) | Q(pay_by__gt=Now())


class OrderUnknown(PickledWhole, LookupError):
    """There is no order of this id."""

    def __init__(self, order: UUID) -> None:
        self.order = order
        super().__init__(f"there is no order {order}")


class TransitionRefused(PickledWhole):
    """The order can't come to this state from the one it is in.

    Args:
        order: its id. state: what it is. wanted: what it was to become.
    """

    def __init__(self, order: UUID, state: str, wanted: str) -> None:
        self.order, self.state, self.wanted = order, state, wanted
        super().__init__(f"order {order} is {state} and can't become {wanted}")


class PaymentTooLate(TransitionRefused):
    """The payment came after the order had ended. Nothing was sold for it: give the money back."""


class AlreadyShipped(TransitionRefused):
    """Units of the order have left the building: they can be returned, not cancelled."""

    def __str__(self) -> str:
        return f"order {self.order} is {self.state}: its units can be returned, not cancelled"


def pay(order_id: UUID, *, record: Callable[[], object] | None = None) -> Order:
    """Note that the order is paid, once; a second call changes nothing.

    Args:
        order_id: the order's.
        record: writes what belongs to the change, in its transaction; not called where nothing changes.

    Raises:
        OrderUnknown: there is no such order.
        PaymentTooLate: it was cancelled, or its window has ended, whether anybody had noticed or not.
        Busy: others kept a row locked for too long; nothing was changed.

    Example:
        >>> pay(order.pk).state  # doctest: +SKIP
        'paid'
    """
    with sale_transaction(Strategy.wait):
        checkpoint("paying", order=order_id)
        paid = mark_paid(order_id)
        if paid and record is not None:
            record()
        checkpoint("written", order=order_id)
    if not paid:
        expire(order_id)
    order = find_order(order_id)
    if order.state not in _SINCE_PAID:
        raise PaymentTooLate(order_id, order.state, State.PAID)
    return order


def mark_paid(order_id: UUID) -> bool:
    """Mark the order as paid in the current transaction; False: it is not placed, or its window has ended."""
    paid = move(order_id, State.PAID, _IN_TIME)
    if paid:
        assign_locations(find_order(order_id))
        publish(order_id, OrderEvent.Kind.PAID)
    return paid


def cancel(order_id: UUID, *, record: Callable[[], object] | None = None) -> Order:
    """Cancel an order, paid or not, and put its units back; a second call changes nothing.

    Paying back what was paid is not done here.

    Args:
        order_id, record: as for `pay`.

    Raises:
        OrderUnknown: there is no such order.
        AlreadyShipped: units of it have left the building; they come back as returns.
        TransitionRefused: it has expired. Busy: as for `pay`.
    """
    _end(order_id, State.CANCELLED, record=record)
    order = find_order(order_id)
    if order.state != State.CANCELLED:
        refusal = AlreadyShipped if order.state in _SINCE_PAID else TransitionRefused
        raise refusal(order_id, order.state, State.CANCELLED)
    return order


def expire(order_id: UUID, *, wait: float | None = None) -> bool:
    """End an order whose payment window is over, and put its units back; False: nothing was to be done.

    Raises:
        Busy: as for `pay`.
    """
    return _end(order_id, State.EXPIRED, _OVERDUE, wait=wait)


def expire_overdue(limit: int = 500) -> int:
    """Expire at most `limit` overdue orders, each in a transaction of its own; returns how many it were.

    One that the database refuses to end, because its counts are wrong, or whose rows others keep locked, is
    logged and holds up no other.
    """
    overdue = Order.objects.filter(_OVERDUE, state=State.PLACED).order_by("pay_by")
    return sum(try_to_expire(order_id) for order_id in list(overdue.values_list("pk", flat=True)[:limit]))


def try_to_expire(order_id: UUID) -> bool:
    """`expire`, where a failure is the log's business: the next sweep tries again."""
    try:
        return expire(order_id, wait=SWEEP_WAIT)
    except IntegrityError:
        logger.exception("order %s can't be ended; manage.py audit_stock says what is wrong", order_id)
    except Busy as busy:
        logger.warning("order %s isn't ended yet: %s", order_id, busy)
    return False


def move(order_id: UUID, to: State, *conditions: Q) -> bool:
    """Change the state, if the order is in one from which it may be; the row stays locked till the commit."""
    allowed = Order.objects.filter(*conditions, pk=order_id, state__in=TRANSITIONS[to])
    return allowed.update(state=to) == 1


def find_order(order_id: UUID) -> Order:
    """Return the order, as it is now and unlocked; raise OrderUnknown where there is none."""
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        raise OrderUnknown(order_id)
    return order


def _end(
    order_id: UUID,
    to: State,
    *conditions: Q,
    record: Callable[[], object] | None = None,
    wait: float | None = None,
) -> bool:
    with sale_transaction(Strategy.wait if wait is None else wait):
        checkpoint("ending", order=order_id)
        if not move(order_id, to, *conditions):
            return False
        publish(order_id, OrderEvent.Kind(to))
        order = Order.objects.get(pk=order_id)
        units = [(item, item.allocated) for item in items_of(order) if item.allocated]
        restock(order, units, f"restock:{order_id}:", shipped=False)
        if record is not None:
            record()
        checkpoint("written", order=order_id)
    return True


def items_of(order: Order) -> list[OrderItem]:
    """Return the order's items with their products, in the order of the products' keys."""
    return list(
        OrderItem.objects.filter(order=order).select_related("product", "location").order_by("product_id")
    )


def restock(order: Order, units: Sequence[tuple[OrderItem, int]], cause: str, *, shipped: bool) -> None:
    """Put units back for sale, in the order of the products' keys, in the current transaction.

    Args:
        order: whose units they are. units: pairs of item and units.
        cause: unique with the SKU behind it, so that no unit comes back twice.
        shipped: they had left the building, and come back to where they left from; otherwise they were
            allocated, and are released.
    """
    for item, quantity in units:
        parts = returned_to(order, item, quantity) if shipped else [(None, quantity)]
        for number, (location, part) in enumerate(parts):
            change_stock(
                item.product,
                StockMovement.Kind.RESTOCKED,
                part,
                cause + item.product.sku + (f":{number}" if number else ""),
                shipped=-part if shipped else 0,
                location=location,
            )
        released = 0 if shipped else quantity
        OrderItem.objects.filter(pk=item.pk).update(
            returned=F("returned") + quantity, released=F("released") + released
        )
    uncount_units(order.customer, [(item.product, quantity) for item, quantity in units])
