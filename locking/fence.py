"""The fence: the database itself refuses the work of a holder that has been overtaken.

For each name one row keeps the highest token that was used, and by whom. A fenced transaction writes it
first, before anything is read. An older holder finds its token too low; an equal one of another owner (a
Redis that forgot may mint a number twice) is refused too. Until the transaction ends its row lock keeps the
next holder's transaction out, so what is read behind the fence can't be overtaken any more.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, Error, InterfaceError, OperationalError, ProgrammingError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import atomic
from django.utils import timezone

from locking.backoff import jittered
from locking.clock import now
from locking.exceptions import LockNotAcquired, LockNotSupported, LockTransactionError, StaleFencingToken
from locking.lease import Lease, SingleLease

logger = logging.getLogger("locking")

VENDORS: Final = ("postgresql", "mysql", "sqlite")
MAX_NAME: Final = 255
SHORTEST_TIMEOUT: Final = 1.0
"""Seconds; below it an ordinary pause would count as a frozen holder."""

OVERTAKEN: Final = frozenset({"40001", "40P01", 1213, 1020})
"""Serialization failures and deadlocks: the database rolled back, and the whole work may be done again."""
LOCKED_OUT: Final = frozenset({"55P03", 1205})
SETTLING_TRIES: Final = 5

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
# Touches the row without changing it: unlike a SELECT it also waits for a row that is just being inserted.
WITNESS: Final = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, 0, '', '', %s)
ON CONFLICT (name) DO UPDATE SET mark = locking_fence.mark RETURNING token, mark
"""


# what can be fenced


def require_fence(aliases: Iterable[str]) -> None:
    """Raise unless these databases can check a token; no I/O.

    Raises:
        LockNotSupported: a database that has no fence. ImproperlyConfigured: the app isn't installed.
    """
    if not apps.is_installed("locking"):
        raise ImproperlyConfigured(
            "fenced=True keeps the tokens in a table: add 'locking' to INSTALLED_APPS, then manage.py migrate"
        )
    for alias in aliases:
        if connections[alias].vendor not in VENDORS:
            raise LockNotSupported(
                f"fenced=True: the database {alias!r} is {connections[alias].display_name}; the fence knows"
                " PostgreSQL, MySQL, MariaDB and SQLite; check lease.fencing_token in your own row instead"
            )


def fence_name(key: str, vendor: str) -> str:
    """Return the primary key of a lock's fence row: the lock's key, or a hash where that wouldn't do.

    MySQL compares without regard to case and trailing blanks: two locks would share a row there.
    """
    alphabet = r"[a-z0-9!-@\[-`{-~]+" if vendor == "mysql" else r"[^\x00]+"
    if len(key) <= MAX_NAME and re.fullmatch(alphabet, key):
        return key
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def fence_timeout(lease: SingleLease) -> float:
    """Seconds that a frozen holder's transaction may stand in the way: `FENCE_TIMEOUT`, or else the ttl."""
    chosen = lease.backend.settings.fence_timeout
    return max(SHORTEST_TIMEOUT, lease.ttl) if chosen is None else chosen


# advancing


@dataclass(frozen=True, slots=True)
class Witness:
    """The row that tells whether a transaction was committed; its mark is of this transaction alone."""

    alias: str
    name: str
    token: int
    mark: str
    timeout: float

    def was_committed(self) -> bool | None:
        """Ask over a new connection, which waits until the transaction has ended; None when it can't be told.

        Raises:
            Error: the database doesn't answer.
        """
        with closing(connections[self.alias].copy()) as connection, _undone(connection):
            _limit_waits(connection, self.timeout)
            token, mark = self._read(connection)
        if mark == self.mark:
            return True
        return None if token > self.token else False

    def _read(self, connection: BaseDatabaseWrapper) -> tuple[int, str]:
        with connection.cursor() as cursor:
            if connection.vendor == "mysql":
                cursor.execute(
                    "SELECT token, mark FROM locking_fence WHERE name = %s FOR UPDATE", [self.name]
                )
            else:
                cursor.execute(WITNESS, [self.name, _timestamp(connection)])
            row: tuple[int, str] = cursor.fetchone()
        return row


class _undone:  # noqa: N801 - reads as a state where it is used
    """A transaction on a connection that no alias knows; it is rolled back whatever happens."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.set_autocommit(False)

    def __exit__(self, *_: object) -> None:
        if self._connection.connection is not None and self._connection.is_usable():
            self._connection.rollback()


def prepare(alias: str, lease: Lease) -> None:
    """Do what must be done before the transaction begins: MySQL's rows are made beforehand.

    Made inside, two transactions that make the same row would deadlock, and ON DUPLICATE KEY couldn't tell a
    stale token from a fresh one.
    """
    connection = connections[alias]
    if connection.vendor != "mysql":
        return
    names = [fence_name(single.key, connection.vendor) for single in lease.leases]
    with connection.cursor() as cursor, _explained(connection):
        cursor.execute("SELECT name FROM locking_fence WHERE name IN %s", [names])
        present = {row[0] for row in cursor.fetchall()}
        for name in names:
            if name not in present:
                cursor.execute(
                    "INSERT IGNORE INTO locking_fence (name, token, owner, mark, updated_at)"
                    " VALUES (%s, 0, '', '', %s)",
                    [name, _timestamp(connection)],
                )


def advance(alias: str, lease: Lease) -> Witness:
    """Put this lease's tokens into the fence: the first statements of a transaction, before anything is read.

    Args:
        alias: the database; its outermost atomic block has just been entered, nothing was read in it.
        lease: of one name or several; their rows are taken in sorted order, one at a time.

    Returns:
        What tells later whether the transaction was committed.

    Raises:
        StaleFencingToken: a newer holder was here; the lease counts as lost from now on.
        LockNotAcquired: the transaction of an older holder is still open, and didn't end in time.
        LockTransactionError: an isolation level under which the fence wouldn't hold.
    """
    connection, mark = connections[alias], secrets.token_hex(16)
    timeout = min(fence_timeout(single) for single in lease.leases)
    with _explained(connection):
        _refuse_snapshots(connection)
        _limit_waits(connection, timeout)
        try:
            for single in lease.leases:
                _advance_one(connection, single, mark)
        finally:
            _restore_waits(connection)
    first = lease.leases[0]
    return Witness(alias, fence_name(first.key, connection.vendor), first.token, mark, timeout)


def _advance_one(connection: BaseDatabaseWrapper, lease: SingleLease, mark: str) -> None:
    begun = now()
    try:
        fresh = _write(connection, lease.key, lease.token, lease.owner, mark)
    except OperationalError as error:
        if code_of(error) not in LOCKED_OUT:
            raise
        raise LockNotAcquired(
            lease.name,
            waited=now() - begun,
            backend=lease.backend.alias,
            retry_after=fence_timeout(lease),
            reason=f"the transaction of an older holder is still open on database {connection.alias!r}",
        ) from error
    if not fresh:
        raise _overtaken(connection, lease)


def _write(connection: BaseDatabaseWrapper, key: str, token: int, owner: str, mark: str) -> bool:
    """Write the row where the rule allows it; always a physical change, so that snapshots notice it."""
    name, at = fence_name(key, connection.vendor), _timestamp(connection)
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(UPDATE, [token, owner, mark, at, name, token, token, owner])
        else:
            cursor.execute(UPSERT, [name, token, owner, mark, at])
        return bool(cursor.rowcount == 1)


def _overtaken(connection: BaseDatabaseWrapper, lease: SingleLease) -> StaleFencingToken:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT token FROM locking_fence WHERE name = %s", [fence_name(lease.key, connection.vendor)]
        )
        row = cursor.fetchone()
    lease.lose()
    return StaleFencingToken(
        f"the lock {lease.name!r} has token {lease.token}, but the database {connection.alias!r} has seen"
        f" {row[0] if row else 'no row'} of a later holder: this one was overtaken, nothing it does counts"
    )


def forbid(key: str, token: int, using: str = "default") -> bool:
    """Let no holder with this token, or an older one, write any more: what breaking a lock by force needs.

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
    name = fence_name(key, connection.vendor)
    with atomic(using), connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(
                "INSERT IGNORE INTO locking_fence (name, token, owner, mark, updated_at)"
                " VALUES (%s, 0, '', '', %s)",
                [name, _timestamp(connection)],
            )
            condition = "UPDATE locking_fence SET token = %s, owner = '' WHERE name = %s AND token <= %s"
            cursor.execute(condition, [token, name, token])
        else:
            cursor.execute(FORBID, [name, token, _timestamp(connection)])
        return bool(cursor.rowcount == 1)


FORBID: Final = """
INSERT INTO locking_fence (name, token, owner, mark, updated_at) VALUES (%s, %s, '', '', %s)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, owner = '', mark = ''
 WHERE locking_fence.token <= excluded.token
"""


# what each database needs


def _timestamp(connection: BaseDatabaseWrapper) -> Any:
    return connection.ops.adapt_datetimefield_value(timezone.now())


def _limit_waits(connection: BaseDatabaseWrapper, seconds: float) -> None:
    """Bound how long a frozen holder's transaction can stand in the way: in line, and by standing idle.

    SET takes no snapshot, so the fence stays the first statement that does.
    """
    if inside_test_case(connection):
        return  # they would last until the end of the test
    milliseconds = round(seconds * 1000)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"SET LOCAL lock_timeout = {milliseconds};"
                f" SET LOCAL idle_in_transaction_session_timeout = {milliseconds}"
            )
        elif connection.vendor == "mysql":
            cursor.execute(
                "SET @holdfast_wait = @@innodb_lock_wait_timeout,"
                f" SESSION innodb_lock_wait_timeout = {max(1, round(seconds))}"
            )


def _restore_waits(connection: BaseDatabaseWrapper) -> None:
    """MySQL's limit belongs to the session, which others will use after us."""
    if connection.vendor == "mysql" and not inside_test_case(connection):
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = @holdfast_wait")


def inside_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether a TestCase has wrapped its test in a transaction, which outlives every section in it."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _refuse_snapshots(connection: Any) -> None:
    """MySQL's REPEATABLE READ lets a transaction write over what its own snapshot doesn't show."""
    if connection.vendor != "mysql":
        return
    with connection.cursor() as cursor:
        variable = "tx_isolation" if connection.mysql_is_mariadb else "transaction_isolation"
        cursor.execute(f"SELECT @@{variable}")
        if cursor.fetchone()[0] != "REPEATABLE-READ":
            return
        cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
        row = cursor.fetchone()
    if row is None or row[1] != "ON":
        raise LockTransactionError(
            f"fenced=True on database {connection.alias!r}: under REPEATABLE READ this server writes over"
            " rows that changed since they were read; set OPTIONS['isolation_level'] to 'read committed'"
            " (Django's default), or innodb_snapshot_isolation=ON where MariaDB has it"
        )


class _explained:  # noqa: N801 - reads as a state where it is used
    """Tell what to do when the fence's table isn't there."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._alias = connection.alias

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProgrammingError):
            error.add_note(
                f"fenced=True needs the table of the app locking: manage.py migrate --database {self._alias}"
            )


# what database errors mean


def code_of(error: BaseException) -> str | int | None:
    """Return the SQLSTATE of a PostgreSQL error, the number of a MySQL one, or None."""
    if error.args and isinstance(error.args[0], int):
        return error.args[0]
    state: str | None = getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)
    return state


def was_overtaken(error: BaseException) -> bool:
    """Whether the database gave this transaction up for another's sake, so that it may be done again."""
    return isinstance(error, DatabaseError) and code_of(error) in OVERTAKEN


def reply_was_lost(error: BaseException) -> bool:
    """Whether the connection broke, so that it isn't known what the server did."""
    if isinstance(error, InterfaceError):
        return True
    code = code_of(error)
    return isinstance(error, OperationalError) and (
        code is None or str(code).startswith(("08", "57P")) or code in (2006, 2013, 2055, 4031)
    )


def stood_idle(error: BaseException) -> bool:
    """Whether the database ended a transaction that did nothing for too long (25P03)."""
    return isinstance(error, Error) and code_of(error) == "25P03"


STOOD_IDLE: Final = (
    "the database {!r} ended the transaction, because its holder did nothing in it for longer than"
    " FENCE_TIMEOUT (by default the ttl): another may hold the lock now; nothing was stored"
)


def settle(witness: Witness, error: Error) -> bool:
    """Find out whether a transaction whose COMMIT got no answer was committed; `error` gets a note else."""
    told: bool | None = None
    for attempt in range(SETTLING_TRIES):
        try:
            told = witness.was_committed()
            break
        except Error:
            logger.warning("can't ask database %r yet what became of a COMMIT", witness.alias)
            time.sleep(jittered(attempt, first=0.1, cap=1.0))
    if told:
        logger.warning("the answer to a COMMIT on database %r was lost; it was committed", witness.alias)
        return True
    error.add_note("the fence row says that nothing was committed" if told is False else UNSETTLED)
    return False


UNSETTLED: Final = "whether it was committed isn't known: the fence row couldn't tell"
