"""Connections of the locks' own: a lock that were taken on the caller's would end with his transaction.

They are made from DATABASES and not registered with Django, so that neither a transaction, a rollback nor
`close_old_connections` of the caller reaches them. Each serves one request, or one hold, at a time.
"""

from __future__ import annotations

import inspect
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet, finalize

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.databases import VENDORS, was_overtaken
from locking.exceptions import BackendError, BackendUnavailable

T = TypeVar("T")

ATTEMPTS: Final = 2
"""The first may meet a connection that the server closed while it was idle; the second has a fresh one."""

UNREACHABLE: Final = (OperationalError, InterfaceError)

PARENTS: Final[list[BaseDatabaseWrapper]] = []
"""What a forked child inherited: kept, so that nothing closes it, for closing would end the parent's."""

POOLS: Final[WeakSet[Pool]] = WeakSet()


class Pool:
    """Connections to the database `using`, made at need and kept for the next request.

    Args:
        using: alias in DATABASES.
        timeout: seconds after which an unanswered request is given up, and its connection with it.
        owner: how errors call the backend.
        ready: run once on every new connection.
    """

    def __init__(
        self, using: str, timeout: float, owner: str, ready: Callable[[BaseDatabaseWrapper], object] = bool
    ) -> None:
        self.using, self.owner = using, owner
        self._timeout, self._ready = timeout, ready
        self._idle: deque[BaseDatabaseWrapper] = deque()
        finalize(self, close_all, self._idle)
        POOLS.add(self)

    @property
    def vendor(self) -> str:
        """Which engine it is; asks nobody."""
        return connections[self.using].vendor

    def forget(self) -> None:
        """Drop the idle ones without a word to the server: they are the parent process's."""
        PARENTS.extend(self._idle)
        for connection in self._idle:
            detach(connection)
        self._idle.clear()

    def run(self, step: Callable[[Any, int], T]) -> T:
        """Return what `step` makes of a cursor and the number of the attempt.

        It is repeated once on a fresh connection when the reply is lost: it must be safe to repeat.

        Raises:
            BackendUnavailable: no reply; what was done is unknown. BackendError: an error as reply.
        """
        with self.translated():
            for attempt in range(1, ATTEMPTS):
                with suppress(*UNREACHABLE):
                    return self._try(step, attempt)
                self.close()
            return self._try(step, ATTEMPTS)

    def _try(self, step: Callable[[Any, int], T], attempt: int) -> T:
        connection = self.take()
        try:
            with connection.cursor() as cursor:
                answer = step(cursor, attempt)
        except BaseException:
            discard(connection)
            raise
        self.give_back(connection)
        return answer

    def take(self) -> BaseDatabaseWrapper:
        """Return a connection that nobody else uses until it is given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def give_back(self, connection: BaseDatabaseWrapper) -> None:
        """Keep `connection` for the next; a test's database is to be dropped, which it would prevent."""
        if _is_a_tests(connection):
            discard(connection)
        else:
            self._idle.append(connection)

    def _connect(self) -> BaseDatabaseWrapper:
        connection = _copy(self.using, self._timeout)
        try:
            with connection.wrap_database_errors:
                connection.connect()
            _bound(connection, self._timeout)
            self._ready(connection)
        except BaseException:
            discard(connection)
            raise
        return connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise our errors for the database's: *no answer* and *an error as answer* are two things."""
        try:
            yield
        except Error as error:
            raise self._meant(error) from error

    def _meant(self, error: Error) -> BackendError:
        which = f"the database {self.using!r} of the lock backend {self.owner!r}"
        if isinstance(error, UNREACHABLE) and "no such table" not in str(error):
            return BackendUnavailable(f"{which} doesn't answer: {error}")
        return BackendError(
            f"{which} refused the request (is 'locking' in INSTALLED_APPS, and"
            f" `manage.py migrate --database {self.using}` done?): {error}"
        )

    def close(self) -> None:
        """Close the idle ones."""
        close_all(self._idle)


def _forget_all() -> None:
    for pool in list(POOLS):
        pool.forget()


os.register_at_fork(after_in_child=_forget_all)


def require_alias(using: object, owner: str) -> str:
    """Return `using` if DATABASES has it and the locks know its engine.

    Raises:
        ImproperlyConfigured: saying which there are, or which engines are known.
    """
    if not isinstance(using, str) or using not in connections.settings:
        known = ", ".join(map(repr, sorted(connections.settings)))
        raise ImproperlyConfigured(
            f"LOCKING[{owner!r}]['OPTIONS']['using'] is {using!r}, which DATABASES doesn't have; it has"
            f" {known}"
        )
    if connections[using].vendor not in VENDORS:
        raise ImproperlyConfigured(
            f"LOCKING[{owner!r}] is on the database {using!r}, {connections[using].display_name}; locks know"
            " PostgreSQL, MySQL, MariaDB and SQLite"
        )
    return using


def in_memory(using: str) -> bool:
    """Whether the database is SQLite's in memory: a second connection would see another one, or stall."""
    name = str(connections[using].settings_dict["NAME"])
    return connections[using].vendor == "sqlite" and (":memory:" in name or "mode=memory" in name)


def _copy(using: str, timeout: float) -> BaseDatabaseWrapper:
    """Return a wrapper with the present settings of `using`, in autocommit and at READ COMMITTED."""
    if in_memory(using):
        raise ImproperlyConfigured(
            f"locks can't be kept in the database {using!r}: it lives in memory, where a second connection"
            " doesn't reach it; give it a file, or take locking.testing.override_locks in tests"
        )
    connection = connections[using].copy()
    connection.inc_thread_sharing()
    connection.locks_only = True  # type: ignore[attr-defined]  # see locking.liveness
    settings = connection.settings_dict
    settings["AUTOCOMMIT"] = True
    settings["OPTIONS"] = {**settings["OPTIONS"], **_own_options(connection.vendor, timeout)}
    settings["OPTIONS"].pop("pool", None)
    return connection


def _own_options(vendor: str, timeout: float) -> dict[str, Any]:
    if vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        return {"isolation_level": IsolationLevel.READ_COMMITTED, "connect_timeout": max(2, round(timeout))}
    if vendor == "mysql":
        seconds = max(1, round(timeout))
        bounds = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), seconds)
        return {"isolation_level": "read committed", **bounds}
    return {"timeout": timeout}


def _bound(connection: BaseDatabaseWrapper, timeout: float) -> None:
    """Have psycopg give up on a server that is frozen: libpq by itself waits without end."""
    wait = getattr(connection.connection, "wait", None)
    if wait is not None and "timeout" in inspect.signature(wait).parameters:
        connection.connection.wait = partial(wait, timeout=timeout)


def _is_a_tests(connection: BaseDatabaseWrapper) -> bool:
    settings = connection.settings_dict
    return bool(settings["NAME"] == (settings["TEST"]["NAME"] or f"test_{_undecorated(settings['NAME'])}"))


def _undecorated(name: object) -> str:
    return str(name).removeprefix("test_")


def close_all(idle: deque[BaseDatabaseWrapper]) -> None:
    """Close connections that nobody uses."""
    while idle:
        discard(idle.pop())


def discard(connection: BaseDatabaseWrapper) -> None:
    """Close a connection, whatever state it is in and whatever thread this is.

    Not by Django's `close`: in an event loop's thread, where garbage may be collected too, it refuses.
    """
    raw, connection.connection = connection.connection, None
    with suppress(Exception):
        raw.close()


def detach(connection: BaseDatabaseWrapper) -> None:
    """Take this process's hands off its parent's socket: a copy keeps it open beyond the parent's end."""
    fileno = getattr(connection.connection, "fileno", None)
    if fileno is None:
        return
    with suppress(Exception):
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, fileno())
        os.close(nothing)


def is_conflict(error: BaseException) -> bool:
    """Whether the database gave the statement up for another's sake, and changed nothing."""
    return was_overtaken(error)
