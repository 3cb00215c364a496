"""Celery tasks of the stock; `CELERY_BEAT_SCHEDULE` says when. Each may be run twice, by several workers."""

from __future__ import annotations

import logging

from celery import shared_task
from django.conf import settings

from inventory import reservations
from inventory.low_stock import notice_low_stock
from inventory.strategies import STRATEGIES, Reconciled, Strategy
from locking import BackendError, distributed_lock

logger = logging.getLogger(__name__)


@shared_task
@distributed_lock(key="'stock:sweep-reservations'", wait=0, on_conflict="skip", atomic=False)
def sweep_reservations() -> int:
    """Free the units of overdue reservations, one sweep at a time; returns how many it were."""
    freed = 0
    while ended := reservations.expire_overdue():
        freed += ended
    return freed


@shared_task
@distributed_lock(key="'stock:low'", wait=0, on_conflict="skip", atomic=False)
def tell_low_stock() -> int:
    """Send `low_stock` and `back_in_stock` for what went unnoticed: a worker died after its commit."""
    return notice_low_stock()


@shared_task
@distributed_lock(key="'stock:reconcile'", wait=0, on_conflict="skip", atomic=False)
def reconcile() -> dict[str, int]:
    """Let every strategy settle what dead buyers left; returns by strategy how many sales it settled."""
    settled = {name: _reconciled(strategy()) for name, strategy in STRATEGIES.items() if _settles(strategy)}
    return {name: done.settled + done.voided for name, done in settled.items()}


def _settles(strategy: type[Strategy]) -> bool:
    return strategy.reconcile is not Strategy.reconcile and not strategy.unconfigured()


def _reconciled(strategy: Strategy) -> Reconciled:
    try:
        return strategy.reconcile(settings.RECONCILE_OLDER_THAN)
    except BackendError as error:
        logger.warning("%s can't be reconciled now, the next run will: %s", strategy.name, error)
        return Reconciled()
