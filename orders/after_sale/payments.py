"""What a payment provider's event does to its order: once, however often it is sent."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from inventory.hooks import reach
from orders.after_sale import lifecycle
from orders.currencies import smallest_units
from orders.events.outbox import publish
from orders.models import Order, OrderEvent, PaymentEvent
from orders.transactions import change

logger = logging.getLogger(__name__)

Outcome = PaymentEvent.Outcome
State = Order.State

_REFUSED = (Outcome.TOO_LATE, Outcome.WRONG_CURRENCY, Outcome.WRONG_AMOUNT, Outcome.PAID_TWICE)
"""Outcomes after which the shop has money that it must give back."""


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment that a provider tells of.

    Args:
        event_id: the provider's id of the event. kind: its type.
        order_id: which order is paid. reference: the provider's id of the payment.
        amount: in the currency's smallest units: hundredths of a euro, whole yen.
        currency: three letters of ISO 4217, in any case.
    """

    event_id: str
    kind: str
    order_id: UUID
    reference: str
    amount: int
    currency: str


def receive(payment: Payment) -> tuple[PaymentEvent, bool]:
    """Apply a payment to its order, in one transaction with the record of the event.

    Returns:
        The record, and whether this event was received before; then nothing was done.

    Raises:
        OrderUnknown: there is no such order; nothing is recorded, so the provider's next attempt counts.
        Busy, DatabaseUnavailable, OutcomeUnknown: the next attempt counts as well.
    """
    with change(f"payment:{payment.event_id}"):
        # The order's row serializes its payments, and numbers what is published.
        order = Order.objects.select_for_update(no_key=True).filter(pk=payment.order_id).first()
        if order is None:
            raise lifecycle.OrderUnknown(payment.order_id)
        known = PaymentEvent.objects.filter(event_id=payment.event_id).first()
        if known is not None:
            return known, True
        # A provider sends several events about one payment: it is judged, and announced, once.
        judged = PaymentEvent.objects.filter(order=order, reference=payment.reference).order_by("pk").first()
        outcome = _judged_again(judged) if judged else _outcome(order, payment)
        if judged is None and outcome in _REFUSED:
            _tell_refusal(payment, outcome)
        event = _record(payment, outcome)
        reach("written", order=order.pk)
    if event.outcome == Outcome.TOO_LATE:
        lifecycle.try_to_expire(payment.order_id)  # its window may have ended without a sweep
    return event, False


def ignore(event_id: str, kind: str) -> tuple[PaymentEvent, bool]:
    """Record an event that is no payment; return it, and whether it was received before."""
    return PaymentEvent.objects.get_or_create(
        event_id=event_id, defaults={"kind": kind, "outcome": Outcome.IGNORED}
    )


def _judged_again(judged: PaymentEvent) -> PaymentEvent.Outcome:
    """Return what a further event about a payment does: money that was refused stays refused."""
    return Outcome(judged.outcome) if judged.outcome in _REFUSED else Outcome.ALREADY_PAID


def _outcome(order: Order, payment: Payment) -> PaymentEvent.Outcome:
    """Decide about a payment that is new, and pay the order if it can be."""
    if payment.currency.upper() != order.currency:
        return Outcome.WRONG_CURRENCY
    if payment.amount != smallest_units(order.total, order.currency):
        return Outcome.WRONG_AMOUNT
    if lifecycle.mark_paid(order.pk):
        return Outcome.PAID
    if order.state in (State.PLACED, State.CANCELLED, State.EXPIRED):
        return Outcome.TOO_LATE
    # Staff may have noted this very payment, but no second one.
    taken = PaymentEvent.objects.filter(order=order, outcome__in=(Outcome.PAID, Outcome.ALREADY_PAID))
    return Outcome.PAID_TWICE if taken.exists() else Outcome.ALREADY_PAID


def _tell_refusal(payment: Payment, outcome: PaymentEvent.Outcome) -> None:
    logger.error("payment %s of order %s refused: %s", payment.reference, payment.order_id, outcome)
    publish(
        OrderEvent.Kind.PAYMENT_REFUSED,
        order=payment.order_id,
        reason=outcome,
        payment=payment.reference,
        amount=payment.amount,
        currency=payment.currency.upper(),
    )


def _record(payment: Payment, outcome: PaymentEvent.Outcome) -> PaymentEvent:
    return PaymentEvent.objects.create(
        event_id=payment.event_id,
        kind=payment.kind,
        order_id=payment.order_id,
        reference=payment.reference,
        outcome=outcome,
    )
