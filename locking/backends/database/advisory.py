"""PostgreSQL's advisory locks in their session form: nothing is written, the connection is the lock.

The lock lives in the server's memory, and only as long as its session. The lease is the server's too:
`idle_session_timeout` ends a session that was silent for the ttl, whatever its client does, so that a frozen
holder blocks the others no longer.
"""

from __future__ import annotations

import hashlib
import math
import selectors
import threading
import time
from abc import abstractmethod
from copy import copy
from functools import partial
from typing import Any, ClassVar, Final
from weakref import finalize

from django.core.checks import CheckMessage
from django.core.checks import Error as CheckError
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.base import BaseLockBackend, Busy, Grant, Holder, Outcome, PollingWaiter, Waiter
from locking.backends.capabilities import ForceRelease, Kinds, SessionBound
from locking.backends.database.connection_pool import (
    DEFAULT_TIMEOUT,
    ConnectionPool,
    NoConnection,
    abandon,
    discard,
    fetched,
    require_alias,
)
from locking.conf import AliasSettings, own_options
from locking.exceptions import LockNotSupported
from locking.utils.background import after_fork
from locking.utils.clock import now
from locking.utils.databases import was_locked_out

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

POLL: Final[Any] = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""`select` takes no number from 1024 on, `epoll` needs a file."""

SLOT_PAUSE: Final = 0.1  # seconds until a server that has no slot left for a connection is asked again
TIDY_AT: Final = 64  # holds at which those are cleared away whose lease has ended without a release

PREPARE_TO_WAIT: Final = """
SELECT set_config('lock_timeout', %(wait)s, false), set_config('idle_session_timeout', %(silence)s, false),
       set_config('client_connection_check_interval', '1s', false),
       set_config('statement_timeout', '0', false)
"""
KEEP: Final = """
SELECT set_config('application_name', %(owner)s, false), set_config('idle_session_timeout', %(ttl)s, false),
       pg_backend_pid()
"""
TRY_ACQUIRE: Final = """
SELECT CASE WHEN pg_try_advisory_lock{form}(%(number)s) THEN
       set_config('application_name', %(owner)s, false) || set_config('idle_session_timeout', %(ttl)s, false)
       END IS NOT NULL, pg_backend_pid()
"""
WAIT: Final = "SELECT pg_advisory_lock{form}(%(number)s)"
RELEASE: Final = """
SELECT pg_advisory_unlock{form}(%(number)s), set_config('idle_session_timeout', '0', false),
       set_config('application_name', 'holdfast', false), pg_backend_pid()
"""


def number_of(key: str) -> int:
    """Return the 64-bit number by which PostgreSQL knows the lock.

    Two names in 2**64 share one; they then exclude each other, which is slow and not wrong.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, "big", signed=True)


def as_milliseconds(seconds: float) -> str:
    """Return a length of time as PostgreSQL's settings take it: at least 1 ms, for 0 means without end."""
    return f"{max(1, round(seconds * 1000))}ms"


class Session:
    """One session that holds one lock."""

    def __init__(
        self, connection: BaseDatabaseWrapper, pid: int, number: int, owner: str, form: str, ends: float
    ) -> None:
        self.connection, self.owner = connection, owner
        self._pid, self._number, self._form = pid, number, form
        self._ends = ends  # of the lease, as far as it was extended
        self._mutex = threading.Lock()
        self._broken = False  # the connection failed under a request, and the server had said nothing
        self._is_released = False
        self._end = finalize(self, discard, connection)

    def is_alive(self) -> bool:
        """Whether the connection is still open; looks at the socket only."""
        raw = self.connection.connection
        if raw is None or raw.closed:
            return False
        if not self._mutex.acquire(blocking=False):
            return True  # a request is on its way, and will find out
        try:
            return _is_quiet(raw, self.connection)
        finally:
            self._mutex.release()

    def keep(self, ttl: float, *, exactly: bool = False) -> bool:
        """Have the lease last `ttl` seconds from now, at least or `exactly`; False: the session has ended."""
        with self._mutex:
            moment = now()
            self._ends = moment + ttl if exactly else max(self._ends, moment + ttl)
            row = self._ask(KEEP, {"owner": self.owner, "ttl": as_milliseconds(self._ends - moment)})
        return row is not None and row[-1] == self._pid

    def release(self, pool: ConnectionPool) -> bool:
        """Release the lock and give the session back; False when it had ended.

        A connection that breaks under the request ends the lock too, so that the release has worked.
        """
        was_alive = self.is_alive()
        with self._mutex:
            row = self._ask(RELEASE.format(form=self._form), {"number": self._number}, last=True)
        if row is None:
            return was_alive and self._broken
        if row[-1] != self._pid or not row[0]:
            discard(self.connection)
            return False
        self._end.detach()
        pool.give_back(self.connection)
        return True

    def _ask(self, statement: str, asked: dict[str, Any], *, last: bool = False) -> Any:
        """Return the row, or None when the session has ended: the lock has ended with it, that is sure.

        After the `last` request the connection may serve another hold, which a late extension must not touch.
        """
        if self._is_released or self.connection.connection is None:
            return None
        self._is_released = last
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement, asked)
                return cursor.fetchone()
        except Error as error:
            # Without the server's own word it isn't known what came of the request.
            self._broken = getattr(error.__cause__, "sqlstate", None) is None
            discard(self.connection)
            return None


def _is_quiet(raw: Any, connection: Any) -> bool:
    """Whether the server has said nothing that ends the session."""
    try:
        with POLL() as selector:
            selector.register(raw.fileno(), selectors.EVENT_READ)
            while selector.select(0):  # each reads once: its last words, and then the end
                raw.pgconn.consume_input()
        raw.pgconn.is_busy()  # reads the words: see `_hear_the_end`
    except Exception:  # whatever is wrong with it, it isn't alive
        return False
    return not (raw.closed or connection.has_ended.is_set())


def _hear_the_end(connection: Any) -> None:
    """Note on the connection that the server has ended the session, be its socket closed already or not.

    libpq takes an error that answers no request for a notice.
    """
    connection.has_ended = ended = threading.Event()

    def hear(notice: Any) -> None:
        if notice.severity_nonlocalized in ("FATAL", "PANIC"):
            ended.set()

    connection.connection.add_notice_handler(hear)


def wait_in_line(
    connection: BaseDatabaseWrapper, form: str, number: int, seconds: float, patience: float, ttl: float
) -> bool:
    """Wait in the server's own queue for at most `seconds`; False when they are over.

    The server may grant the lock to a process that is frozen by then: it ends that session like a holder's.
    """
    raw: Any = connection.connection
    bounded = raw.wait
    with connection.cursor() as cursor:
        silence = as_milliseconds(max(ttl, patience))
        cursor.execute(PREPARE_TO_WAIT, {"wait": as_milliseconds(seconds), "silence": silence})
        if isinstance(bounded, partial):
            raw.wait = partial(bounded.func, timeout=seconds + patience)
        try:
            cursor.execute(WAIT.format(form=form), {"number": number})
        except Error as error:
            if not was_locked_out(error):
                raise
            # A connection of the pool is idle until it is needed.
            cursor.execute("SELECT set_config('idle_session_timeout', '0', false)")
            return False
        finally:
            raw.wait = bounded
    return True


class ServerQueueBackend(BaseLockBackend):
    """A backend on the database `OPTIONS['using']`, whose waiters wait in the server's own queue."""

    vendors: ClassVar[tuple[str, ...]] = ("postgresql",)  # the engines that have such locks
    options: ClassVar[dict[str, Any]] = {}  # further ones, with their defaults

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = own_options(settings, using="default", timeout=DEFAULT_TIMEOUT, **self.options)
        self._timeout, self._session_pooling = options["timeout"], bool(options.get("session_pooling"))
        self._using = require_alias(options["using"], settings.alias)
        self._pool = ConnectionPool(self._using, self._timeout, settings.alias, self._identify)
        if self._pool.vendor not in self.vendors:
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}]: {type(self).__name__} works on {', '.join(self.vendors)}, and"
                f" the database {self._using!r} is {self._pool.vendor}; take DatabaseBackend"
            )

    def _identify(self, connection: Any) -> None:
        """Prepare a new connection."""

    @abstractmethod
    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """Acquire the lock, waiting in the server's queue for at most `seconds`."""

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return ServerQueueWaiter(self, key, owner, ttl, fenced)

    def close(self) -> None:
        """See the base class; what is held stays held."""
        self._pool.close()


class ServerQueueWaiter(PollingWaiter):
    """A thread that waits in the server's own queue."""

    _backend: ServerQueueBackend

    def wait(self, timeout: float) -> Outcome:
        return self._backend.wait_for(self._key, self._owner, self._ttl, timeout)


class AdvisoryLockBackend(SessionBound, ServerQueueBackend, Kinds, ForceRelease):
    """`"BACKEND": "locking.backends.database.AdvisoryLockBackend"`, `"OPTIONS": {"using": "default"}`.

    Each hold, and each waiting thread, occupies one connection. A read lock is the shared form; a write lock
    is the ordinary lock of that name.

    Options:
        using: alias in DATABASES, on PostgreSQL.
        timeout: seconds after which a request is given up.
        session_pooling: True behind a pooler that pools whole sessions.
    """

    options = {"session_pooling": False}  # noqa: RUF012 - a constant
    frees_with_holder = True
    kinds: ClassVar[frozenset[str]] = frozenset({"read", "write"})

    _form = ""  # the end of the names of PostgreSQL's functions; of a read lock's it is "_shared"

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._holds: dict[tuple[str, str], Session] = {}
        self._variants: dict[str, AdvisoryLockBackend] = {}
        after_fork(self.forget)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        if kind not in self._variants:
            self._variants[kind] = made = copy(self)
            made.alias = f"{self.settings.alias}/{kind}"
            made._form = "_shared" if kind == "read" else ""
            made._holds = {}
            after_fork(made.forget)
        return self._variants[kind]

    def forget(self) -> None:
        """Leave a forked child's parent what is its own: the child holds nothing."""
        abandon([session.connection for session in self._holds.values()])
        self._holds = {}

    def _identify(self, connection: Any) -> None:
        """Refuse a pooler, which may give the session, and the lock in it, to another client: it answers with
        a number of its own when a client connects, the server with its session's.
        """
        ((pid,),) = _asked(connection, "SELECT pg_backend_pid()")
        if pid != connection.connection.info.backend_pid and not self._session_pooling:
            raise LockNotSupported(
                f"the lock backend {self.alias!r} needs a session of its own, but a connection pooler sits"
                f" between it and the database {self._using!r}: one that pools transactions would give the"
                " lock away. Connect directly; or, where it pools whole sessions, say"
                " OPTIONS={'session_pooling': True}; or take TransactionLockBackend, which any pooler leaves"
                " alone"
            )
        _hear_the_end(connection)

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        sent = now()
        if self.extend(key, owner, ttl):
            return Grant(0, sent, is_new=False)
        return self.wait_for(key, owner, ttl, 0.0)

    def wait_for(self, key: str, owner: str, ttl: float, seconds: float) -> Outcome:
        """See the base class; without `seconds` ask once.

        What is left of the time goes to another connection where the server has closed the first.
        """
        until = now() + seconds

        def attempt(_: int) -> Outcome:
            connection = self._pool.take()
            patience = max(0.001, until - now()) if seconds else 0.0
            try:
                outcome = self._lock(connection, key, owner, ttl, patience)
            except BaseException:
                discard(connection)
                raise
            if isinstance(outcome, Busy):
                self._pool.give_back(connection)
            return outcome

        try:
            return self._pool.retried(attempt)
        except NoConnection as error:  # a waiter asks again while its time lasts
            time.sleep(max(0.0, min(until - now(), SLOT_PAUSE)))
            return Busy(outage=error)

    def _lock(
        self, connection: BaseDatabaseWrapper, key: str, owner: str, ttl: float, patience: float
    ) -> Outcome:
        """Take the lock on this connection, which then is the hold's; without patience ask once.

        After a wait the lease begins at its end: how long ago the lock was granted is unknown.
        """
        number, sent = number_of(key), now()
        asked = {"number": number, "owner": owner, "ttl": as_milliseconds(ttl)}
        if not patience:
            ((granted, pid),) = _asked(connection, TRY_ACQUIRE.format(form=self._form), asked)
            if not granted:
                holders = _asked(connection, HOLDERS, halves_of(key))
                return Busy(holder=holders[0][0] if holders else None)
        elif wait_in_line(connection, self._form, number, patience, self._timeout, ttl):
            sent = now()
            ((*_, pid),) = _asked(connection, KEEP, asked)
        else:
            return Busy()
        self._holds[key, owner] = Session(connection, pid, number, owner, self._form, sent + ttl)
        if len(self._holds) % TIDY_AT == 0:
            for name, held in list(self._holds.items()):
                if not held.is_alive():
                    self._holds.pop(name, None)  # with the last reference its connection is closed
        return Grant(0, sent)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        held = self._holds.get((key, owner))
        return held is not None and held.keep(ttl)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        held = self._holds.get((key, owner))
        return held is not None and held.keep(ttl, exactly=True)

    def release(self, key: str, owner: str) -> bool:
        held = self._holds.pop((key, owner), None)
        return held is not None and held.release(self._pool)

    def force_release(self, key: str, expected: str) -> bool:
        """See the base class: the server ends its session, of the same role or for pg_signal_backend."""
        patience = round(self._timeout * 1000)
        return bool(self._pool.fetch(TERMINATE, {**halves_of(key), "owner": expected, "patience": patience}))

    def holder(self, key: str) -> Holder | None:
        """See the base class: of several readers one, and their number; what is left only they know."""
        rows = self._pool.fetch(HOLDERS, halves_of(key))
        return Holder(rows[0][0], len(rows), None) if rows else None

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with its session, whose end the socket tells."""
        held = self._holds.get((key, owner))
        return math.inf if held is not None and held.is_alive() else -math.inf

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; live, detect a pooler as well."""
        try:
            if live:
                self._pool.fetch("SELECT 1")
        except LockNotSupported as error:
            hint = "Connect to PostgreSQL itself, or pool sessions instead of transactions."
            return [CheckError(str(error), hint=hint, id="locking.E111")]
        return []


def halves_of(key: str) -> dict[str, Any]:
    """Return the lock's number as `pg_locks` shows it."""
    number = number_of(key) % 2**64
    return {"high": number >> 32, "low": number % 2**32}


def _asked(connection: BaseDatabaseWrapper, statement: str, asked: Any = None) -> list[Any]:
    with connection.cursor() as cursor:
        return fetched(cursor, statement, asked)
