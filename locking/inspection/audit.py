"""Writes the deadlocks that were found to the audit, beside what operators did."""

from __future__ import annotations

import logging
from typing import Any

from django.db import DatabaseError, connections, router

from locking.models import LockEvent
from locking.signals import LockEvent as Sent
from locking.signals import lock_deadlocked

logger = logging.getLogger(__name__)


def write_deadlock(sender: Any, event: Sent, **kwargs: Any) -> None:
    """Write the row of one deadlock, in the thread that sends signals; without a database the log must do."""
    backend, _, kind = event.backend.partition("/")
    row = LockEvent(
        action=LockEvent.Action.DEADLOCK,
        actor="deadlock detection",
        reason=event.reason or "",
        backend=backend,
        name=event.name,
        key=event.key,
        kind=kind or "lock",
        owner=event.owner,
        holder=event.holder or "",
        details=f"gave up after {event.waited or 0.0:.3f} s",
    )
    alias = router.db_for_write(LockEvent)
    try:
        row.save(using=alias)
    except DatabaseError as error:
        logger.warning("the deadlock of %r has no audit row: %s", event.name, error)
        connections[alias].close()


def listen() -> None:
    """Have every deadlock of this process written."""
    lock_deadlocked.connect(write_deadlock, dispatch_uid="locking.audit")
