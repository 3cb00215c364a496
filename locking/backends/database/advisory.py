"""PostgreSQL's advisory locks in their session form: nothing is written, the connection is the lock."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
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
    require_alias,
)
from locking.backends.database.rows import DEFAULT_TIMEOUT
from locking.backends.database.server_queue import ServerQueueWaiter
from locking.backends.database.sessions import (
    EXCLUSIVE,
    KEEP,
    SHARED,
    Session,
    as_milliseconds,
    number_of,
    refuse_poolers,
    wait_in_line,
)
from locking.backends.options import own_options
from locking.conf import AliasSettings
from locking.exceptions import LockNotSupported
from locking.utils.background import after_fork
from locking.utils.clock import now

HOLDERS: Final = """
SELECT activity.application_name, activity.pid
  FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
 WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1
   AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND held.classid = %(high)s::bigint::oid AND held.objid = %(low)s::bigint::oid
"""
TERMINATE: Final = (
    f"SELECT pg_terminate_backend(pid, %(patience)s) FROM ({HOLDERS}) AS holder (owner, pid)"  # noqa: S608
    " WHERE owner = %(owner)s"
)

TIDY_AT: Final = 64
"""LeaseExpirer at which those are cleared away whose lease has ended without a release."""


class AdvisoryLockBackend(BaseLockBackend):
    """`"BACKEND": "locking.backends.database.AdvisoryLockBackend"`, `"OPTIONS": {"using": "default"}`.

    Each hold, and each waiting thread, occupies one connection. A read lock is the shared form; a write lock
    is the ordinary lock of that name.

    Options:
        using: alias in DATABASES, on PostgreSQL.
        timeout: seconds after which a request is given up.
        session_pooling: True where a pooler stands between that pools whole sessions.
    """

    supports_force_release = True
    bound_to = "the PostgreSQL session of its process"
    frees_with_holder = True
    kinds: ClassVar[frozenset[str]] = frozenset({"read", "write"})

    _statements = EXCLUSIVE

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = own_options(settings, using="default", timeout=DEFAULT_TIMEOUT, session_pooling=False)
        self._timeout = options["timeout"]
        ready = partial(
            refuse_poolers, alias=settings.alias, session_pooling=bool(options["session_pooling"])
        )
        self._pool = ConnectionPool(
            require_alias(options["using"], settings.alias), self._timeout, settings.alias, ready
        )
        if self._pool.vendor != "postgresql":
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}]: advisory locks are PostgreSQL's, and the database"
                f" {options['using']!r} is {self._pool.vendor}; take DatabaseBackend"
            )
        self._variants: dict[str, AdvisoryVariant] = {}
        self._start()

    def _start(self) -> None:
        self._holds: dict[tuple[str, str], Session] = {}
        after_fork(self.forget)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object per kind, because the watchdog renews by backend."""
        if kind not in self.kinds:
            return super().variant(kind)
        if kind not in self._variants:
            self._variants[kind] = AdvisoryVariant(self, kind)
        return self._variants[kind]

    def forget(self) -> None:
        """Leave a forked child's parent what is its own: the child holds nothing."""
        for session in self._holds.values():
            PARENTS.append(session.connection)
            detach(session.connection)
        self._holds = {}

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        held = self._holds.get((key, owner))
        sent = now()
        if held is not None and held.keep(ttl):
            return Grant(0, sent)
        with self._pool.translated():
            try:
                for _ in range(ATTEMPTS - 1):
                    with suppress(*UNREACHABLE):
                        return self._try(key, owner, ttl)
                    self._pool.close()
                return self._try(key, owner, ttl)
            except NoConnection as error:  # a waiter asks again while its time lasts
                return Busy(outage=error)

    def _try(self, key: str, owner: str, ttl: float) -> Outcome:
        connection, sent = self._pool.take(patience=0.0), now()
        number = number_of(key)
        asked = {"number": number, "owner": owner, "ttl": as_milliseconds(ttl)}
        try:
            granted, pid = _row(connection, self._statements.try_acquire, asked)
            if granted:
                self._hold(key, Session(connection, pid, number, owner, self._statements))
                return Grant(0, sent)
            holder = _holders(connection, key)
        except BaseException:
            discard(connection)
            raise
        self._pool.give_back(connection)
        return Busy(holder=holder[0][0] if holder else None)

    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """Wait in PostgreSQL's own queue of the lock, and before that for a connection, at most `seconds`."""
        deadline = now() + seconds
        with self._pool.translated():
            try:
                connection = self._pool.take(patience=seconds)
            except NoConnection as error:
                return Busy(outage=error)
            try:
                left = max(0.001, deadline - now())
                if not wait_in_line(connection, self._statements, number_of(key), left, self._timeout):
                    self._pool.give_back(connection)
                    return Busy()
                # The lease begins now: how long ago the lock was granted, nobody can tell.
                sent = now()
                *_, pid = _row(connection, KEEP, {"owner": owner, "ttl": as_milliseconds(ttl)})
            except BaseException:
                discard(connection)
                raise
        self._hold(key, Session(connection, pid, number_of(key), owner, self._statements))
        return Grant(0, sent)

    def _hold(self, key: str, session: Session) -> None:
        self._holds[key, session.owner] = session
        if len(self._holds) % TIDY_AT == 0:
            for name, held in list(self._holds.items()):
                if not held.is_alive():
                    self._holds.pop(name, None)
                    discard(held.connection)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        held = self._holds.get((key, owner))
        return held is not None and held.keep(ttl)

    def release(self, key: str, owner: str) -> bool:
        held = self._holds.pop((key, owner), None)
        return held is not None and held.release(self._pool)

    def force_release(self, key: str, expected: str) -> bool:
        """See the base class: its session is ended by the server, which takes the role's own sessions or
        pg_signal_backend.
        """
        asked = {**_halves(key), "owner": expected, "patience": round(self._timeout * 1000)}
        return bool(self._pool.run(lambda cursor, _: _fetched(cursor, TERMINATE, asked)))

    def holder(self, key: str) -> Holder | None:
        """See the base class: of several readers one, and how many they are. How much of the lease is left
        only its holder knows.
        """
        rows = self._pool.run(lambda cursor, _: _fetched(cursor, HOLDERS, _halves(key)))
        return Holder(rows[0][0], len(rows), None) if rows else None

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with its session, whose end the socket tells."""
        held = self._holds.get((key, owner))
        return math.inf if held is not None and held.is_alive() else -math.inf

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return ServerQueueWaiter(self, key, owner, ttl)

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; live, it looks whether a pooler stands between."""
        if not live:
            return []
        try:
            self._pool.run(lambda cursor, _: _fetched(cursor, "SELECT 1", {}))
        except LockNotSupported as error:
            return [
                Error(
                    str(error),
                    hint="Connect to PostgreSQL itself, or pool sessions instead of transactions.",
                    id="locking.E111",
                )
            ]
        return []

    def close(self) -> None:
        """See the base class; what is held stays held."""
        self._pool.close()


class AdvisoryVariant(AdvisoryLockBackend):
    """One side of a read-write lock, over the connections of its main backend."""

    def __init__(self, main: AdvisoryLockBackend, kind: str) -> None:
        BaseLockBackend.__init__(self, main.settings)
        self.alias = f"{main.alias}/{kind}"
        self._statements = SHARED if kind == "read" else EXCLUSIVE
        self._timeout, self._pool, self._variants = main._timeout, main._pool, main._variants
        self._start()


def _halves(key: str) -> dict[str, Any]:
    number = number_of(key) % 2**64
    return {"high": number >> 32, "low": number % 2**32}


def _row(connection: BaseDatabaseWrapper, statement: str, asked: dict[str, Any]) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, asked)
        return cursor.fetchone()


def _fetched(cursor: Any, statement: str, asked: dict[str, Any]) -> list[Any]:
    cursor.execute(statement, asked)
    rows: list[Any] = cursor.fetchall()
    return rows


def _holders(connection: BaseDatabaseWrapper, key: str) -> list[Any]:
    with connection.cursor() as cursor:
        return _fetched(cursor, HOLDERS, _halves(key))
