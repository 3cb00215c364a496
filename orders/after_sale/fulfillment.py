"""What leaves the building, what comes back, and what never leaves: the units of a paid order.

Its state follows from its items. Locks are taken in one order: the order's row, levels of stock, the
customer's counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from django.db.models import Q, Sum

from inventory import InvalidLines, Line, stock
from inventory.hooks import reach
from inventory.models import Movement
from orders.after_sale.lifecycle import OrderUnknown, TransitionRefused, items_of
from orders.events.outbox import publish
from orders.models import Order, OrderEvent, OrderItem, Shipment
from orders.selling.cart import merge_lines
from orders.selling.limits import uncount
from orders.selling.refusals import Refused
from orders.selling.writing import sale_of
from orders.transactions import change

State = Order.State
Kind = OrderEvent.Kind
Chosen = list[tuple[OrderItem, int]]

_REFERENCE: Final = re.compile(r"[A-Za-z0-9._-]{1,60}\Z")


class ReferenceUsed(Refused, ValueError):
    """The reference names something else already; nothing was done.

    Args:
        reference: as it was given. known: what it names.
    """

    def __init__(self, reference: str, known: str) -> None:
        self.reference, self.known = reference, known
        super().__init__(
            f"reference {reference!r}: names {known} already; nothing was done, choose another reference"
        )


class TooMany(Refused, ValueError):
    """More units are to be moved than can.

    Args:
        sku: the product. wanted: units that were named. open: units that can. verb: what was to be done.
    """

    def __init__(self, sku: str, wanted: int, open: int, verb: str) -> None:
        self.sku, self.wanted, self.open, self.verb = sku, wanted, open, verb
        super().__init__(f"{sku}: {wanted} {verb}, and only {open} can be")


def require_reference(reference: str) -> None:
    """Refuse a reference that can't name anything.

    Raises:
        ValueError: it isn't 1 to 60 letters, digits, '.', '_' or '-'.
    """
    if not _REFERENCE.match(reference):
        raise ValueError(f"reference {reference[:80]!r}: must be 1 to 60 letters, digits, '.', '_' or '-'")


def ship(
    order_id: UUID,
    lines: Iterable[tuple[str, int]] | None,
    reference: str,
    *,
    staff: Any = None,
    record: Callable[[], object] | None = None,
) -> Order:
    """Note that units of a paid order left the building.

    Args:
        lines: what left; duplicates are merged. None: everything that hasn't left yet.
        reference: names the parcel, 1 to 60 letters, digits, '.', '_' or '-'. The same one again changes
            nothing, so a form that is sent twice ships once; with other lines it is refused.
        staff: the user who shipped it, if one did.
        record: writes what belongs to the shipment, in its transaction; not called for a repetition.

    Returns:
        The order, partly shipped or shipped.

    Raises:
        InvalidLines, ValueError: lines or reference can't be. OrderUnknown: there is no such order.
        ReferenceUsed: the reference names another parcel of this order.
        TransitionRefused: it isn't paid, has ended, or has left as a whole.
        TooMany: more than was bought and is still here. NotThere: units were sold before they came in.
        Busy, DatabaseUnavailable: nothing was changed. OutcomeUnknown: repeat it, it takes effect once.
    """

    def send(step: _Step, chosen: Chosen) -> None:
        stock.ship(_lines(chosen), cause=step.cause, of=sale_of(order_id), actor=_name(staff))
        for item, units in chosen:
            item.shipped += units
            Shipment.objects.create(item=item, quantity=units, reference=reference, staff=staff)

    states = (State.PAID, State.PARTLY_SHIPPED)
    step = _Step("shipment", "shipped", order_id, reference, Kind.SHIPPED, states, State.SHIPPED)
    return step.take(lines, lambda item: item.open, send, record)


def take_back(
    order_id: UUID,
    lines: Iterable[tuple[str, int]],
    reference: str,
    *,
    damaged: bool = False,
    staff: Any = None,
    record: Callable[[], object] | None = None,
) -> Order:
    """Put returned units of an order back into the stock.

    Args:
        lines: what came back; duplicates are merged. reference, staff, record: as for `ship`.
        damaged: they are kept as unavailable, not for sale.

    Returns:
        The order: returned when nothing is left to ship and everything has come back.

    Raises:
        TransitionRefused: nothing of it was shipped; it is cancelled instead.
        TooMany: more than was shipped and hasn't come back. And as `ship`.
    """

    def restock(step: _Step, chosen: Chosen) -> None:
        stock.restock(
            _lines(chosen), cause=step.cause, of=sale_of(order_id), damaged=damaged, actor=_name(staff)
        )
        for item, units in chosen:
            item.returned += units

    states = (State.PARTLY_SHIPPED, State.SHIPPED, State.RETURNED)
    step = _Step("return", "returned", order_id, reference, Kind.RETURNED, states, State.RETURNED)
    return step.take(lines, lambda item: item.returnable, restock, record, gives_back=True)


def cancel_units(
    order_id: UUID,
    lines: Iterable[tuple[str, int]] | None,
    reference: str,
    *,
    lost: bool = False,
    staff: Any = None,
    record: Callable[[], object] | None = None,
) -> Order:
    """Cancel units of a paid order that haven't left, all of them or some.

    Args:
        lines: what is cancelled; None: everything that hasn't left. reference, staff, record: as for `ship`.
        lost: the units are broken or gone; otherwise they are for sale again.

    Returns:
        The order: cancelled, shipped or returned when nothing is left to ship.

    Raises:
        TransitionRefused: it isn't paid, has ended, or has left as a whole.
        TooMany: more than is still here. And as `ship`.
    """

    def give_up(step: _Step, chosen: Chosen) -> None:
        if lost:
            for item, units in chosen:
                cause = f"{step.cause}:{item.product.sku}"
                stock.adjust(item.product.sku, -units, cause=cause, of=sale_of(order_id), actor=_name(staff))
        else:
            stock.cancel(_lines(chosen), cause=step.cause, of=sale_of(order_id), actor=_name(staff))
        for item, units in chosen:
            item.cancelled += units

    states = (State.PAID, State.PARTLY_SHIPPED)
    step = _Step("units", "cancelled", order_id, reference, Kind.UNITS_CANCELLED, states, State.CANCELLED)
    return step.take(lines, lambda item: item.open, give_up, record, gives_back=True)


class _Step:
    """One step of an order under a reference: locked, found repeated or not, done, and published once."""

    def __init__(
        self, name: str, verb: str, order_id: UUID, reference: str, kind: Kind, states: Sequence[State],
        to: State,
    ) -> None:  # fmt: skip
        require_reference(reference)
        self.verb, self.order_id, self.reference = verb, order_id, reference
        self.kind, self.states, self.to = kind, states, to
        self.cause = f"{name}:{order_id}:{reference}"

    def take(
        self,
        lines: Iterable[tuple[str, int]] | None,
        able: Callable[[OrderItem], int],
        move: Callable[[_Step, Chosen], None],
        record: Callable[[], object] | None,
        *,
        gives_back: bool = False,
    ) -> Order:
        """Do the step in a transaction of its own, and return the order.

        Args:
            able: units of an item that it can be about. move: moves the units, and counts them on the items.
            gives_back: the customer has fewer units after it.
        """
        cart = None if lines is None else merge_lines(lines)
        with change(self.cause):
            order = Order.objects.select_for_update(no_key=True).filter(pk=self.order_id).first()
            if order is None:
                raise OrderUnknown(self.order_id)
            reach("locked", order=order.pk)
            if self._is_repeated(cart):
                return order
            if order.state not in self.states:
                raise TransitionRefused(order.pk, order.state, self.to)
            items = items_of(order.pk)
            chosen = self._choose(items, cart, able)
            move(self, chosen)
            OrderItem.objects.bulk_update([item for item, _ in chosen], ("shipped", "returned", "cancelled"))
            if gives_back:
                uncount(order.customer, chosen)
            order.state = state_of(items)
            order.save(update_fields=("state",))
            publish(self.kind, order=order.pk, reference=self.reference, lines=_written(chosen))
            if record is not None:
                record()
            reach("written", order=order.pk)
        return order

    def _is_repeated(self, cart: Sequence[Line] | None) -> bool:
        """Return whether this was done before; refuse a reference that names other units."""
        moves = Movement.objects.filter(entry__of__cause=sale_of(self.order_id)).filter(
            Q(entry__cause=self.cause) | Q(entry__cause__startswith=f"{self.cause}:")
        )
        known = dict(moves.order_by().values_list("level__item__sku").annotate(units=Sum("quantity")))
        if not known:
            return False
        if cart is not None and dict(cart) != known:
            raise ReferenceUsed(self.reference, ", ".join(f"{units} × {sku}" for sku, units in known.items()))
        return True

    def _choose(
        self, items: Sequence[OrderItem], cart: Sequence[Line] | None, able: Callable[[OrderItem], int]
    ) -> Chosen:
        """Return the items that `cart` names with their units."""
        if cart is None:
            return [(item, able(item)) for item in items if able(item)]
        wanted = dict(cart)
        if missing := wanted.keys() - {item.product.sku for item in items}:
            raise InvalidLines(f"{min(missing)!r} is not in this order; name items of it")
        chosen = [(item, wanted[item.product.sku]) for item in items if item.product.sku in wanted]
        for item, units in chosen:
            if units > able(item):
                raise TooMany(item.product.sku, units, able(item), self.verb)
        return chosen


def state_of(items: Iterable[OrderItem]) -> State:
    """Return the state of a paid order that these items make."""
    items = list(items)
    shipped, returned = sum(item.shipped for item in items), sum(item.returned for item in items)
    if any(item.open for item in items):
        return State.PARTLY_SHIPPED if shipped else State.PAID
    if not shipped:
        return State.CANCELLED
    return State.RETURNED if returned == shipped else State.SHIPPED


def _lines(chosen: Chosen) -> list[tuple[str, int]]:
    return [(item.product.sku, units) for item, units in chosen]


def _written(chosen: Chosen) -> list[dict[str, object]]:
    return [{"sku": sku, "quantity": units} for sku, units in _lines(chosen)]


def _name(staff: Any) -> str:
    return "" if staff is None else str(staff)[:150]
