"""Publishing events: a row in the outbox, in the transaction that makes the event happen.

`placed` is written by the statement that writes the order, so it costs no round trip.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from orders.models import OrderEvent


def publish(
    kind: OrderEvent.Kind, *, order: UUID | None = None, product: int | None = None, **data: object
) -> OrderEvent:
    """Write an event into the outbox; it is delivered after the commit, and only if there is one.

    Args:
        order, product: the key of what it is about, one of the two. Its row must be locked by this
            transaction, so that its events are numbered as they are committed.
        data: what belongs to it, as JSON; for example `lines=[{"sku": "mug", "quantity": 1}]`.

    Raises:
        TransactionManagementError: there is no open transaction; the event could outlive what it is about.

    Example:
        >>> with transaction.atomic():  # doctest: +SKIP
        ...     publish(OrderEvent.Kind.SHIPPED, order=order.pk, lines=[{"sku": "mug", "quantity": 1}])
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError(
            f"event {kind!r} of {order or product} was published outside a transaction; publish it inside "
            "the one that makes it happen"
        )
    return OrderEvent.objects.create(order_id=order, product_id=product, kind=kind, data=data)


def forget_delivered_events() -> int:
    """Delete events that were delivered more than `settings.EVENTS_KEPT` seconds ago; return how many."""
    moment = Now() - timedelta(seconds=settings.EVENTS_KEPT)
    # None is delivered before it is written: by that date they are found without reading the whole table.
    return OrderEvent.objects.filter(created_at__lt=moment, delivered_at__lt=moment).delete()[0]
