"""Writes to the audit what the library found or did by itself, beside what operators did."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from django.db import DatabaseError, connections, router

from locking.models import LockEvent
from locking.signals import LockEvent as Sent
from locking.signals import lock_deadlocked, lock_orphaned

logger = logging.getLogger(__name__)


def write_event(sender: Any, event: Sent, **kwargs: Any) -> None:
    """Write the row of a deadlock, or of a release for a dead process; without a database the log must do."""
    backend, _, kind = event.backend.partition("/")
    same = event._asdict() | {"backend": backend, "kind": kind or "lock", "holder": event.holder or ""}
    hold, actions = SimpleNamespace(**same), LockEvent.Action
    if event.outcome == "deadlock":
        given_up = f"gave up after {event.waited or 0.0:.3f} s"
        row = LockEvent.of(hold, actions.DEADLOCK, event.reason or "", "deadlock detection", given_up)
    else:
        reason = f"the process {event.holder} has ended"
        row = LockEvent.of(hold, actions.DEAD_PROCESS, reason, "process liveness")
    alias = router.db_for_write(LockEvent)
    try:
        row.save(using=alias)
    except DatabaseError as error:
        logger.warning("the %s of %r has no audit row: %s", event.outcome, event.name, error)
        connections[alias].close()


def listen() -> None:
    """Have every deadlock of this process written, and every release for a dead one."""
    for signal in (lock_deadlocked, lock_orphaned):
        signal.connect(write_event, dispatch_uid="locking.audit")
