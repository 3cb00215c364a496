"""The relay: delivers the events of the outbox to the signals of `orders.events.signals`.

At least once: an event is marked only after its receivers have returned. A relay that dies before that leaves
its claim behind, which ends by itself; then another relay delivers the event again, with the same id. Events
of such a claim are delivered one at a time: whichever of them killed the relay holds up no other order.

In order within one order or product: only its oldest undelivered event can be claimed. Any number of relays
may run; rows that one of them is claiming are skipped by the others (SKIP LOCKED).

Receivers run outside any transaction, so they may open their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from django.db import connection, transaction

from inventory.hooks import reach
from orders.events.signals import SIGNALS
from orders.models import OrderEvent

logger = logging.getLogger(__name__)

BATCH: Final = 100
LEASE: Final = 60.0
"""Seconds for which a relay may deliver what it has claimed."""
LONGEST_PAUSE: Final = 3600
"""Seconds between two attempts at most; the first pause is one second, and each is twice the last."""

# A claim takes the error of the attempt before it away: without an error it isn't answered for.
# Only the head of an order's queue is claimed; while it is claimed or failing, the events behind it wait.
_FIRST_OF = """NOT EXISTS (SELECT FROM orders_orderevent AS earlier
     WHERE earlier.{0} = event.{0} AND earlier.id < event.id AND earlier.delivered_at IS NULL)"""
_HEAD = f"{_FIRST_OF.format('order_id')} AND {_FIRST_OF.format('product_id')}"
_CLAIM = f"""
WITH claimed AS MATERIALIZED (
    SELECT id FROM orders_orderevent AS event
     WHERE delivered_at IS NULL AND due_at <= statement_timestamp() AND {_HEAD}
       AND (attempts > 0 AND error = '') = %s
     ORDER BY due_at, id LIMIT %s FOR UPDATE SKIP LOCKED)
UPDATE orders_orderevent AS event
   SET due_at = statement_timestamp() + %s * interval '1 second', attempts = attempts + 1, error = ''
  FROM claimed WHERE event.id = claimed.id RETURNING event.id
"""  # noqa: S608
_DELIVERED = """
UPDATE orders_orderevent SET delivered_at = statement_timestamp(), error = '' WHERE id = ANY(%s)
"""
_FAILED = """
UPDATE orders_orderevent SET error = %s,
       due_at = statement_timestamp() + least(%s, 2 ^ least(attempts - 1, 30)) * interval '1 second'
 WHERE id = %s AND delivered_at IS NULL
"""


def relay(limit: int = BATCH, *, lease: float = LEASE) -> int:
    """Deliver the next events that are due, at most one of each order; return how many were claimed.

    Args:
        limit: events to claim at once. They are marked together, so that many may be delivered twice when
            the process dies.
        lease: seconds after which others may deliver what this call has claimed and not marked. A receiver
            that takes longer than this may get an event twice at the same time.

    Raises:
        RuntimeError: a transaction is open here, in which receivers would run.
    """
    # What a relay has claimed and not answered for may be what it died of: it comes first and alone, so that
    # no other order's event dies with it.
    return _relay(1, lease, again=True) + _relay(limit, lease)


def _relay(limit: int, lease: float, *, again: bool = False) -> int:
    until = monotonic() + lease
    claimed = _claim(limit, lease, again=again)
    if not claimed:
        return 0
    reach("claimed")
    delivered: list[int] = []
    for event in claimed:
        if monotonic() > until:
            break  # the claim has ended: another relay delivers the rest
        if error := _deliver(event):
            _run(_FAILED, [error, LONGEST_PAUSE, event.pk])
        else:
            delivered.append(event.pk)
    reach("delivered")
    _run(_DELIVERED, [delivered])
    return len(claimed)


def relay_all() -> int:
    """Deliver every event that is due, batch after batch; return how many were claimed."""
    relayed = 0
    while claimed := relay():
        relayed += claimed
    return relayed


def _claim(limit: int, lease: float, *, again: bool) -> list[OrderEvent]:
    """Claim events that are due; `again`: those whose last claim ended without an answer.

    Raises:
        RuntimeError: a transaction is open; a rollback would take the claim away, and what receivers wrote.
    """
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute(_CLAIM, [again, limit, lease])
        keys = [key for (key,) in cursor.fetchall()]
    return list(OrderEvent.objects.filter(pk__in=keys).select_related("order", "product").order_by("pk"))


def _deliver(event: OrderEvent) -> str:
    """Call every receiver of the event; return what went wrong, or an empty text."""
    if event.kind not in SIGNALS:  # written by a newer version of the shop
        return f"this version knows no event of the kind {event.kind!r}"
    about = {"order": event.order} if event.order else {"product": event.product}
    answers = SIGNALS[event.kind].send_robust(OrderEvent, event=event, **about)
    failed = [(receiver, error) for receiver, error in answers if isinstance(error, Exception)]
    for receiver, error in failed:
        logger.error("event %s of %s: %r failed: %r", event.pk, event.subject, receiver, error)
    return "; ".join(
        f"{getattr(receiver, '__qualname__', receiver)}: {error!r}" for receiver, error in failed
    )


def _run(statement: str, values: Sequence[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
