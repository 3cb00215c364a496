"""MySQL's and MariaDB's GET_LOCK: nothing is written, and each hold is a session of the server.

The server knows the lock's name and the number of its session, and no lease. The ttl is kept by the holder's
process, to the fraction of a second. If that is frozen, the server ends its session: `wait_timeout` is the
next whole seconds, for each hold.
"""

from __future__ import annotations

import hashlib
import math
import select
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DriverError
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.base import BaseLockBackend, Busy, Grant, Holder, Outcome, Waiter
from locking.backends.database.connection_pool import (
    ATTEMPTS,
    PARENTS,
    UNREACHABLE,
    ConnectionPool,
    NoConnection,
    detach,
    discard,
    fileno_of,
    require_alias,
)
from locking.backends.database.rows import DEFAULT_TIMEOUT
from locking.backends.database.server_queue import ServerQueueWaiter
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.backends.options import own_options
from locking.conf import AliasSettings
from locking.exceptions import LockNotSupported
from locking.utils.background import after_fork
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


class MySQLLockBackend(BaseLockBackend):
    """`"BACKEND": "locking.backends.database.MySQLLockBackend"`, `"OPTIONS": {"using": "default"}`.

    Each hold, and each waiting thread, occupies one connection.

    Options:
        using: alias in DATABASES, on MySQL 5.7 or newer, or MariaDB.
        timeout: seconds after which a request is given up.
        session_pooling: True where a proxy stands between that pools whole sessions.
    """

    bound_to = "the database session of its process"
    frees_with_holder = True

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = own_options(settings, using="default", timeout=DEFAULT_TIMEOUT, session_pooling=False)
        self._timeout, self._session_pooling = options["timeout"], bool(options["session_pooling"])
        self._using = require_alias(options["using"], settings.alias)
        self._pool = ConnectionPool(self._using, self._timeout, settings.alias, self._identify)
        if self._pool.vendor != "mysql":
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}]: GET_LOCK is MySQL's and MariaDB's, and the database"
                f" {self._using!r} is {self._pool.vendor}; take DatabaseBackend"
            )
        self._leases: LeaseExpirer[SessionLease] = LeaseExpirer(lambda _, lease: self._finish(lease))
        self._sessions: dict[int, SessionLease] = {}
        after_fork(self.forget)

    def forget(self) -> None:
        """Leave a forked child's parent what is its own: the child holds nothing."""
        for lease in self._sessions.values():
            if lease.connection is not None:
                PARENTS.append(lease.connection)
                detach(lease.connection)
        self._sessions = {}

    def _identify(self, connection: Any) -> None:
        """Remember the number of a new session; refuse a proxy, which may give the session to another client.

        A proxy that answers with a number of its own for both is not found out.
        """
        with connection.cursor() as cursor:
            cursor.execute(NUMBER)
            (connection.lock_session,) = cursor.fetchone()
        shown = connection.connection.thread_id()
        if shown % 2**32 != connection.lock_session % 2**32 and not self._session_pooling:
            raise LockNotSupported(
                f"the lock backend {self.alias!r} needs a session of its own, but a proxy stands between it"
                f" and the database {self._using!r}. Connect directly; or, where it pools whole sessions, say"
                " OPTIONS={'session_pooling': True}; or take DatabaseBackend, which any proxy leaves alone"
            )

    def _name(self, key: str) -> str:
        """Return the name on the server: hashed, for it has 64 characters, knows no case and no database."""
        database = self._pool.database
        digest = hashlib.blake2b(f"{database}\0{key}".encode(), digest_size=24, person=b"holdfast")
        return f"holdfast:{digest.hexdigest()}"

    # acquiring

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        if self.extend(key, owner, ttl):
            return Grant(0, sent)
        with self._pool.translated():
            try:
                for _ in range(ATTEMPTS - 1):
                    with suppress(*UNREACHABLE):
                        return self._attempt(key, owner, ttl, 0.0)
                    self._pool.close()
                return self._attempt(key, owner, ttl, 0.0)
            except NoConnection as error:  # a waiter asks again while its time lasts
                return Busy(outage=error)

    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """Wait in the server's own queue: at most `seconds`, and half of the time that a reply may take.

        Where a waiter's process was killed, the server passes over it at the end of that time.
        """
        with self._pool.translated():
            try:
                return self._attempt(key, owner, ttl, min(seconds, self._timeout / 2))
            except NoConnection as error:
                return Busy(outage=error)

    def _attempt(self, key: str, owner: str, ttl: float, patience: float) -> Outcome:
        connection, name, sent = self._pool.take(patience=patience), self._name(key), now()
        try:
            _set_idle_timeout(connection, ttl)
            granted = _wait(connection, name, patience) if patience else _ask(connection, ACQUIRE, name, 0)
            if granted != 1:
                holder = self._holder(_ask(connection, HOLDER, name))
            elif patience:
                # The lease begins now: how long ago the lock was granted, nobody can tell.
                sent, granted = now(), _ask(connection, KEEP, name)
        except BaseException:
            discard(connection)
            raise
        if granted == 1:
            return self._grant(key, name, owner, connection, sent, ttl)
        self._pool.give_back(connection)
        return Busy(holder=holder)

    def _grant(self, key: str, name: str, owner: str, connection: Any, sent: float, ttl: float) -> Grant:
        number = connection.lock_session
        lease = SessionLease(name, 0, sent + ttl, number, owner=owner, connection=connection)
        self._sessions[number] = lease
        self._leases.add(key, owner, lease)
        return Grant(0, sent)

    # holding

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        lease = self._leases.begin(key, owner)
        if lease is None:
            return False
        sent, held = now(), False
        try:
            with lease.mutex:
                held = self._is_kept(lease, ttl)
        finally:
            self._leases.settle(lease, sent + ttl if held else None)
        if not held:
            self._leases.pop(key, owner)
        return held

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
        """See the base class."""
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

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with its session, whose end the socket tells."""
        lease = self._leases.get(key, owner)
        if lease is None:
            return -math.inf
        if not lease.mutex.acquire(blocking=False):
            return math.inf  # a request is on its way, and will find out
        try:
            return math.inf if _is_alive(lease) else -math.inf
        finally:
            lease.mutex.release()

    def holder(self, key: str) -> Holder | None:
        """See the base class: of another process only the number of its session is known, for KILL."""
        owner = self._holder(self._pool.run(lambda cursor, _: _fetched(cursor, HOLDER, self._name(key))))
        return Holder(owner, 1, None) if owner else None

    def _holder(self, number: int | None) -> str | None:
        if number is None:
            return None
        lease = self._sessions.get(number)
        return f"session {number}" if lease is None else lease.owner

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        """See the base class."""
        return ServerQueueWaiter(self, key, owner, ttl)

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; live, it looks whether a proxy stands between."""
        if not live:
            return []
        try:
            self._pool.run(lambda cursor, _: _fetched(cursor, NUMBER))
        except LockNotSupported as error:
            hint = "Connect to the server itself, or pool sessions instead of statements."
            return [Error(str(error), hint=hint, id="locking.E111")]
        return []

    def close(self) -> None:
        """See the base class; what is held stays held."""
        self._pool.close()


def _fetched(cursor: Any, statement: str, *asked: object) -> Any:
    cursor.execute(statement, asked)
    return cursor.fetchone()[0]


def _ask(connection: BaseDatabaseWrapper, statement: str, *asked: object) -> Any:
    with connection.cursor() as cursor:
        return _fetched(cursor, statement, *asked)


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
        return not select.select([fileno], [], [], 0)[0]
    except (OSError, ValueError):
        return False
