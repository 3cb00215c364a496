"""How waiters of a process are woken: one connection listens for all, and wakes the first of each lock.

One, not all: whoever is woken takes the lock or stays first, so a release costs one question a process
however many wait there. Whoever leaves after it was woken wakes the next.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from locking.backends.database.connections import Pool, discard
from locking.backends.database.sql import CHANNEL
from locking.background import Worker, after_fork
from locking.clock import now

logger = logging.getLogger("locking")

LINGER: Final = 5.0
"""Seconds for which the connection goes on listening when nobody waits any more."""

RECONNECT_PAUSE: Final = 0.5


class Waiter:
    """One who waits: `wake` is called, perhaps from another thread, when it is time to ask again."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.woken = False

    def ring(self) -> None:
        """Wake it."""
        self.woken = True
        self._wake()


class Bell:
    """The waiters of one backend in this process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._worker = Worker("locking-bell", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start with nobody; a forked child has none of its parent's waiters."""
        self._mutex = threading.Lock()
        self._lines: dict[str, deque[Waiter]] = {}
        self._closing = False
        self.listens = False

    def join(self, key: str, waiter: Waiter) -> None:
        """Stand in line for news of `key`."""
        with self._mutex:
            self._lines.setdefault(key, deque()).append(waiter)
            self._closing = False
        if not self.listens:
            self._worker.wake()

    def leave(self, key: str, waiter: Waiter) -> None:
        """Step out of the line; news that this one has heard and not used goes to the next."""
        with self._mutex:
            line = self._lines.get(key)
            if line is None or waiter not in line:
                return
            line.remove(waiter)
            if not line:
                del self._lines[key]
            elif waiter.woken:
                line[0].ring()

    def ring(self, key: str) -> None:
        """Wake the first who waits for `key`."""
        with self._mutex:
            if line := self._lines.get(key):
                line[0].ring()

    def close(self) -> None:
        """Stop listening; whoever waits asks by the clock, and the next to come listens again."""
        self._closing = True

    def _ring_all(self) -> None:
        with self._mutex:
            for line in self._lines.values():
                line[0].ring()

    def _step(self) -> float | None:
        """Listen until nobody waits any more; after trouble, again in a moment."""
        pause = 0.0
        try:
            if not self._is_done(-math.inf):
                self._listen()
        except Exception as error:  # the driver's own, for nobody translates what comes unasked
            logger.warning("waiters of locks in the database ask by the clock, for now: %s", error)
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
            self._ring_all()  # for what was told before this connection listened
            idle_since = time.monotonic()
            while not self._is_done(idle_since):
                for news in raw.notifies(timeout=0.5):
                    self.ring(news.payload)
                if self._lines:
                    idle_since = time.monotonic()
        finally:
            discard(connection)

    def _is_done(self, idle_since: float) -> bool:
        """Whether nobody waits (any more), or nobody is to be woken."""
        with self._mutex:
            return self._closing or (not self._lines and time.monotonic() - idle_since > LINGER)
