"""How the waiters of a process are woken: one connection listens for all, and wakes the first of each lock.

One, not all: a woken waiter takes the lock or stays first, so a release costs one question a process
however many wait there. A waiter that gives up after it was woken wakes the next.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Final, Protocol

from locking.backends.database.connection_pool import ConnectionPool, discard
from locking.backends.database.sql import CHANNEL
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

LINGER: Final = 5.0
"""Seconds for which the connection goes on listening when there are no more waiters."""

RECONNECT_PAUSE: Final = 0.5


class Subscriber(Protocol):
    """A waiter: `notify` is called, perhaps from another thread, when it is time to ask again.

    Attributes:
        woken: it was notified, and has not asked since.
    """

    woken: bool

    def notify(self) -> None:
        """Wake it."""


class NotificationListener:
    """The subscribers of one backend in this process."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._worker = Worker("locking-listen-database", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start without subscribers; a forked child has none of its parent's subscribers."""
        self._mutex = threading.Lock()
        self._subscribers: dict[str, deque[Subscriber]] = {}
        self._closing = False
        self.listens = False

    def subscribe(self, key: str, subscriber: Subscriber) -> None:
        """Subscribe to news of `key`."""
        with self._mutex:
            self._subscribers.setdefault(key, deque()).append(subscriber)
            self._closing = False
        if not self.listens:
            self._worker.wake()

    def unsubscribe(self, key: str, subscriber: Subscriber) -> None:
        """Unsubscribe; an unused notification goes to the next subscriber."""
        with self._mutex:
            line = self._subscribers.get(key)
            if line is None or subscriber not in line:
                return
            line.remove(subscriber)
            if not line:
                del self._subscribers[key]
            elif subscriber.woken:
                line[0].notify()

    def notify(self, key: str) -> None:
        """Wake the first who waits for `key`."""
        with self._mutex:
            if line := self._subscribers.get(key):
                line[0].notify()

    def close(self) -> None:
        """Stop listening; waiters poll, and the next subscriber listens again."""
        self._closing = True

    def _step(self) -> float | None:
        """Listen until there are no more waiters; after trouble, again in a moment."""
        pause = 0.0
        try:
            if not self._is_done(-math.inf):
                self._listen()
        except Exception as error:  # the driver's own: what arrives unasked is not translated
            message = "waiters for locks in the database poll for now: %s"
            log_rarely(logger, logging.WARNING, "waiters poll", message, error)
            pause = RECONNECT_PAUSE
        finally:
            self.listens = False
        return None if self._is_done(-math.inf) else now() + pause

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
                for line in self._subscribers.values():
                    line[0].notify()
            idle_since = time.monotonic()
            while not self._is_done(idle_since):
                for news in raw.notifies(timeout=0.5):
                    self.notify(news.payload)
                if self._subscribers:
                    idle_since = time.monotonic()
        finally:
            discard(connection)

    def _is_done(self, idle_since: float) -> bool:
        """Whether there is no waiter left to wake."""
        with self._mutex:
            return self._closing or (not self._subscribers and time.monotonic() - idle_since > LINGER)
