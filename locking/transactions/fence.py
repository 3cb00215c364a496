"""The fence: the database itself refuses the work of a holder that has been overtaken.

For each name one row keeps the highest token that was used, and by whom. A fenced transaction writes it
first, before anything is read. An older holder finds its token too low; an equal one of another owner (a
Redis that forgot may mint a number twice) is refused too. Until the transaction ends its row lock keeps the
next holder's transaction out, so what is read behind the fence can't be overtaken any more.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, OperationalError, ProgrammingError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import atomic

from locking.core.lease import Lease, SingleLease
from locking.exceptions import LockNotAcquired, LockNotSupported, StaleFencingToken
from locking.utils import databases
from locking.utils.clock import jittered, now

__all__ = ["forbid"]

logger = logging.getLogger(__name__)

SHORTEST_TIMEOUT: Final = 1.0  # seconds; below it an ordinary pause would count as a frozen holder

UPSERT: Final = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, owner = excluded.owner, mark = excluded.mark,
       updated_at = excluded.updated_at
 WHERE locking_fence.token < excluded.token
    OR (locking_fence.token = excluded.token AND locking_fence.owner = excluded.owner)
"""
UPDATE: Final = """
UPDATE locking_fence SET token = %s, owner = %s, mark = %s, updated_at = %s
 WHERE name = %s AND (token < %s OR (token = %s AND owner = %s))
"""
MAKE: Final = """
INSERT IGNORE INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, 0, '', '', %s)
"""
FORBID: Final = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, %s, '', '', %s)
ON CONFLICT (name) DO UPDATE SET owner = '', token = excluded.token
 WHERE locking_fence.token <= excluded.token
"""
FORBID_MADE: Final = "UPDATE locking_fence SET owner = '', token = %s WHERE name = %s AND token <= %s"


def require_fence(aliases: Iterable[str]) -> None:
    """Raise unless these databases can check a token; no I/O."""
    if not apps.is_installed("locking"):
        raise ImproperlyConfigured(
            "fenced=True keeps the tokens in a table: add 'locking' to INSTALLED_APPS, then manage.py migrate"
        )
    for alias in aliases:
        if connections[alias].vendor not in databases.VENDORS:
            raise LockNotSupported(
                f"fenced=True: the database {alias!r} is {connections[alias].display_name}; the fence"
                " supports PostgreSQL, MySQL, MariaDB and SQLite; check lease.fencing_token yourself instead"
            )


def fence_timeout(lease: SingleLease) -> float:
    """Seconds that a frozen holder's transaction may block the next: `FENCE_TIMEOUT`, or else the ttl."""
    chosen = lease.backend.settings.fence_timeout
    return max(SHORTEST_TIMEOUT, lease.ttl) if chosen is None else chosen


def prepare(alias: str, lease: Lease) -> None:
    """Do what must be done before the transaction begins: MySQL's rows are made beforehand."""
    # Made inside, two transactions that make the same row would deadlock, and ON DUPLICATE KEY couldn't tell
    # a stale token from a fresh one.
    connection = connections[alias]
    if connection.vendor != "mysql":
        return
    names = [databases.fence_name(single.key, "mysql") for single in lease.leases]
    with connection.cursor() as cursor, _explained(connection):
        cursor.execute("SELECT name FROM locking_fence WHERE name IN %s", [names])
        present = {row[0] for row in cursor.fetchall()}
        for name in names:
            if name not in present:
                cursor.execute(MAKE, [name, databases.timestamp(connection)])


def advance(alias: str, lease: Lease) -> CommitMarker:
    """Put this lease's tokens into the fence, before anything is read; return what tells of the COMMIT."""
    # The rows of several names are taken in sorted order, one at a time.
    connection, mark = connections[alias], secrets.token_hex(16)
    timeout = min(fence_timeout(single) for single in lease.leases)
    with _explained(connection):
        databases.refuse_snapshots(connection)
        databases.limit_waits(connection, timeout)
        try:
            for single in lease.leases:
                _advance_one(connection, single, mark)
        finally:
            databases.restore_waits(connection)
    first = lease.leases[0]
    return CommitMarker(alias, databases.fence_name(first.key, connection.vendor), first.token, mark, timeout)


def _advance_one(connection: BaseDatabaseWrapper, lease: SingleLease, mark: str) -> None:
    begun = now()
    try:
        fresh = _write(connection, lease.key, lease.token, lease.owner, mark)
    except OperationalError as error:
        if not databases.was_locked_out(error):
            raise
        raise LockNotAcquired(
            lease.name,
            waited=now() - begun,
            backend=lease.backend.alias,
            retry_after=fence_timeout(lease),
            reason=f"the transaction of an older holder is still open on database {connection.alias!r}",
        ) from error
    if fresh:
        return
    with connection.cursor() as cursor:
        name = databases.fence_name(lease.key, connection.vendor)
        cursor.execute("SELECT token FROM locking_fence WHERE name = %s", [name])
        (seen,) = cursor.fetchone()
    lease.lose()
    raise StaleFencingToken(
        f"the lock {lease.name!r} has token {lease.token}, but the database {connection.alias!r} has seen"
        f" {seen} of a later holder: this holder was overtaken, and its writes are refused"
    )


def _write(connection: BaseDatabaseWrapper, key: str, token: int, owner: str, mark: str) -> bool:
    """Write the row where the rule allows it; always a physical change, so that snapshots notice it."""
    name, at = databases.fence_name(key, connection.vendor), databases.timestamp(connection)
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(UPDATE, [token, owner, mark, at, name, token, token, owner])
        else:
            cursor.execute(UPSERT, [name, token, owner, mark, at])
        return bool(cursor.rowcount == 1)


def forbid(key: str, token: int, using: str = "default") -> bool:
    """Let no holder with this token, or an older one, write any more: what breaking a lock by force needs.

    It waits for a transaction that the broken holder has open behind its fence; that one still counts. The
    row keeps its mark, by which a COMMIT whose answer was lost is distinguished from one that never happened.

    Args:
        key: of the lock, as its backend stores it (`lease.key`).
        token: the broken holder's; the next holder's is higher, and so passes.
        using: database alias.

    Returns:
        False when a newer holder has been here already, so that nothing had to be done.

    Example:
        >>> forbid("order:42", 1763720000000000)  # doctest: +SKIP
        True
    """
    connection = connections[using]
    name = databases.fence_name(key, connection.vendor)
    with atomic(using), connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(MAKE, [name, databases.timestamp(connection)])
            cursor.execute(FORBID_MADE, [token, name, token])
        else:
            cursor.execute(FORBID, [name, token, databases.timestamp(connection)])
        return bool(cursor.rowcount == 1)


@contextmanager
def _explained(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Explain what to do when the fence's table is missing."""
    try:
        yield
    except ProgrammingError as error:
        error.add_note(
            f"fenced=True needs the table of the app locking: manage.py migrate --database {connection.alias}"
        )
        raise


# --- what became of a COMMIT whose answer was lost: the row has the mark of the last transaction ------------

TRIES: Final = 5  # how often a database that doesn't answer is asked, over about a second and a half

# Touches the row without changing it: unlike a SELECT it also waits for a row that is just being inserted.
TOUCH: Final = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, 0, '', '', %s)
ON CONFLICT (name) DO UPDATE SET mark = locking_fence.mark RETURNING token, mark
"""
LOCK: Final = "SELECT token, mark FROM locking_fence WHERE name = %s FOR UPDATE"

NOTHING: Final = "the fence row says that nothing was committed"
UNSETTLED: Final = "whether it was committed isn't known: the fence row couldn't tell"


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """The row that tells whether a transaction was committed; its mark is of this transaction alone."""

    alias: str
    name: str
    token: int
    mark: str
    timeout: float

    def was_committed(self) -> bool | None:
        """Ask over a new connection, which waits for the transaction's end; None: a newer holder was here."""
        connection = connections[self.alias].copy()
        # The connections of Django's pool broke with the one that was lost. The options are the copy's own.
        connection.settings_dict["OPTIONS"].pop("pool", None)
        with closing(connection):
            connection.set_autocommit(False)
            try:
                databases.limit_waits(connection, self.timeout)
                with connection.cursor() as cursor:
                    if connection.vendor == "mysql":
                        cursor.execute(LOCK, [self.name])
                    else:
                        cursor.execute(TOUCH, [self.name, databases.timestamp(connection)])
                    token, mark = cursor.fetchone()
            finally:
                if connection.connection is not None and connection.is_usable():
                    connection.rollback()
        if mark == self.mark:
            return True
        return None if token > self.token else False


def resolve(marker: CommitMarker, error: Error) -> bool | None:
    """Return whether a COMMIT that ended in `error` took effect, None if unknown; a note says if not."""
    committed = None
    for attempt in range(TRIES):
        try:
            committed = marker.was_committed()
            break
        except Error as silence:
            logger.warning("can't tell yet what became of a COMMIT on %r: %s", marker.alias, silence)
            if databases.was_locked_out(silence):
                break  # it was waited for long enough
        time.sleep(jittered(attempt, first=0.1, cap=1.0))
    if committed:
        logger.warning("the answer to a COMMIT on database %r was lost; it was committed", marker.alias)
    else:
        error.add_note(NOTHING if committed is False else UNSETTLED)
    return committed
