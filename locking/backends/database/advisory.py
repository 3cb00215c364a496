"""PostgreSQL's advisory locks in their session form: nothing is written, the connection is the lock."""

from __future__ import annotations

from copy import copy
from typing import Any, ClassVar, Final

from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.base import BaseLockBackend, Busy, Grant, Holder, Outcome
from locking.backends.database.connection_pool import abandon, discard, fetched
from locking.backends.database.server_queue import SessionLockBackend
from locking.backends.database.sessions import (
    EXCLUSIVE,
    KEEP,
    PID,
    SHARED,
    Session,
    as_milliseconds,
    number_of,
    wait_in_line,
)
from locking.conf import AliasSettings
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


class AdvisoryLockBackend(SessionLockBackend):
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
    kinds: ClassVar[frozenset[str]] = frozenset({"read", "write"})
    scope = "advisory locks are PostgreSQL's"
    pooler = (
        "connection pooler stands between it and the database {!r}: one that pools transactions would give"
        " the lock away",
        "TransactionLockBackend, which any pooler",
    )
    pooler_hint = "Connect to PostgreSQL itself, or pool sessions instead of transactions."

    _statements = EXCLUSIVE

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._holds: dict[tuple[str, str], Session] = {}
        self._variants: dict[str, AdvisoryLockBackend] = {}

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object per kind, because the watchdog renews by backend."""
        if kind not in self.kinds:
            return super().variant(kind)
        if kind not in self._variants:
            self._variants[kind] = made = copy(self)
            made.alias = f"{self.settings.alias}/{kind}"
            made._statements = SHARED if kind == "read" else EXCLUSIVE
            made._holds = {}
            after_fork(made.forget)
        return self._variants[kind]

    def forget(self) -> None:
        abandon([session.connection for session in self._holds.values()])
        self._holds = {}

    def _identify(self, connection: Any) -> None:
        ((pid,),) = _asked(connection, PID)
        self._refuse_pooler(pid, connection.connection.info.backend_pid)

    def _lock(
        self, connection: BaseDatabaseWrapper, key: str, owner: str, ttl: float, patience: float
    ) -> Outcome:
        number, sent = number_of(key), now()
        asked = {"number": number, "owner": owner, "ttl": as_milliseconds(ttl)}
        if not patience:
            ((granted, pid),) = _asked(connection, self._statements.try_acquire, asked)
            if not granted:
                holders = _asked(connection, HOLDERS, _halves(key))
                return Busy(holder=holders[0][0] if holders else None)
        elif wait_in_line(connection, self._statements, number, patience, self._timeout):
            sent = now()
            ((*_, pid),) = _asked(connection, KEEP, asked)
        else:
            return Busy()
        self._hold(key, Session(connection, pid, number, owner, self._statements))
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
        patience = round(self._timeout * 1000)
        return bool(self._pool.fetch(TERMINATE, {**_halves(key), "owner": expected, "patience": patience}))

    def holder(self, key: str) -> Holder | None:
        """See the base class: of several readers one, and how many they are. How much of the lease is left
        only its holder knows.
        """
        rows = self._pool.fetch(HOLDERS, _halves(key))
        return Holder(rows[0][0], len(rows), None) if rows else None

    def _is_alive(self, key: str, owner: str) -> bool:
        held = self._holds.get((key, owner))
        return held is not None and held.is_alive()


def _halves(key: str) -> dict[str, Any]:
    number = number_of(key) % 2**64
    return {"high": number >> 32, "low": number % 2**32}


def _asked(connection: BaseDatabaseWrapper, statement: str, asked: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        return fetched(cursor, statement, asked)
