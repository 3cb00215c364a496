"""What a timer calls, as tasks of Celery; without Celery, call `inventory.reservations.expire_all`."""

from __future__ import annotations

from celery import shared_task

from inventory import reservations
from inventory.conf import aliases, read_alias


@shared_task(name="inventory.expire_reservations", ignore_result=True)
def expire_reservations() -> int:
    """End overdue reservations in the database of each alias."""
    return sum(map(reservations.expire_all, {read_alias(alias).database for alias in aliases()}))
