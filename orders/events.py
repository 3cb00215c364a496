"""Publishing events of an order: a row in the outbox, in the transaction that makes the event happen.

`placed` is written by the statement that writes the order (`orders.order_writer`), so it costs no round trip.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from orders.event_models import OrderEvent

Kind = OrderEvent.Kind


def publish(order_id: UUID, kind: OrderEvent.Kind, **data: object) -> OrderEvent:
    """Write an event into the outbox; it is delivered after the commit, and only if there is one.

    Args:
        order_id: the order's. Its row must be locked by this transaction, so that the events of one order
            are numbered as they are committed.
        kind: what happened.
        data: what belongs to it, as JSON; for example `lines=[{"sku": "mug", "quantity": 1}]`.

    Raises:
        TransactionManagementError: there is no open transaction; the event could outlive what it tells.

    Example:
        >>> with transaction.atomic():  # doctest: +SKIP
        ...     publish(order.pk, OrderEvent.Kind.SHIPPED, lines=[{"sku": "mug", "quantity": 1}])
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"event {kind!r} of order {order_id} was published outside a transaction; publish it inside the "
            "one that changes the order"
        )
    return OrderEvent.objects.create(order_id=order_id, kind=kind, data=data)


def forget_delivered_events() -> int:
    """Delete events that were delivered more than `settings.EVENTS_KEPT` seconds ago; return how many."""
    kept = timedelta(seconds=settings.EVENTS_KEPT)
    return OrderEvent.objects.filter(delivered_at__lt=Now() - kept).delete()[0]
