"""Celery tasks; `CELERY_BEAT_SCHEDULE` says when. Each may be run twice, and by several workers."""

from __future__ import annotations

import logging

from celery import shared_task

from inventory import reservations as promises
from inventory import stock
from locking import distributed_lock
from orders.after_sale import lifecycle
from orders.audit import audit, counts
from orders.catalog import low_stock
from orders.events import outbox, relay
from orders.http.idempotency import forget_old_keys
from orders.selling.reservations import forget_old_baskets

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
@distributed_lock(key="'orders:sweep-reservations'", wait=0, on_conflict="skip", atomic=False)
def sweep_reservations() -> int:
    """Free the units of overdue reservations, one sweep at a time; returns how many it were."""
    freed = 0
    while ended := promises.expire(stock.using):
        freed += ended
    return freed


@shared_task
def notice_low_stock() -> int:
    """Publish which products have become low or are back; returns how many events."""
    return low_stock.notice_low_stock()


@shared_task
def relay_events() -> int:
    """Deliver the events that are due; returns how many. Several workers may run it at once."""
    return relay.relay_all()


@shared_task
def forget_events() -> int:
    """Delete events that were delivered long ago; returns how many."""
    return outbox.forget_delivered_events()


@shared_task
def forget_keys() -> int:
    """Delete idempotency keys and baskets that are of no use any more; returns how many."""
    return forget_old_keys() + forget_old_baskets()


@shared_task
def audit_orders() -> dict[str, int]:
    """Ask every invariant, and log an error when one is broken; returns the broken rows of each."""
    found = audit()
    for difference in found:
        logger.error("an invariant of the orders is broken: %s", difference)
    return counts(found)
