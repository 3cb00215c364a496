"""Celery tasks of orders; `CELERY_BEAT_SCHEDULE` says when. Each may be run twice, and by several workers."""

from __future__ import annotations

import logging

from celery import shared_task

from locking import distributed_lock
from orders import lifecycle, relay
from orders.audit import audit, counts
from orders.events import forget_delivered_events
from orders.http.idempotency import forget_old_keys

logger = logging.getLogger(__name__)


@shared_task
@distributed_lock(key="'orders:expire'", wait=0, on_conflict="skip", atomic=False)
def expire_orders() -> int:
    """End the orders whose payment window is over, one sweep at a time; returns how many it were."""
    expired = 0
    while ended := lifecycle.expire_overdue():
        expired += ended
    return expired


@shared_task
def relay_events() -> int:
    """Deliver the events of orders that are due; returns how many. Several workers may run it at once."""
    return relay.relay_all()


@shared_task
def forget_events() -> int:
    """Delete events that were delivered long ago; returns how many."""
    return forget_delivered_events()


@shared_task
def forget_keys() -> int:
    """Delete idempotency keys that nobody may repeat any more; returns how many."""
    return forget_old_keys()


@shared_task
def audit_stock() -> dict[str, int]:
    """Ask every invariant, and log an error when one is broken; returns the broken rows of each."""
    found = audit()
    for difference in found:
        logger.error("an invariant of the stock is broken: %s", difference)
    return counts(found)
