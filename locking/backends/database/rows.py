"""A row for each lock: leases by the database's clock, tokens that are kept in the row."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.core.checks import CheckMessage, Error
from django.db import DatabaseError

from locking.backends.base import (
    AsyncPollingWaiter,
    AsyncWaiter,
    BaseLockBackend,
    Busy,
    Grant,
    Heartbeat,
    Held,
    Holder,
    Outcome,
    PollingWaiter,
    Waiter,
)
from locking.backends.database.connection_pool import (
    MAX_CONNECTIONS,
    ConnectionPool,
    NoConnection,
    in_memory,
    is_conflict,
    require_alias,
)
from locking.backends.database.heartbeats import HeartbeatStore
from locking.backends.database.notifications import NotificationListener, Subscriber
from locking.backends.database.sql import BY_VENDOR, Statements
from locking.backends.options import own_count, own_options
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.backoff import jittered
from locking.utils.clock import now
from locking.utils.databases import fence_name

DEFAULT_TIMEOUT: Final = 5.0
"""Seconds after which a request to a database that doesn't answer is given up."""

RECHECK: Final = 1.0
"""Seconds after which a waiter asks again although it heard nothing: news may be lost with a connection."""

SWEEP_EVERY: Final = 3600.0
SWEEP_LIMIT: Final = 1000
CONFLICT_TRIES: Final = 5


class DatabaseBackend(BaseLockBackend):
    """`"BACKEND": "locking.backends.database.DatabaseBackend"`, `"OPTIONS": {"using": "default"}`.

    Options:
        using: alias in DATABASES; its table is made by `manage.py migrate`.
        timeout: seconds after which a request is given up.
        max_connections: the process has at most so many for its requests, and one that listens.
    """

    supports_fencing = True
    supports_listing = True
    supports_force_release = True
    supports_handover = True

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = own_options(
            settings, using="default", timeout=DEFAULT_TIMEOUT, max_connections=MAX_CONNECTIONS
        )
        size = own_count(settings, options["max_connections"], "max_connections")
        self._using = require_alias(options["using"], settings.alias)
        self._pool = ConnectionPool(self._using, options["timeout"], settings.alias, size=size)
        self._listener = NotificationListener(self._pool)
        self._heartbeats = HeartbeatStore(self._pool, settings.key_prefix)
        self._next_sweep = now() + SWEEP_EVERY

    @property
    def sql(self) -> Statements:
        """The statements of this engine."""
        return BY_VENDOR[self._pool.vendor]

    def _id(self, key: str) -> str:
        return fence_name(key, self._pool.vendor)

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.ask(key, owner, ttl, fenced=fenced, queue=False)

    def ask(self, key: str, owner: str, ttl: float, *, fenced: bool, queue: bool) -> Outcome:
        """Acquire the lock or return its holder; with `queue`, ask for a notification of its release."""
        sent = now()
        asked = {
            "id": self._id(key), "name": key.replace("\0", "\N{SYMBOL FOR NULL}"), "owner": owner,
            "ttl": microseconds(ttl), "kept": fenced, "queue": queue, "heard": microseconds(RECHECK * 5),
        }  # fmt: skip
        try:
            row = self._pool.run(lambda cursor, _: self._take(cursor, asked), patience=0.0)
        except NoConnection as error:  # a waiter asks again while its time lasts
            return Busy(outage=error)
        except BackendUnavailable as error:
            if "database is locked" in str(error):  # SQLite: somebody writes, and nothing was done for us
                return Busy(outage=error)
            raise
        self._sweep_if_due()
        if row is None:
            return Busy(retry_after=0.0)  # it was released between two statements
        holder, token, left = row
        return Grant(token, sent) if holder == owner else Busy(max(0.0, left / 1e6), holder)

    def _take(self, cursor: Any, asked: dict[str, Any]) -> Any:
        for attempt in range(CONFLICT_TRIES):
            try:
                return self._take_once(cursor, asked)
            except DatabaseError as error:
                if not is_conflict(error) or attempt == CONFLICT_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _take_once(self, cursor: Any, asked: dict[str, Any]) -> Any:
        if self._pool.vendor == "sqlite":
            # Readers wait for nobody, writers for every transaction that has written: look first.
            row = self._seen(cursor, asked)
            if row is not None and row[0] != asked["owner"]:
                return row
        if self.sql.take is not None:
            cursor.execute(self.sql.take, asked)
            rows = cursor.fetchall()
            return rows[0] if rows else self._seen(cursor, asked)
        cursor.execute(self.sql.update, asked)
        if cursor.rowcount == 0:
            row = self._seen(cursor, asked)
            if row is not None:
                return row
            cursor.execute(self.sql.insert, asked)
        return self._seen(cursor, asked)

    def _seen(self, cursor: Any, asked: dict[str, Any]) -> Any:
        cursor.execute(self.sql.seen, asked)
        rows = cursor.fetchall()
        return rows[0] if rows else None

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        asked = {"id": self._id(key), "owner": owner, "ttl": microseconds(ttl)}
        return self._pool.run(lambda cursor, _: _changed(cursor, self.sql.extend, asked))

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        asked = {"id": self._id(key), "owner": owner, "ttl": microseconds(ttl)}
        return self._pool.run(lambda cursor, _: self._changed(cursor, self.sql.shorten, asked))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class: one statement for all, then one for each lease that it did not extend.

        It passes over a row that another transaction has locked: waiting for one would keep all the others.
        """
        extended = self._extended(leases)
        rest = [lease for lease in leases if lease[:2] not in extended]
        try:
            answers = super().extend_many(rest)
        except BackendUnavailable:
            if not extended:
                raise
            answers = [None] * len(rest)
        of_rest = dict(zip(rest, answers, strict=True))
        return [of_rest.get(lease, True) for lease in leases]

    def _extended(self, leases: Sequence[tuple[str, str, float]]) -> set[tuple[str, str]]:
        """Return key and owner of each lease that the statement for all has extended."""
        statement = self.sql.extend_many
        if statement is None or not leases:
            return set()
        of_row = {(self._id(key), owner): (key, owner) for key, owner, _ in leases}
        asked = {
            "ids": [self._id(key) for key, _, _ in leases],
            "owners": [owner for _, owner, _ in leases],
            "ttls": [microseconds(ttl) for _, _, ttl in leases],
        }
        return {of_row[row] for row in self._pool.run(lambda cursor, _: _rows(cursor, statement, asked))}

    def release(self, key: str, owner: str) -> bool:
        asked = {"id": self._id(key), "owner": owner}

        def step(cursor: Any, attempt: int) -> bool:
            # The first attempt, whose reply was lost, has most likely been carried out.
            return self._changed(cursor, self.sql.release, asked) or attempt > 1

        return self._pool.run(step)

    def _changed(self, cursor: Any, statement: str, asked: dict[str, Any]) -> bool:
        if self.sql.telling:
            return bool(_rows(cursor, statement, asked))
        return _changed(cursor, statement, asked)

    def force_release(self, key: str, expected: str) -> bool:
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        row = self._pool.run(lambda cursor, _: self._seen(cursor, {"id": self._id(key)}))
        return None if row is None else Holder(row[0], 1, row[2] / 1e6)

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        asked = {"prefix": prefix, "offset": offset, "limit": limit}
        rows = self._pool.run(lambda cursor, _: _rows(cursor, self.sql.held, asked))
        return [
            Held(key=name, owner=owner, token=token, remaining=left / 1e6, since=since / 1e6)
            for name, owner, token, left, since in rows
        ]

    def count_held(self, *, prefix: str = "") -> int:
        rows = self._pool.run(lambda cursor, _: _rows(cursor, self.sql.counted, {"prefix": prefix}))
        return int(rows[0][0])

    def sweep(self, limit: int = SWEEP_LIMIT) -> int:
        """Delete rows of locks that nobody has held for a day; once an hour a process does it by itself.

        A row that was ever held with `fenced=True` stays: its token must not be forgotten.

        Args:
            limit: the most to delete.

        Returns:
            How many were deleted.
        """
        return self._pool.run(lambda cursor, _: _count_changed(cursor, self.sql.sweep, {"limit": limit}))

    def _sweep_if_due(self) -> None:
        if now() < self._next_sweep:
            return
        self._next_sweep = now() + SWEEP_EVERY
        with suppress(BackendError):  # housekeeping spoils nobody's acquisition
            if self.sweep() == SWEEP_LIMIT:
                self._next_sweep = now()

    # heartbeats

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        self._heartbeats.publish(records, forget)

    def processes(self) -> dict[str, Heartbeat]:
        return self._heartbeats.read_all()

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        return self._heartbeats.read(clients)

    def tidy(self) -> None:
        self._heartbeats.tidy()

    # waiting

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        if not self.sql.telling:
            return PollingWaiter(self, key, owner, ttl, fenced)
        return RowWaiter(self, self._listener, key, owner, ttl, fenced)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        if not self.sql.telling:
            return AsyncPollingWaiter(self, key, owner, ttl, fenced)
        return AsyncRowWaiter(self, self._listener, key, owner, ttl, fenced)

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        if in_memory(self._using):
            return [
                Error(
                    f"LOCKING[{self.alias!r}] is on the database {self._using!r}, which lives in memory.",
                    hint="A second connection doesn't reach it: give it a file, or take another backend.",
                    id="locking.E009",
                )
            ]
        if live:
            self.count_held(prefix="locking:check")
        return []

    def close(self) -> None:
        self._listener.close()
        self._pool.close()


def microseconds(seconds: float) -> int:
    """Return whole microseconds, as the rows have them."""
    return max(1, round(seconds * 1_000_000))


def _rows(cursor: Any, statement: str, asked: dict[str, Any]) -> list[Any]:
    cursor.execute(statement, asked)
    rows: list[Any] = cursor.fetchall()
    return rows


def _changed(cursor: Any, statement: str, asked: dict[str, Any]) -> bool:
    return _count_changed(cursor, statement, asked) == 1


def _count_changed(cursor: Any, statement: str, asked: dict[str, Any]) -> int:
    cursor.execute(statement, asked)
    return int(cursor.rowcount)


class RowWaiter(Waiter):
    """A thread that is woken by the listener, and polls where the listener is silent."""

    def __init__(
        self,
        backend: DatabaseBackend,
        listener: NotificationListener,
        key: str,
        owner: str,
        ttl: float,
        fenced: bool,
    ) -> None:
        self._backend, self._listener, self._id = backend, listener, backend._id(key)
        self._asked = (key, owner, ttl)
        self._fenced = fenced
        self._woken = threading.Event()
        self._subscriber = Subscriber(self._woken.set)
        self._attempts = 0
        self._stands = False

    def try_acquire(self, *, queue: bool) -> Outcome:
        """See the base class; a waiter listens before it asks again, so that no release is missed."""
        outcome = self._backend.ask(*self._asked, fenced=self._fenced, queue=queue and self._stands)
        if queue and not self._stands and isinstance(outcome, Busy):
            self._listener.subscribe(self._id, self._subscriber)
            self._stands = True
            outcome = self._backend.ask(*self._asked, fenced=self._fenced, queue=True)
        self._subscriber.woken = False
        if isinstance(outcome, Grant):
            self.leave()
        return outcome

    def wait(self, timeout: float) -> Outcome:
        self._woken.wait(min(timeout, _pause(self._listener, self._attempts)))
        self._woken.clear()
        self._attempts += 1
        return self.try_acquire(queue=True)

    def sleep(self, timeout: float) -> Outcome | None:
        """See the base class; where nothing listens it asks at its intervals."""
        if timeout > _pause(self._listener, self._attempts) or self._woken.wait(timeout):
            return self.wait(timeout)
        return None

    def leave(self) -> None:
        self._listener.unsubscribe(self._id, self._subscriber)


class AsyncRowWaiter(AsyncWaiter):
    """`RowWaiter` for a task; its questions are asked in a thread, its waiting occupies none."""

    def __init__(
        self,
        backend: DatabaseBackend,
        listener: NotificationListener,
        key: str,
        owner: str,
        ttl: float,
        fenced: bool,
    ) -> None:
        self._backend, self._listener, self._id = backend, listener, backend._id(key)
        self._asked = (key, owner, ttl)
        self._fenced = fenced
        self._woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._subscriber = Subscriber(lambda: _set(loop, self._woken))
        self._attempts = 0
        self._stands = False

    async def try_acquire(self, *, queue: bool) -> Outcome:
        outcome = await self._ask(queue=queue and self._stands)
        if queue and not self._stands and isinstance(outcome, Busy):
            self._listener.subscribe(self._id, self._subscriber)
            self._stands = True
            outcome = await self._ask(queue=True)
        self._subscriber.woken = False
        if isinstance(outcome, Grant):
            await self.leave()
        return outcome

    async def _ask(self, *, queue: bool) -> Outcome:
        key, owner, _ = self._asked
        ask = partial(self._backend.ask, *self._asked, fenced=self._fenced, queue=queue)
        return await self._backend.asked_in_thread(ask, key, owner)

    async def wait(self, timeout: float) -> Outcome:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(timeout, _pause(self._listener, self._attempts))):
                await self._woken.wait()
        self._woken.clear()
        self._attempts += 1
        return await self.try_acquire(queue=True)

    async def sleep(self, timeout: float) -> Outcome | None:
        """See `RowWaiter.sleep`."""
        if timeout > _pause(self._listener, self._attempts):
            return await self.wait(timeout)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        return await self.wait(0) if self._woken.is_set() else None

    async def leave(self) -> None:
        self._listener.unsubscribe(self._id, self._subscriber)


def _pause(listener: NotificationListener, attempts: int) -> float:
    return RECHECK if listener.listens else jittered(attempts)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
