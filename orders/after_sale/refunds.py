"""Money that goes back to the customer: in parts, each once, never more than was paid."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

from django.db.models import F, Sum

from inventory.hooks import reach
from orders.after_sale.fulfillment import ReferenceUsed, require_reference
from orders.after_sale.lifecycle import OrderUnknown
from orders.currencies import is_whole
from orders.events.outbox import publish
from orders.models import Order, OrderEvent
from orders.selling.refusals import Refused
from orders.transactions import change


class TooMuch(Refused, ValueError):
    """The amount can't be refunded.

    Args:
        amount: that was named. left: what was paid and not refunded yet. currency: of both.
    """

    def __init__(self, amount: Decimal, left: Decimal, currency: str) -> None:
        self.amount, self.left, self.currency = amount, left, currency
        super().__init__(f"{amount} {currency} can't be refunded; at most {left} {currency} can be")


def refund(
    order_id: UUID, amount: Decimal, reference: str, *, record: Callable[[], object] | None = None
) -> Order:
    """Note that money of a paid order goes back; a receiver of `order_refunded` has it transferred.

    Args:
        amount: in the order's currency. reference: names the refund, as for `ship`. The same one again
            changes nothing; with another amount it is refused.
        record: writes what belongs to it, in its transaction; not called for a repetition.

    Raises:
        TooMuch: it wasn't paid, or less is left of it, or the currency has no such amount.
        ReferenceUsed: the reference names another amount of this order.
        ValueError, OrderUnknown, Busy, DatabaseUnavailable, OutcomeUnknown: as for `ship`.

    Example:
        >>> refund(order.pk, Decimal("2.50"), "complaint-7")  # doctest: +SKIP
    """
    require_reference(reference)
    with change(f"refund:{order_id}:{reference}"):
        # The order's row serializes its refunds, and numbers what is published.
        order = Order.objects.select_for_update(no_key=True).filter(pk=order_id).first()
        if order is None:
            raise OrderUnknown(order_id)
        known = order.refunds.filter(reference=reference).first()
        if known is not None and known.amount != amount:
            raise ReferenceUsed(reference, f"{known.amount} {order.currency}")
        if known is None:
            _refund(order, amount, reference)
            if record is not None:
                record()
        reach("written", order=order_id)
    return order


def _refund(order: Order, amount: Decimal, reference: str) -> None:
    left = refundable(order)
    exact = amount.is_finite() and amount == amount.quantize(
        Decimal(1 if is_whole(order.currency) else ".01")
    )
    if not exact or not 0 < amount <= left:
        raise TooMuch(amount, left, order.currency)
    order.refunds.create(amount=amount, reference=reference)
    publish(
        OrderEvent.Kind.REFUNDED,
        order=order.pk,
        reference=reference,
        amount=str(amount),
        currency=order.currency,
    )


def refunded(order: Order) -> Decimal:
    """Return what went back of an order's money."""
    return order.refunds.aggregate(amount=Sum("amount"))["amount"] or Decimal(0)


def refundable(order: Order) -> Decimal:
    """Return what was paid and not refunded yet."""
    return order.total - refunded(order) if order.paid_at else Decimal(0)


def owed(order: Order) -> Decimal:
    """Return the price of the units that came back or never left, as far as it isn't refunded yet."""
    price = F("unit_price") * (F("returned") + F("cancelled"))
    given_up = order.items.aggregate(amount=Sum(price))["amount"] or Decimal(0)
    return min(max(given_up - refunded(order), Decimal(0)), refundable(order))
