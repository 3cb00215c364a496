"""Locks and open transactions: what is refused, and how a lock is let go after its transaction.

A lock that is acquired inside a transaction and released before its COMMIT protects nothing: the next holder
reads what was there before. Django reports a commit, never a rollback, so nothing can keep a lock until a
transaction of someone else's has ended: the lock belongs outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import AsyncToSync, sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.core.lease import Lease
from locking.exceptions import LockTransactionError

logger = logging.getLogger(__name__)


async def in_calling_thread(step: Callable[[], None]) -> None:
    """Run `step` in the synchronous code that has called this coroutine: its thread has the transactions."""
    # Where there is no such code, nothing is open: Django's transactions don't last over an await.
    if getattr(AsyncToSync.executors, "current", None) is None:
        return
    try:
        await sync_to_async(step)()
    except RuntimeError:
        logger.debug("the synchronous caller has ended, and its transactions with it")


def section_of(connection: BaseDatabaseWrapper) -> Any:
    """Return the locked transaction that a connection is in, or None."""
    blocks = open_blocks(connection)
    return getattr(blocks[0], "section", None) if blocks else None


def open_blocks(connection: BaseDatabaseWrapper) -> list[Any]:
    """Return the open atomic blocks, without those that TestCase wraps around each test."""
    blocks: list[Any] = connection.atomic_blocks
    return blocks and [block for block in blocks if not block._from_testcase]


def connections_in_transaction() -> list[BaseDatabaseWrapper]:
    """Return those of this thread's connections that have an open transaction."""
    return [connection for connection in connections.all(initialized_only=True) if open_blocks(connection)]


def refuse_open_transactions(names: Sequence[str]) -> None:
    """Raise LockTransactionError if a database of this thread has an open transaction: it ends too late."""
    # As `connections.all(initialized_only=True)`, which is twice as slow: every acquire asks.
    present: Any = connections._connections  # type: ignore[attr-defined]
    for alias in connections.settings:
        if (connection := getattr(present, alias, None)) is None:
            continue
        if connection.in_atomic_block:
            if open_blocks(connection):
                raise LockTransactionError(
                    f"a transaction is open on database {alias!r}, and the lock {shown(names)}"
                    " would be released before it commits: the next holder would read old data."
                    f" {_way_out(connection)}"
                )
        elif not (connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"]):
            raise LockTransactionError(
                f"autocommit is off on database {alias!r}: the lock {shown(names)} would be"
                " released before anything commits; set AUTOCOMMIT to True: the lock opens the transaction"
            )


def _way_out(connection: BaseDatabaseWrapper) -> str:
    if section := section_of(connection):
        held = shown(sorted(section.names))
        return f"Take every name and database in the outermost locked transaction; it has only {held}"
    advice = (
        "Put the lock outside: @distributed_lock above @transaction.atomic, or locked_transaction(…) instead"
        " of `with transaction.atomic()` around it (on_open_transaction='ignore' releases it before)"
    )
    if connection.settings_dict["ATOMIC_REQUESTS"]:
        advice += (
            f". ATOMIC_REQUESTS is on for {connection.alias!r}: decorate what the URLconf calls (for a class"
            " method_decorator on 'dispatch'), outermost, and name the database in using=; or take that view"
            " out with Django's transaction.non_atomic_requests"
        )
    return advice


def shown(names: Sequence[str]) -> str:
    """Return names as an error shows them."""
    return ", ".join(repr(name) for name in names)


def let_go(lease: Lease, *, release: bool = True) -> None:
    """Release a lock after its transaction has ended; a failure is not the transaction's error."""
    try:
        lease.release() if release else lease.leave_to_expire()
    except BaseException as failure:
        # What became of the transaction goes before a failure, as a body's own error does.
        if not lease._is_settled(failure, body_error=failure):
            raise
