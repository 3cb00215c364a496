"""What leaves the building, and what comes back: shipments and returns of a paid order.

Locks are taken in one order: the order's row, its items, then products by primary key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Sum

from inventory.checkpoints import checkpoint
from inventory.domain import InvalidCart, Line, PickledWhole, ReferenceUsed, merge_lines
from inventory.models import StockLocation, StockMovement
from inventory.rows import sale_transaction
from inventory.services import record_shipment
from inventory.strategies import Strategy
from orders.events import publish
from orders.lifecycle import OrderUnknown, TransitionRefused, items_of, move, restock
from orders.models import Order, OrderEvent, OrderItem, Shipment

State = Order.State

_REFERENCE: Final = re.compile(r"[A-Za-z0-9._-]{1,60}\Z")
_SHIPPABLE = (State.PAID, State.PARTLY_SHIPPED)
_RETURNABLE = (State.PARTLY_SHIPPED, State.SHIPPED, State.RETURNED)

Chosen = list[tuple[OrderItem, int]]


class TooMany(PickledWhole, ValueError):
    """More units are to leave or to come back than can.

    Args:
        sku: the product. wanted: units that were named. open: units that can.
    """

    verb = "moved"

    def __init__(self, sku: str, wanted: int, open: int) -> None:
        self.sku, self.wanted, self.open = sku, wanted, open
        super().__init__(f"{sku}: {wanted} {self.verb}, and only {open} can be")


class TooManyShipped(TooMany):
    """More units leave than were bought and not shipped yet."""

    verb = "shipped"


class TooManyReturned(TooMany):
    """More units come back than were shipped and not returned yet."""

    verb = "returned"


def ship(
    order_id: UUID,
    lines: Iterable[Line] | None,
    reference: str,
    *,
    location: StockLocation | None = None,
    staff: Any = None,
    record: Callable[[], object] | None = None,
) -> Order:
    """Note that units of a paid order left the building.

    Args:
        order_id: the order's.
        lines: what left; duplicates are merged. None: everything that hasn't left yet.
        reference: names the parcel, 1 to 60 letters, digits, '.', '_' or '-'. The same one again changes
            nothing, so a form that is sent twice ships once; with other lines it is refused.
        location: where all of it leaves from; None: where each item was to leave from.
        staff: the user who shipped it, if one did.
        record: writes what belongs to the shipment, in its transaction; not called for a repetition.

    Returns:
        The order, partly shipped or shipped.

    Raises:
        InvalidCart, ValueError: lines or reference can't be.
        OrderUnknown: there is no such order.
        ReferenceUsed: the reference names another parcel of this order.
        TransitionRefused: it isn't paid, has ended, or has left as a whole.
        TooManyShipped: more than was bought and is still here.
        NotThere: the location has too few.
        Busy: others kept a row locked for too long; nothing was changed.
    """
    cart = None if lines is None else merge_lines(lines)
    _check(reference)
    with sale_transaction(Strategy.wait):
        order = _locked(order_id)
        sent = Shipment.objects.filter(item__order=order, reference=reference)
        if known := dict(sent.values_list("item__product__sku", "quantity")):
            return _repeated(order, reference, cart, known)
        if order.state not in _SHIPPABLE:
            raise TransitionRefused(order_id, order.state, State.SHIPPED)
        items = items_of(order)
        chosen = _everything(items) if cart is None else _choose(items, cart, _allocated, TooManyShipped)
        _send(order, chosen, reference, location, staff)
        _publish(order, OrderEvent.Kind.SHIPPED, chosen, reference)
        order.state = State.SHIPPED if not any(item.allocated for item in items) else State.PARTLY_SHIPPED
        move(order_id, order.state)
        _record(record)
        checkpoint("written", order=order_id)
    return order


def take_back(
    order_id: UUID, lines: Iterable[Line], reference: str, *, record: Callable[[], object] | None = None
) -> Order:
    """Put returned units of a shipped order back into the stock.

    Args:
        order_id: the order's.
        lines: what came back; duplicates are merged.
        reference: names this return, as in `ship`.
        record: as for `ship`.

    Returns:
        The order: returned when everything has left and come back.

    Raises:
        InvalidCart, ValueError: lines or reference can't be.
        OrderUnknown: there is no such order.
        ReferenceUsed: the reference names another return of this order.
        TransitionRefused: nothing of it was shipped; it is cancelled instead.
        TooManyReturned: more than was shipped and hasn't come back.
        Busy: as for `ship`.
    """
    cart = merge_lines(lines)
    _check(reference)
    with sale_transaction(Strategy.wait):
        order = _locked(order_id)
        cause = f"returned:{order_id}:{reference}:"
        back = StockMovement.objects.filter(cause__startswith=cause).order_by().values_list("product__sku")
        if known := dict(back.annotate(units=Sum("quantity"))):
            return _repeated(order, reference, cart, known)
        if order.state not in _RETURNABLE:
            raise TransitionRefused(order_id, order.state, State.RETURNED)
        items = items_of(order)
        chosen = _choose(items, cart, _returnable, TooManyReturned)
        restock(order, chosen, cause, shipped=True)
        _publish(order, OrderEvent.Kind.RETURNED, chosen, reference)
        if order.state == State.SHIPPED and not any(item.returnable for item in items_of(order)):
            order.state = State.RETURNED
            move(order_id, order.state)
        _record(record)
        checkpoint("written", order=order_id)
    return order


def _repeated(order: Order, reference: str, cart: Sequence[Line] | None, known: dict[str, int]) -> Order:
    """Return the order as it is; refuse a reference that stands for other units."""
    if cart is not None and {line.sku: line.quantity for line in cart} != known:
        raise ReferenceUsed(reference, ", ".join(f"{units} × {sku}" for sku, units in known.items()))
    return order


def _record(record: Callable[[], object] | None) -> None:
    if record is not None:
        record()


def _check(reference: str) -> None:
    if not _REFERENCE.match(reference):
        raise ValueError(f"reference {reference[:80]!r}: must be 1 to 60 letters, digits, '.', '_' or '-'")


def _locked(order_id: UUID) -> Order:
    order = Order.objects.select_for_update(no_key=True).filter(pk=order_id).first()
    if order is None:
        raise OrderUnknown(order_id)
    checkpoint("locked", order=order_id)
    return order


def _allocated(item: OrderItem) -> int:
    return item.allocated


def _returnable(item: OrderItem) -> int:
    return item.returnable


def _everything(items: Sequence[OrderItem]) -> Chosen:
    return [(item, item.allocated) for item in items if item.allocated]


def _choose(
    items: Sequence[OrderItem],
    cart: Sequence[Line],
    open_units: Callable[[OrderItem], int],
    refusal: type[TooMany],
) -> Chosen:
    """Return the items that `cart` names with their units, in the order of the products' keys."""
    wanted = {line.sku: line.quantity for line in cart}
    if missing := wanted.keys() - {item.product.sku for item in items}:
        raise InvalidCart("sku", min(missing), "is not in this order")
    chosen = [(item, wanted[item.product.sku]) for item in items if item.product.sku in wanted]
    for item, units in chosen:
        if units > open_units(item):
            raise refusal(item.product.sku, units, open_units(item))
    return chosen


def _send(order: Order, chosen: Chosen, reference: str, location: StockLocation | None, staff: Any) -> None:
    for item, units in chosen:
        item.shipped += units
        source = location or item.location
        OrderItem.objects.filter(pk=item.pk).update(shipped=F("shipped") + units)
        Shipment.objects.create(item=item, quantity=units, reference=reference, location=source, staff=staff)
        record_shipment(item.product, units, f"shipped:{order.pk}:{reference}:{item.product.sku}", source)


def _publish(order: Order, kind: OrderEvent.Kind, chosen: Chosen, reference: str) -> None:
    lines = [{"sku": item.product.sku, "quantity": units} for item, units in chosen]
    publish(order.pk, kind, reference=reference, lines=lines)
