"""Connections of the locks' own: on the caller's connection a lock would end with the caller's transaction.

They are made from DATABASES and not registered with Django, so that neither a transaction, a rollback nor
`close_old_connections` of the caller reaches them. Each serves one request, or one hold, at a time. A process
has few of them: a thread that waits for a lock has none.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakSet, finalize

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.base import BaseLockBackend
from locking.conf import AliasSettings, own_count, own_options
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import after_fork
from locking.utils.clock import now
from locking.utils.databases import VENDORS, setting_too_small

T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 5.0  # seconds after which a request to a database that doesn't answer is given up

MAX_CONNECTIONS: Final = 8  # per process and backend: threads that ask at the same time share them
UNREACHABLE: Final = (OperationalError, InterfaceError)

# What a forked child inherited: kept, so that nothing closes it, for closing would end the parent's.
PARENTS: Final[list[BaseDatabaseWrapper]] = []


class NoConnection(BackendUnavailable):
    """No connection became free in time: nothing was sent, so the wait for the lock may go on."""

    sent = silent = False


class Permit:
    """Allows one request at a time to use a connection."""


class ConnectionPool:
    """Connections to the database `using`, made at need and kept for the next request."""

    def __init__(
        self,
        using: str,  # alias in DATABASES
        timeout: float,  # seconds after which an unanswered request is given up, and its connection with it
        owner: str,  # how errors call the backend
        ready: Callable[[BaseDatabaseWrapper], object],  # run once on every new connection
        size: int,  # requests at the same time; who takes a connection has another
    ) -> None:
        self.using, self.vendor = using, connections[using].vendor
        self._which = f"the database {using!r} of the lock backend {owner!r}"
        self._timeout, self._ready, self._size = timeout, ready, size
        self._idle: deque[BaseDatabaseWrapper] = deque()
        self.forget()
        finalize(self, _close_all, self._idle)
        after_fork(self.forget)

    def forget(self) -> None:
        """Drop the idle ones without a word to the server: after a fork they are the parent process's."""
        abandon(self._idle)
        self._idle.clear()
        # Reentrant: a signal handler may release a lock while its thread is in here.
        self._changed = threading.Condition(threading.RLock())
        # Weak: a permit that is lost to an exception from a signal handler is free again.
        self._permits: WeakSet[Permit] = WeakSet()

    def run(self, step: Callable[[Any, int], T]) -> T:
        """Return what `step` makes of a cursor and the number of the attempt.

        It is repeated once on a fresh connection when the reply is lost: it must be safe to repeat. Without
        a reply what was done is unknown, but for NoConnection.
        """

        def request(attempt: int) -> T:
            permit = self._enter()
            try:
                connection = self.take()
                try:
                    with connection.cursor() as cursor:
                        answer = step(cursor, attempt)
                except BaseException:
                    discard(connection)
                    raise
                self.give_back(connection)
                return answer
            finally:
                with self._changed:
                    self._permits.discard(permit)
                    self._changed.notify()

        return self.retried(request)

    def retried(self, request: Callable[[int], T]) -> T:
        """Return what `request` makes of the number of the attempt; see `run`."""
        attempt = 1
        try:
            try:
                return request(attempt)
            except UNREACHABLE:  # the server may have closed the connection while it was idle
                self.close()
            attempt = 2
            return request(attempt)
        except NoConnection as error:
            error.sent = attempt > 1  # by the attempt before
            raise
        except Error as error:
            raise self.meant(error) from error

    def fetch(self, statement: str, asked: Any = None) -> list[Any]:
        """Return the rows that a statement answers; see `run`."""
        return self.run(lambda cursor, _: fetched(cursor, statement, asked))

    def _enter(self) -> Permit:
        """Return a permit; wait for it while there are `size`."""
        deadline = now() + self._timeout
        with self._changed:
            while len(self._permits) >= self._size:
                if (left := deadline - now()) <= 0:
                    raise NoConnection(
                        f"{self._which} is busy: all {self._size} connections of this process were in use for"
                        f" {self._timeout:g} s; raise OPTIONS['max_connections'], or find out what is slow"
                    )
                self._changed.wait(min(left, 1.0))
            self._permits.add(permit := Permit())
            return permit

    def take(self) -> BaseDatabaseWrapper:
        """Return a connection for the caller alone, for long if need be; NoConnection: no slot is left."""
        with suppress(IndexError):
            return self._idle.pop()
        try:
            return self.connect()
        except OperationalError as error:
            if (setting := setting_too_small(error)) is None:
                raise
            raise NoConnection(
                f"{self._which} has no slot left for a connection: {setting} is too small for all"
                f" processes together; raise it, or have fewer connections: {error}"
            ) from error

    def give_back(self, connection: BaseDatabaseWrapper) -> None:
        """Keep `connection` for the next; a test's database is to be dropped, which it would prevent."""
        name, test = connection.settings_dict["NAME"], connection.settings_dict["TEST"]["NAME"]
        if name == (test or f"test_{str(name).removeprefix('test_')}"):
            discard(connection)
        else:
            self._idle.append(connection)

    def connect(self) -> BaseDatabaseWrapper:
        """Return a new connection, whose requests are given up on a server that is frozen."""
        connection = unconnected_copy(self.using, self._timeout)
        try:
            with connection.wrap_database_errors:
                connection.connect()
            raw: Any = connection.connection
            wait = getattr(raw, "wait", None)
            if wait is not None and "timeout" in inspect.signature(wait).parameters:
                raw.wait = partial(wait, timeout=self._timeout)  # libpq by itself waits without end
            self._ready(connection)
        except BaseException:
            discard(connection)
            raise
        return connection

    def meant(self, error: Error) -> BackendError:
        """Return our error for the database's: *no answer* and *an error as answer* are two things."""
        if isinstance(error, UNREACHABLE) and "no such table" not in str(error):
            return BackendUnavailable(f"{self._which} doesn't answer: {error}")
        return BackendError(
            f"{self._which} refused the request (is 'locking' in INSTALLED_APPS, and"
            f" `manage.py migrate --database {self.using}` done?): {error}"
        )

    def close(self) -> None:
        """Close the idle ones."""
        _close_all(self._idle)


class PooledBackend(BaseLockBackend):
    """A backend on the database `OPTIONS['using']`, which it asks over connections of its own."""

    vendors: ClassVar[tuple[str, ...]] = VENDORS  # the engines that have such locks
    options: ClassVar[dict[str, Any]] = {}  # further ones, with their defaults

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        where = f"LOCKING[{settings.alias!r}]"
        options = own_options(settings, using="default", timeout=DEFAULT_TIMEOUT, **self.options)
        using = self._using = options["using"]
        self._timeout = options["timeout"]
        if not isinstance(using, str) or using not in connections.settings:
            known = ", ".join(map(repr, sorted(connections.settings)))
            raise ImproperlyConfigured(
                f"{where}['OPTIONS']['using'] is {using!r}, which DATABASES doesn't have; it has {known}"
            )
        if (vendor := connections[using].vendor) not in self.vendors:
            advice = "take DatabaseBackend" if vendor in VENDORS else "take another engine"
            raise ImproperlyConfigured(
                f"{where}: {type(self).__name__} works on {', '.join(self.vendors)}, and the database"
                f" {using!r} is {connections[using].display_name}; {advice}"
            )
        size = own_count(settings, options.get("max_connections", MAX_CONNECTIONS), "max_connections")
        self._pool = ConnectionPool(using, self._timeout, settings.alias, self._identify, size)

    def _identify(self, connection: Any) -> None:
        """Prepare a new connection."""

    def close(self) -> None:
        """See the base class; what is held stays held."""
        self._pool.close()


def in_memory(using: str) -> bool:
    """Whether the database is SQLite's in memory: a second connection would see another one, or stall."""
    name = str(connections[using].settings_dict["NAME"])
    return connections[using].vendor == "sqlite" and (":memory:" in name or "mode=memory" in name)


def unconnected_copy(using: str, timeout: float) -> BaseDatabaseWrapper:
    """Return a wrapper with the present settings of `using`, in autocommit and at READ COMMITTED."""
    if in_memory(using):
        raise ImproperlyConfigured(
            f"locks can't be kept in the database {using!r}: it lives in memory, where a second connection"
            " doesn't reach it; give it a file, or take locking.testing.override_locks in tests"
        )
    connection = connections[using].copy()
    connection.inc_thread_sharing()
    settings = connection.settings_dict
    options: dict[str, Any] = {"timeout": timeout}
    if connection.vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        level: Any = IsolationLevel.READ_COMMITTED
        options = {"isolation_level": level, "connect_timeout": max(2, round(timeout))}
    elif connection.vendor == "mysql":
        bounds = ("connect_timeout", "read_timeout", "write_timeout")
        options = {"isolation_level": "read committed", **dict.fromkeys(bounds, max(1, round(timeout)))}
    settings["AUTOCOMMIT"] = True
    settings["OPTIONS"] = {**settings["OPTIONS"], **options}
    settings["OPTIONS"].pop("pool", None)
    return connection


def _close_all(idle: deque[BaseDatabaseWrapper]) -> None:
    while idle:
        discard(idle.pop())


def discard(connection: BaseDatabaseWrapper) -> None:
    """Close a connection, whatever state it is in and whatever thread this is."""
    raw, connection.connection = connection.connection, None
    with suppress(Exception):
        raw.close()  # Django's `close` refuses in an event loop's thread, where garbage may be collected too


def abandon(parents: Collection[BaseDatabaseWrapper]) -> None:
    """Take a forked child's hands off its parent's sockets: a copy keeps one open beyond the parent's end."""
    PARENTS.extend(parents)
    for connection in parents:
        raw: Any = connection.connection
        with suppress(Exception):  # it is closed
            number = int((getattr(raw, "_sock", None) or raw).fileno())  # PyMySQL keeps its socket to itself
            if number >= 0:
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, number)
                os.close(nothing)


def fetched(cursor: Any, statement: str, asked: Any = None) -> list[Any]:
    """Return the rows that a statement answers."""
    cursor.execute(statement, asked)
    return list(cursor.fetchall())


def changed(cursor: Any, statement: str, asked: Any) -> int:
    """Return how many rows a statement changes."""
    cursor.execute(statement, asked)
    return int(cursor.rowcount)
