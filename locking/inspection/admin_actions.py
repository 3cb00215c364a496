"""Admin actions on another's lock: break it or extend it. Both are audited.

Breaking a lock doesn't stop its holder. So the fence is advanced first: from then on the database refuses
the old holder's fenced writes. Then the lock is taken away, from the owner that was shown only.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from django.db import OperationalError, connections, router, transaction

from locking.backends.capabilities import backend_of, releaser_of
from locking.core.handler import locks
from locking.inspection.columns import HeldLock
from locking.keys.names import Seconds, check_ttl
from locking.models import Fence, LockEvent
from locking.signals import lock_force_released, notify
from locking.transactions.fence import forbid
from locking.utils.databases import VENDORS, limit_waits, restore_waits, was_locked_out

__all__ = ["Result", "extend_held", "force_release"]

TIMEOUT: Final = 3.0
"""Seconds that an operator waits for a transaction which the old holder has open behind its fence."""

UNCONFIRMED: Final = "not confirmed: the backend's answer is missing, so it may not have been done"
"""In the audit, of an action whose effect is unknown."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an admin action."""

    done: bool  #: whether the owner still held the lock, so that there was something to do
    event: LockEvent  #: its audit row


def force_release(
    hold: HeldLock, *, reason: str, actor: str = "", databases: Sequence[str] = ("default",)
) -> Result:
    """Break this hold, and no newer one of the same lock. It doesn't stop what the old holder is doing.

    Args:
        hold: as it was shown.
        reason: why; it is kept.
        actor: who did it; empty = the user of the operating system.
        databases: those in which the fence is advanced, so that the old holder's fenced writes are refused.

    Raises:
        ValueError: no reason. LockNotSupported: the backend can't. BackendUnavailable: it didn't answer.

    Example:
        >>> force_release(held_locks().rows[0], reason="worker 7 was killed")  # doctest: +SKIP
    """
    if not (reason := reason.strip()):
        raise ValueError("say why this lock is broken: the reason is kept in the audit")
    engine, actor = releaser_of(locks[hold.backend], hold.kind), actor or _user()  # both may fail
    fences = "; ".join(_advance_fence(hold, database) for database in databases)
    event = LockEvent.of(hold, LockEvent.Action.FORCE_RELEASE, reason, actor, fences)
    result = _carry_out(event, lambda: engine.force_release(hold.key, hold.owner))
    if result.done:
        facts = {name: getattr(hold, name) for name in ("name", "key", "backend", "owner", "token")}
        notify(lock_force_released, outcome="force_released", **facts)
    return result


def extend_held(hold: HeldLock, ttl: Seconds, *, reason: str = "", actor: str = "") -> Result:
    """Keep others out for `ttl` seconds from now; the holder itself goes on counting by its own clock.

    A lease that was meanwhile extended for longer keeps that: none is ever shortened.

    Raises:
        ValueError: a ttl that can't be one, or that is shorter than what was left.
    """
    seconds = check_ttl(ttl)
    if hold.remaining is None or seconds <= hold.remaining:
        left = "no end" if hold.remaining is None else f"{hold.remaining:.0f} s left"
        raise ValueError(f"the lock {hold.name!r} has {left}: {seconds:g} s wouldn't extend it")
    engine = backend_of(locks[hold.backend], hold.kind)
    event = LockEvent.of(
        hold, LockEvent.Action.EXTEND, reason.strip(), actor or _user(), f"ttl {seconds:g} s"
    )
    return _carry_out(event, lambda: engine.extend(hold.key, hold.owner, seconds))


def _carry_out(event: LockEvent, step: Callable[[], bool]) -> Result:
    """Do `step` between the writing of its audit row and the COMMIT: what can't be audited isn't done, and
    what may have been done is audited.
    """
    using, unconfirmed = router.db_for_write(LockEvent), None
    with transaction.atomic(using=using):
        event.save()
        try:
            event.done = step()
        except BaseException as error:
            if isinstance(error, Exception) and not getattr(error, "sent", False):
                raise  # it hasn't arrived; a request whose answer was lost, or wasn't waited for, may have
            unconfirmed, event.details = error, "; ".join(filter(None, [event.details, UNCONFIRMED]))
        if unconfirmed or not event.done:
            transaction.set_rollback(True, using=using)  # the row says otherwise
    if unconfirmed or not event.done:
        event.pk, event._state.adding = None, True
        event.save()
    if unconfirmed:
        raise unconfirmed
    return Result(event.done, event)


def _advance_fence(hold: HeldLock, database: str) -> str:
    """Refuse the old holder's token in `database`, and say what came of it."""
    connection = connections[database]
    if not hold.token:
        return f"fence in {database!r}: unchanged, this hold has no token"
    if connection.vendor not in VENDORS:
        return f"fence in {database!r}: there is none on {connection.display_name}"
    if Fence._meta.db_table not in connection.introspection.table_names():  # a router keeps it elsewhere
        return f"fence in {database!r}: there is no table {Fence._meta.db_table}"
    try:
        with transaction.atomic(using=database):
            limit_waits(connection, TIMEOUT)
            try:
                advanced = forbid(hold.key, hold.token, using=database)
            finally:
                restore_waits(connection)
    except OperationalError as error:
        if not was_locked_out(error):
            raise
        return f"fence in {database!r}: NOT advanced, the old holder's transaction is still open"
    return f"fence in {database!r}: " + ("advanced" if advanced else "a newer holder was there already")


def _user() -> str:
    try:
        return f"os:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no entry in passwd
        return f"os:{os.getuid()}"
