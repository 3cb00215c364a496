"""A row for each lock: leases by the database's clock, tokens that are kept in the row."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from django.core.checks import CheckMessage, Error
from django.db import DatabaseError

from locking.backends.base import (
    HEARTBEAT_TTL,
    AsyncPollingWaiter,
    AsyncWaiter,
    Busy,
    Grant,
    Heartbeat,
    Held,
    Holder,
    Outcome,
    PollingWaiter,
    Waiter,
)
from locking.backends.capabilities import ForceRelease, Heartbeats, Listing
from locking.backends.database.connection_pool import (
    DEFAULT_TIMEOUT,
    MAX_CONNECTIONS,
    ConnectionPool,
    NoConnection,
    changed,
    discard,
    fetched,
    in_memory,
    require_alias,
)
from locking.backends.database.sql import BY_VENDOR, CHANNEL
from locking.backends.waiters import WaitingSteps, WokenTask, WokenThread
from locking.conf import AliasSettings, own_count, own_options
from locking.exceptions import BackendUnavailable
from locking.utils.background import Worker, after_fork
from locking.utils.clock import jittered, now
from locking.utils.databases import fence_name, storable, was_overtaken
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

RECHECK: Final = 1.0
"""Seconds after which a waiter asks again although it heard nothing: news may be lost with a connection."""

SWEEP_EVERY: Final = 3600.0
SWEEP_LIMIT: Final = 1000
CONFLICT_TRIES: Final = 5

RECONNECT_PAUSE: Final = 0.5


class DatabaseBackend(Heartbeats, Listing, ForceRelease):
    """`"BACKEND": "locking.backends.database.DatabaseBackend"`, `"OPTIONS": {"using": "default"}`.

    Options:
        using: alias in DATABASES; its table is made by `manage.py migrate`.
        timeout: seconds after which a request is given up.
        max_connections: the process has at most so many for its requests, and one that listens.
    """

    supports_fencing = True

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        options = own_options(
            settings, using="default", timeout=DEFAULT_TIMEOUT, max_connections=MAX_CONNECTIONS
        )
        size = own_count(settings, options["max_connections"], "max_connections")
        self._using = require_alias(options["using"], settings.alias)
        self._pool = ConnectionPool(self._using, options["timeout"], settings.alias, size=size)
        self._listener = NotificationListener(self._pool)
        self._next_sweep = now() + SWEEP_EVERY
        self.sql = BY_VENDOR[self._pool.vendor]

    def _id(self, key: str) -> str:
        return fence_name(key, self._pool.vendor)

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.ask(key, owner, ttl, fenced=fenced, queue=False)

    def ask(self, key: str, owner: str, ttl: float, *, fenced: bool, queue: bool) -> Outcome:
        """Acquire the lock or return its holder; with `queue`, ask for a notification of its release."""
        sent = now()
        asked = {
            "id": self._id(key), "name": storable(key), "owner": owner, "ttl": microseconds(ttl),
            "kept": fenced, "queue": queue, "heard": microseconds(RECHECK * 5),
        }  # fmt: skip
        try:
            row, attempt = self._pool.run(lambda cursor, attempt: (self._take(cursor, asked), attempt))
        except BackendUnavailable as error:
            if isinstance(error, NoConnection) or "database is locked" in str(error):  # SQLite's, by a writer
                return Busy(outage=error)  # nothing was done: a waiter asks again while its time lasts
            raise
        if row is None:
            return Busy(retry_after=0.0)  # it was released between two statements
        holder, token, left, is_new = row
        if holder != owner:
            return Busy(max(0.0, left / 1e6), holder)
        return Grant(token, sent, resent=attempt > 1, is_new=bool(is_new))

    def _take(self, cursor: Any, asked: dict[str, Any]) -> Any:
        for _ in range(CONFLICT_TRIES - 1):
            try:
                return self._take_once(cursor, asked)
            except DatabaseError as error:
                if not was_overtaken(error):
                    raise
        return self._take_once(cursor, asked)

    def _take_once(self, cursor: Any, asked: dict[str, Any]) -> Any:
        if self._pool.vendor == "sqlite":
            # Readers don't wait, writers for every transaction that has written: look first.
            row = self._seen(cursor, asked)
            if row is not None and row[0] != asked["owner"]:
                return row
        if "take" in self.sql:
            rows = fetched(cursor, self.sql["take"], asked)
            return rows[0] if rows else self._seen(cursor, asked)
        if not changed(cursor, self.sql["update"], asked):
            if (row := self._seen(cursor, asked)) is not None:
                return row
            cursor.execute(self.sql["insert"], asked)
        return self._seen(cursor, asked)

    def _seen(self, cursor: Any, asked: dict[str, Any]) -> Any:
        cursor.execute(self.sql["seen"], asked)
        return cursor.fetchone()

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._change("extend", key, owner, ttl)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self._change("shorten", key, owner, ttl)

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class: one statement for all, then one for each lease that it did not extend.

        It passes over a row that another transaction has locked: waiting for one would keep all the others.
        """
        rows = [(self._id(key), owner) for key, owner, _ in leases]
        extended = set[tuple[str, str]]()
        if "extend_many" in self.sql and leases:
            ids, owners = map(list, zip(*rows, strict=True))
            asked = {"ids": ids, "owners": owners, "ttls": [microseconds(ttl) for *_, ttl in leases]}
            extended.update(self._pool.fetch(self.sql["extend_many"], asked))
        rest = [lease for lease, row in zip(leases, rows, strict=True) if row not in extended]
        try:
            answers = iter(super().extend_many(rest))
        except BackendUnavailable:
            if not extended:
                raise
            answers = iter([None] * len(rest))
        return [True if row in extended else next(answers) for row in rows]

    def release(self, key: str, owner: str) -> bool:
        return self._change("release", key, owner)

    def _change(self, verb: str, key: str, owner: str, ttl: float = 0.0) -> bool:
        """Change the row if it is the owner's; False when it isn't."""
        asked = {"id": self._id(key), "owner": owner, "ttl": microseconds(ttl)}

        def step(cursor: Any, attempt: int) -> bool:
            # The first attempt at a release, whose reply was lost, has most likely been carried out.
            return changed(cursor, self.sql[verb], asked) == 1 or (attempt > 1 and verb == "release")

        return self._pool.run(step)

    def force_release(self, key: str, expected: str) -> bool:
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        row = self._pool.run(lambda cursor, _: self._seen(cursor, {"id": self._id(key)}))
        return None if row is None else Holder(row[0], 1, row[2] / 1e6)

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        asked = {"prefix": prefix, "offset": offset, "limit": limit}
        rows = self._pool.fetch(self.sql["held"], asked)
        return [
            Held(key=name, owner=owner, token=token, remaining=left / 1e6, since=since / 1e6)
            for name, owner, token, left, since in rows
        ]

    def count_held(self, *, prefix: str = "") -> int:
        ((number,),) = self._pool.fetch(self.sql["count"], {"prefix": prefix})
        return int(number)

    def sweep(self, limit: int = SWEEP_LIMIT) -> int:
        """Delete rows of locks that were not held for a day, and return how many; once per hour and process.

        A row that was ever held with `fenced=True` stays: its token must not be forgotten.
        """
        return self._pool.change(self.sql["sweep"], {"limit": limit})

    # heartbeats of processes: one row each, by the database's clock

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        def step(cursor: Any, _: int) -> None:
            for client, text in records.items():
                statement = self.sql["tell_same" if text is None else "tell"]
                cursor.execute(statement, {"id": self._id(self.key(client)), "text": text})
            for client in forget:
                cursor.execute(self.sql["forget"], {"id": self._id(self.key(client))})

        self._pool.run(step)

    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        prefix, rows = self.settings.key_prefix, self._pool.fetch(self.sql["all_heartbeats"])
        found = {
            client.removeprefix(prefix): Heartbeat(text, max(0, silent) / 1e6)
            for client, text, silent in rows
            if client.startswith(prefix)
        }
        return {client: found[client] for client in (found if clients is None else found.keys() & clients)}

    def tidy(self) -> None:
        """Delete the records of processes that stopped long ago and, once per hour, the rows of old locks."""
        self._pool.change(self.sql["tidy"], {"kept": HEARTBEAT_TTL * 1_000_000})
        if now() >= self._next_sweep and self.sweep() < SWEEP_LIMIT:
            self._next_sweep = now() + SWEEP_EVERY

    # waiting

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        kind = RowWaiter if self._pool.vendor == "postgresql" else PollingWaiter
        return kind(self, key, owner, ttl, fenced)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        kind = AsyncRowWaiter if self._pool.vendor == "postgresql" else AsyncPollingWaiter
        return kind(self, key, owner, ttl, fenced)

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        if in_memory(self._using):
            text = f"LOCKING[{self.alias!r}] is on the database {self._using!r}, which lives in memory."
            hint = "A second connection doesn't reach it: give it a file, or take another backend."
            return [Error(text, hint=hint, id="locking.E009")]
        if live:
            self.count_held(prefix="locking:check")
        return []

    def close(self) -> None:
        self._listener.close()
        self._pool.close()


def microseconds(seconds: float) -> int:
    """Return whole microseconds, as the rows have them."""
    return max(1, round(seconds * 1_000_000))


class RowSteps(WaitingSteps):
    """What a waiter does: it is woken by the listener, and polls where the listener is silent."""

    def __init__(self, backend: DatabaseBackend, key: str, owner: str, ttl: float, fenced: bool) -> None:
        super().__init__()
        self._backend, self._listener, self._id = backend, backend._listener, backend._id(key)
        self._key, self._owner = key, owner
        self._asked = partial(backend.ask, key, owner, ttl, fenced=fenced)
        self._attempts = -1  # the first isn't a wait's
        self._stands = self._left = self.woken = False

    def ask(self, *, queue: bool) -> Outcome:
        """See the base class; a waiter listens before it asks again, so that no release is missed."""
        outcome = self._asked(queue=queue and self._stands)
        if queue and not self._stands and isinstance(outcome, Busy):
            self._stands = True
            self._listener.subscribe(self._id, self)
            if self._left:  # meanwhile: this is a thread that a cancelled task left behind
                self.give_up()
            outcome = self._asked(queue=True)
        self.woken = False
        self._attempts += 1
        if isinstance(outcome, Grant):
            self.give_up()
        return outcome

    def notify(self) -> None:
        """Wake the waiter, and note that the notification was for it."""
        self.woken = True
        self.wake()

    def give_up(self) -> None:
        self._left = True
        self._listener.unsubscribe(self._id, self)

    def pause(self) -> float:
        return RECHECK if self._listener.listens else jittered(self._attempts)


class RowWaiter(RowSteps, WokenThread):
    """A thread that waits for a row."""


class AsyncRowWaiter(RowSteps, WokenTask):
    """A task that waits for a row."""

    async def try_acquire(self, *, queue: bool) -> Outcome:
        ask = partial(self.ask, queue=queue)
        return await self._backend.asked_in_thread(ask, self._key, self._owner)

    async def leave(self) -> None:
        self.give_up()


class NotificationListener:
    """Wakes the waiters of a process: one connection listens for all, and the first of each lock is woken.

    A woken waiter takes the lock or stays first, so a release costs one question a process however many wait
    there. A waiter that gives up after it was woken wakes the next.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._worker = Worker("locking-listen-database", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start without subscribers; a forked child has none of its parent's subscribers."""
        self._mutex = threading.Lock()
        self.subscribers: dict[str, deque[RowSteps]] = {}
        self._closing = False
        self.listens = False

    def subscribe(self, key: str, subscriber: RowSteps) -> None:
        """Subscribe to news of `key`."""
        with self._mutex:
            self.subscribers.setdefault(key, deque()).append(subscriber)
            self._closing = False
        if not self.listens:
            self._worker.wake()

    def unsubscribe(self, key: str, subscriber: RowSteps) -> None:
        """Unsubscribe; an unused notification goes to the next subscriber."""
        with self._mutex:
            line = self.subscribers.get(key)
            if line is None or subscriber not in line:
                return
            line.remove(subscriber)
            if not line:
                del self.subscribers[key]
            elif subscriber.woken:
                line[0].notify()

    def notify(self, key: str) -> None:
        """Wake the first who waits for `key`."""
        with self._mutex:
            if line := self.subscribers.get(key):
                line[0].notify()

    def close(self) -> None:
        """Stop listening; waiters poll, and the next subscriber listens again."""
        self._closing = True

    def _step(self) -> float | None:
        """Listen until there are no more waiters; after trouble, again in a moment."""
        pause = 0.0
        try:
            if self._is_needed():
                self._listen()
        except Exception as error:  # the driver's own: what arrives unasked is not translated
            message = "waiters for locks in the database poll for now: %s"
            log_rarely(logger, logging.WARNING, "waiters poll", message, error)
            pause = RECONNECT_PAUSE
        finally:
            self.listens = False
        return now() + pause if self._is_needed() else None

    def _is_needed(self) -> bool:
        """Return whether there is a waiter to wake."""
        with self._mutex:
            return bool(self.subscribers) and not self._closing

    def _listen(self) -> None:
        connection = self._pool.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
            raw: Any = connection.connection
            with suppress(AttributeError):
                del raw.wait  # its time-out is for replies; news may come at any time
            self.listens = True
            with self._mutex:  # for what was sent before this connection listened
                for line in self.subscribers.values():
                    line[0].notify()
            while self._is_needed():
                for news in raw.notifies(timeout=0.5):
                    self.notify(news.payload)
        finally:
            discard(connection)
