"""Locks of the caller's own transaction: taken inside it, and ended by its COMMIT or ROLLBACK itself.

There is no lease, nothing to renew and nothing to lose: a holder that lost the lock has lost the transaction,
too. The order of locked_transaction is turned round for them: BEGIN, lock, body, COMMIT, which is the
release.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import Any, ClassVar, Final

from django.core.checks import CheckMessage
from django.db import DatabaseError, Error, connections
from django.db.transaction import atomic

from locking.backends.base import Busy, Grant, Holder, Outcome
from locking.backends.database import advisory
from locking.backends.database.connection_pool import fetched
from locking.conf import AliasSettings
from locking.exceptions import LockNotSupported, LockTransactionError
from locking.utils.clock import now
from locking.utils.databases import fence_name, timestamp, was_locked_out, was_overtaken

WAITING: Final = {
    "postgresql": (
        "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
        "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', %s, true)",
    ),
    "mysql": ("SELECT @@innodb_lock_wait_timeout", "SET SESSION innodb_lock_wait_timeout = %s"),
}
"""What reads, and sets, how long a statement may wait for a lock; how long it may run is no limit of that."""

NOWAIT_REFUSED: Final = 3572  # MySQL's answer to NOWAIT; MariaDB's is that of a time-out


class TransactionScopedBackend(advisory.ServerQueueBackend):
    """What both forms share."""

    live_question: ClassVar[str] = "SELECT 1"  # what a live check asks the database

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self.transaction_on = self._using

    @abstractmethod
    def lock(self, cursor: Any, key: str, *, wait: bool) -> bool:
        """Take the lock within the open transaction; False, or the database's time-out, when it is busy."""

    def prepare(self, key: str) -> None:
        """Do what must be committed before the transaction can lock."""

    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """See the base class; the open transaction has the lock, and without one it is LockNotSupported."""
        connection = connections[self._using]
        if not connection.in_atomic_block:
            raise LockNotSupported(
                f"the backend {self.alias!r} locks for a transaction on the database {self._using!r}, and"
                " none is open: use locked_transaction(…) or @distributed_lock(…) with it"
            )
        self.prepare(key)
        try:
            # A savepoint: a refusal must not spoil the transaction, and takes its settings back with it.
            with atomic(self._using), connection.cursor() as cursor:
                granted = self._lock_within(cursor, key, seconds)
        except Error as error:
            if was_overtaken(error):  # by a deadlock: the transaction has failed, and may be run again
                raise
            if not (was_locked_out(error) or error.args[:1] == (NOWAIT_REFUSED,)):
                raise self._pool.meant(error) from error
            granted = False
        return Grant(0, now()) if granted else Busy()

    def _lock_within(self, cursor: Any, key: str, seconds: float) -> bool:
        self._refuse_snapshots(cursor)
        if not seconds:
            return self.lock(cursor, key, wait=False)
        before, limit = WAITING[self._pool.vendor]
        (former,) = fetched(cursor, before)
        mysql = self._pool.vendor == "mysql"
        cursor.execute(limit, [max(1, round(seconds))] if mysql else [advisory.as_milliseconds(seconds), "0"])
        try:
            return self.lock(cursor, key, wait=True)
        finally:
            with suppress(DatabaseError):  # PostgreSQL's goes with the savepoint, where that is broken
                cursor.execute(limit, former)

    def _refuse_snapshots(self, cursor: Any) -> None:
        connection: Any = connections[self._using]
        if connection.vendor == "postgresql":
            question = "SELECT current_setting('transaction_isolation')"
        else:
            question = f"SELECT @@{'tx' if connection.mysql_is_mariadb else 'transaction'}_isolation"
        ((level,),) = fetched(cursor, question)
        if level.lower().replace("-", " ") != "read committed":
            raise LockTransactionError(
                f"the backend {self.alias!r} locks inside the transaction, which runs at {level} on the"
                f" database {self._using!r}: its snapshot may be older than the lock, so it would read what"
                " the last holder found. Use READ COMMITTED, or a backend whose lock is taken before BEGIN"
            )

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """There is no lease: the lock lasts as long as its transaction."""
        return True

    shorten = extend

    def release(self, key: str, owner: str) -> bool:
        """There is nothing to do: COMMIT or ROLLBACK did it, or will."""
        return True

    def holder(self, key: str) -> Holder | None:
        raise self.unsupported("tell who holds a lock")

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        if live:
            self._pool.fetch(self.live_question)
        return []


class TransactionLockBackend(TransactionScopedBackend):
    """`"BACKEND": "locking.backends.database.TransactionLockBackend"`: pg_advisory_xact_lock.

    Options:
        using: alias in DATABASES, on PostgreSQL; the transaction must be on it.
    """

    def lock(self, cursor: Any, key: str, *, wait: bool) -> bool:
        verb = "pg_advisory_xact_lock" if wait else "pg_try_advisory_xact_lock"
        cursor.execute(f"SELECT {verb}(%s)", [advisory.number_of(key)])
        return cursor.fetchone()[0] is not False

    def holder(self, key: str) -> Holder | None:
        """Return an anonymous holder; transaction locks have no owner."""
        rows = self._pool.fetch(advisory.HOLDERS, advisory.halves_of(key))
        return Holder(f"session {rows[0][1]}", 1, None) if rows else None


class RowLockBackend(TransactionScopedBackend):
    """`"BACKEND": "locking.backends.database.RowLockBackend"`: SELECT … FOR UPDATE of a row of its name.

    The row is the one of the fence, made at the first use and never deleted.

    Options:
        using: alias in DATABASES, on PostgreSQL, MySQL or MariaDB; the transaction must be on it.
    """

    vendors = ("postgresql", "mysql")
    live_question = "SELECT name FROM locking_fence LIMIT 1"

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._made: set[str] = set()

    def prepare(self, key: str) -> None:
        """Make the row, committed by a connection of its own, the first time."""
        name = fence_name(key, self._pool.vendor)
        if name in self._made:
            return
        at = timestamp(connections[self._using])
        ignore, rest = ("IGNORE ", "") if self._pool.vendor == "mysql" else ("", " ON CONFLICT DO NOTHING")
        make = (
            f"INSERT {ignore}INTO locking_fence (name, token, owner, mark, updated_at)"  # noqa: S608 - two constants
            f" VALUES (%s, 0, '', '', %s){rest}"
        )

        def step(cursor: Any, _: int) -> None:
            """Look first: MySQL's INSERT of a row that is there waits for the holder, who has locked it."""
            if not fetched(cursor, "SELECT name FROM locking_fence WHERE name = %s", [name]):
                cursor.execute(make, [name, at])

        self._pool.run(step)
        if len(self._made) >= 10_000:
            self._made.clear()
        self._made.add(name)

    def lock(self, cursor: Any, key: str, *, wait: bool) -> bool:
        nowait = "" if wait else " NOWAIT"
        name = fence_name(key, self._pool.vendor)
        question = f"SELECT name FROM locking_fence WHERE name = %s FOR UPDATE{nowait}"  # noqa: S608
        cursor.execute(question, [name])
        found = cursor.fetchone() is not None
        if not found:
            self._made.discard(name)  # someone has deleted it; the next attempt creates it again
        return found
