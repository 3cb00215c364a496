"""MySQL's and MariaDB's GET_LOCK: nothing is written, and each hold is a session of the server.

The server knows the lock's name and the number of its session, and no lease. The ttl is kept by the holder's
process, to the fraction of a second. If that is frozen, the server ends its session: `wait_timeout` is the
next whole seconds, for each hold.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from typing import Any, Final

from django.db import Error as DriverError
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.base import Busy, Grant, Holder, Outcome
from locking.backends.database.connection_pool import abandon, discard, fileno_of, has_news
from locking.backends.database.server_queue import SessionLockBackend
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.conf import AliasSettings
from locking.utils.clock import now
from locking.utils.databases import reply_was_lost

ACQUIRE: Final = "SELECT GET_LOCK(%s, %s)"
KEEP: Final = "SELECT IS_USED_LOCK(%s) = CONNECTION_ID()"
RELEASE: Final = "SELECT RELEASE_LOCK(%s)"
HOLDER: Final = "SELECT IS_USED_LOCK(%s)"
NUMBER: Final = "SELECT CONNECTION_ID()"
IDLE_TIMEOUT: Final = "SET SESSION wait_timeout = %s"
LONGEST_IDLE: Final = 31_536_000
"""Seconds; the most that the server takes."""

FRACTION_PAUSE: Final = 0.05
"""Seconds between two questions within the last second of a wait, of which MySQL's GET_LOCK knows no part."""


@dataclass(slots=True, eq=False, kw_only=True)
class SessionLease(LocalLease):
    """A hold: `node` is the lock's name on the server, `session` the server's number of the connection.

    Attributes:
        owner: whose it is.
        connection: the session itself; None when it has ended.
    """

    owner: str
    connection: BaseDatabaseWrapper | None


class MySQLLockBackend(SessionLockBackend):
    """`"BACKEND": "locking.backends.database.MySQLLockBackend"`, `"OPTIONS": {"using": "default"}`.

    Each hold, and each waiting thread, occupies one connection.

    Options:
        using: alias in DATABASES, on MySQL 5.7 or newer, or MariaDB.
        timeout: seconds after which a request is given up.
        session_pooling: True where a proxy stands between that pools whole sessions.
    """

    vendors = ("mysql",)
    scope = "GET_LOCK is MySQL's and MariaDB's"
    pooler = ("proxy stands between it and the database {!r}", "DatabaseBackend, which any proxy")
    pooler_hint = "Connect to the server itself, or pool sessions instead of statements."

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._leases: LeaseExpirer[SessionLease] = LeaseExpirer(lambda _, lease: self._finish(lease))
        self._sessions: dict[int, SessionLease] = {}

    def forget(self) -> None:
        abandon([lease.connection for lease in self._sessions.values() if lease.connection is not None])
        self._sessions = {}

    def _identify(self, connection: Any) -> None:
        """Remember the number of a new session; a proxy that answers with a number of its own for both is not
        found out.
        """
        connection.lock_session = _ask(connection, NUMBER)
        self._refuse_pooler(connection.lock_session % 2**32, connection.connection.thread_id() % 2**32)

    def _name(self, key: str) -> str:
        """Return the name on the server: hashed, for it has 64 characters, knows no case and no database."""
        database = self._pool.database
        digest = hashlib.blake2b(f"{database}\0{key}".encode(), digest_size=24, person=b"holdfast")
        return f"holdfast:{digest.hexdigest()}"

    # acquiring

    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """See the base class; it waits for half of the time that a reply may take at most.

        Where a waiter's process was killed, the server passes over it at the end of that time.
        """
        return super().wait_for(key, owner, ttl, min(seconds, self._timeout / 2))

    def _lock(self, connection: Any, key: str, owner: str, ttl: float, patience: float) -> Outcome:
        name, sent = self._name(key), now()
        _set_idle_timeout(connection, ttl)
        granted = _wait(connection, name, patience) if patience else _ask(connection, ACQUIRE, name, 0)
        if granted == 1 and patience:
            sent, granted = now(), _ask(connection, KEEP, name)
        if granted != 1:
            return Busy(holder=self._holder(_ask(connection, HOLDER, name)))
        return self._grant(key, name, owner, connection, sent, ttl)

    def _grant(self, key: str, name: str, owner: str, connection: Any, sent: float, ttl: float) -> Grant:
        number = connection.lock_session
        lease = SessionLease(name, 0, sent + ttl, number, owner=owner, connection=connection)
        self._sessions[number] = lease
        self._leases.add(key, owner, lease)
        return Grant(0, sent)

    # holding

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._leases.extend(key, owner, ttl, self._is_kept)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self._leases.extend(key, owner, ttl, self._is_kept, exactly=True)

    def _is_kept(self, lease: SessionLease, ttl: float) -> bool:
        """Have the server keep the session for `ttl` from now; False when it has ended, as has the lock."""
        connection = lease.connection
        if connection is None:
            return False
        try:
            _set_idle_timeout(connection, ttl)
            if _ask(connection, KEEP, lease.node) == 1:
                return True
        except DriverError:
            pass
        self._drop(lease)
        return False

    def release(self, key: str, owner: str) -> bool:
        lease = self._leases.pop(key, owner)
        return lease is not None and self._finish(lease)

    def _finish(self, lease: SessionLease) -> bool:
        """Release the lock and give the session back; False when it had ended.

        A connection that breaks under the request ends the lock too, so that the release has worked.
        """
        with lease.mutex:
            connection, alive = lease.connection, _is_alive(lease)
            if connection is None:
                return False
            try:
                released = bool(_ask(connection, RELEASE, lease.node))
            except DriverError as error:
                self._drop(lease)
                return alive and reply_was_lost(error)
            lease.connection = None
            self._sessions.pop(lease.session, None)
        self._pool.give_back(connection)
        return released

    def _drop(self, lease: SessionLease) -> None:
        connection, lease.connection = lease.connection, None
        self._sessions.pop(lease.session, None)
        if connection is not None:
            discard(connection)

    def _is_alive(self, key: str, owner: str) -> bool:
        lease = self._leases.get(key, owner)
        if lease is None:
            return False
        if not lease.mutex.acquire(blocking=False):
            return True  # a request is on its way, and will find out
        try:
            return _is_alive(lease)
        finally:
            lease.mutex.release()

    def holder(self, key: str) -> Holder | None:
        """See the base class: of another process only the number of its session is known, for KILL."""
        ((number,),) = self._pool.fetch(HOLDER, [self._name(key)])
        owner = self._holder(number)
        return Holder(owner, 1, None) if owner else None

    def _holder(self, number: int | None) -> str | None:
        if number is None:
            return None
        lease = self._sessions.get(number)
        return f"session {number}" if lease is None else lease.owner


def _ask(connection: BaseDatabaseWrapper, statement: str, *asked: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, asked)
        return cursor.fetchone()[0]


def _set_idle_timeout(connection: Any, ttl: float) -> None:
    """Have the server end the session once it was silent for longer than `ttl`, unless it knows already."""
    seconds = min(math.ceil(ttl) + 1, LONGEST_IDLE)  # one more: a process that lives ends its lease itself
    if getattr(connection, "lock_idle_timeout", None) != seconds:
        with connection.cursor() as cursor:
            cursor.execute(IDLE_TIMEOUT, [seconds])
        connection.lock_idle_timeout = seconds


def _wait(connection: Any, name: str, patience: float) -> Any:
    """Wait in the server's queue; 1 when the lock was granted. MySQL's GET_LOCK counts whole seconds."""
    if connection.mysql_is_mariadb:
        return _ask(connection, ACQUIRE, name, patience)
    if patience < 1:
        time.sleep(min(patience, FRACTION_PAUSE))
    return _ask(connection, ACQUIRE, name, int(patience))


def _is_alive(lease: SessionLease) -> bool:
    """Whether the connection still stands; asks nobody but the socket.

    The server says nothing unasked but that the session has ended.
    """
    fileno = fileno_of(lease.connection and lease.connection.connection)
    if fileno is None:
        return False
    try:
        return not has_news(fileno)
    except (OSError, ValueError):
        return False
