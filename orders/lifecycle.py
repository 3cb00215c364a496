"""What becomes of an order after it was placed: paid, cancelled, expired, or parts of it returned.

Each change of state is one conditional UPDATE of the order's row, so of two that come together one wins and
the other sees it. Locks are taken in one order: the order's row, then products by primary key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from inventory.checkpoints import checkpoint
from inventory.domain import InvalidCart, Line, merge_lines
from inventory.limits import uncount_units
from inventory.models import StockMovement
from inventory.services import change_stock
from orders.events import publish
from orders.models import Order, OrderEvent, OrderItem

State = Order.State

TRANSITIONS: Final[Mapping[State, tuple[State, ...]]] = {
    State.PAID: (State.PLACED,),
    State.CANCELLED: (State.PLACED, State.PAID),
    State.EXPIRED: (State.PLACED,),
}
"""From which states an order may come to which; there is no other list of them."""

_OVERDUE = Q(pay_by__lte=Now())
_IN_TIME = Q(pay_by=None) | Q(pay_by__gt=Now())
_REFERENCE = re.compile(r"[A-Za-z0-9._-]{1,60}\Z")


class OrderUnknown(LookupError):
    """There is no order of this id."""

    def __init__(self, order: UUID) -> None:
        self.order = order
        super().__init__(f"there is no order {order}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the id."""
        return type(self), (self.order,)


class TransitionRefused(Exception):
    """The order can't come to this state from the one it is in.

    Args:
        order: its id. state: what it is. wanted: what it was to become.
    """

    def __init__(self, order: UUID, state: str, wanted: str) -> None:
        self.order, self.state, self.wanted = order, state, wanted
        super().__init__(f"order {order} is {state} and can't become {wanted}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all three."""
        return type(self), (self.order, self.state, self.wanted)


class PaymentTooLate(TransitionRefused):
    """The payment came after the order had ended. Nothing was sold for it: give the money back."""


class TooManyReturned(ValueError):
    """More units come back than were bought and not returned yet.

    Args:
        sku: the product. returned: units that come back. open: units that can.
    """

    def __init__(self, sku: str, returned: int, open: int) -> None:
        self.sku, self.returned, self.open = sku, returned, open
        super().__init__(f"{sku}: {returned} returned, and only {open} can be")


def pay(order_id: UUID) -> Order:
    """Note that the order is paid, once; a second call changes nothing.

    Raises:
        OrderUnknown: there is no such order.
        PaymentTooLate: it was cancelled, or its window has ended, whether anybody had noticed or not.

    Example:
        >>> pay(order.pk).state  # doctest: +SKIP
        'paid'
    """
    with transaction.atomic(durable=True):
        checkpoint("paying", order=order_id)
        paid = mark_paid(order_id)
        checkpoint("written", order=order_id)
    if not paid:
        expire(order_id)
    return _in_state(order_id, State.PAID, PaymentTooLate)


def mark_paid(order_id: UUID) -> bool:
    """Mark the order as paid in the current transaction; False: it is not placed, or its window has ended."""
    return _move(order_id, State.PAID, _IN_TIME)


def cancel(order_id: UUID) -> Order:
    """Cancel an order, paid or not, and put its units back; a second call changes nothing.

    Paying back what was paid is not done here.

    Raises:
        OrderUnknown: there is no such order.
        TransitionRefused: it has expired.
    """
    _end(order_id, State.CANCELLED)
    return _in_state(order_id, State.CANCELLED, TransitionRefused)


def expire(order_id: UUID) -> bool:
    """End an order whose payment window is over, and put its units back; False: nothing was to be done."""
    return _end(order_id, State.EXPIRED, _OVERDUE)


def expire_overdue(limit: int = 500) -> int:
    """Expire at most `limit` overdue orders, each in a transaction of its own; returns how many it were."""
    overdue = Order.objects.filter(_OVERDUE, state=State.PLACED).order_by("pay_by")
    return sum(expire(order_id) for order_id in list(overdue.values_list("pk", flat=True)[:limit]))


def take_back(order_id: UUID, lines: Iterable[Line], reference: str) -> Order:
    """Put returned units of a paid order back into the stock.

    Args:
        order_id: the order's.
        lines: what came back; duplicates are merged.
        reference: names this return, 1 to 60 letters, digits, '.', '_' or '-'. The same one again changes
            nothing, so a form that is sent twice restocks once.

    Raises:
        InvalidCart, ValueError: lines or reference can't be.
        OrderUnknown: there is no such order.
        TransitionRefused: it isn't paid; an unpaid one is cancelled instead.
        TooManyReturned: more than was bought.
    """
    cart = merge_lines(lines)
    if not _REFERENCE.match(reference):
        raise ValueError(f"reference {reference!r}: must be 1 to 60 letters, digits, '.', '_' or '-'")
    with transaction.atomic(durable=True):
        order = Order.objects.select_for_update(no_key=True).filter(pk=order_id).first()
        if order is None:
            raise OrderUnknown(order_id)
        if order.state != State.PAID:
            raise TransitionRefused(order_id, order.state, "returned")
        checkpoint("locked", order=order_id)
        cause = f"returned:{order_id}:{reference}:"
        if not StockMovement.objects.filter(cause__in=[cause + line.sku for line in cart]).exists():
            _restock(order, _returning(order, cart), cause)
            back = [{"sku": line.sku, "quantity": line.quantity} for line in cart]
            publish(order_id, OrderEvent.Kind.RETURNED, reference=reference, lines=back)
        return order


def _returning(order: Order, cart: Sequence[Line]) -> list[tuple[OrderItem, int]]:
    items = {item.product.sku: item for item in _items(order)}
    for line in cart:
        item = items.get(line.sku)
        if item is None:
            raise InvalidCart("sku", line.sku, "is not in this order")
        if line.quantity > item.quantity - item.returned:
            raise TooManyReturned(line.sku, line.quantity, item.quantity - item.returned)
    wanted = {line.sku: line.quantity for line in cart}
    return [(item, wanted[sku]) for sku, item in items.items() if sku in wanted]


def _move(order_id: UUID, to: State, *conditions: Q) -> bool:
    """Change the state, if the order is in one from which it may be, and publish that.

    The row stays locked until the commit.
    """
    allowed = Order.objects.filter(*conditions, pk=order_id, state__in=TRANSITIONS[to])
    moved = allowed.update(state=to) == 1
    if moved:
        publish(order_id, OrderEvent.Kind(to))
    return moved


def _in_state(order_id: UUID, wanted: State, refusal: type[TransitionRefused]) -> Order:
    order = Order.objects.filter(pk=order_id).first()
    if order is None:
        raise OrderUnknown(order_id)
    if order.state != wanted:
        raise refusal(order_id, order.state, wanted)
    return order


def _end(order_id: UUID, to: State, *conditions: Q) -> bool:
    with transaction.atomic(durable=True):
        checkpoint("ending", order=order_id)
        if not _move(order_id, to, *conditions):
            return False
        order = Order.objects.get(pk=order_id)
        left = [(item, item.quantity - item.returned) for item in _items(order)]
        _restock(order, [(item, units) for item, units in left if units], f"restock:{order_id}:")
        checkpoint("written", order=order_id)
    return True


def _items(order: Order) -> list[OrderItem]:
    return list(OrderItem.objects.filter(order=order).select_related("product").order_by("product_id"))


def _restock(order: Order, units: Sequence[tuple[OrderItem, int]], cause: str) -> None:
    """Put units back, in the order of the products' keys. The cause is unique: no unit comes back twice."""
    for item, quantity in units:
        change_stock(item.product, StockMovement.Kind.RESTOCKED, quantity, cause + item.product.sku)
        OrderItem.objects.filter(pk=item.pk).update(returned=F("returned") + quantity)
    uncount_units(order.customer, [(item.product, quantity) for item, quantity in units])
