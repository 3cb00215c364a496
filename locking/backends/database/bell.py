"""How waiters of a process are woken: one connection listens for all, and wakes the first of each lock.

One, not all: whoever is woken takes the lock or stays first, so a release costs one question a process
however many wait there. Whoever leaves after it was woken wakes the next.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from locking.backends.database.connections import Pool, discard
from locking.backends.database.sql import CHANNEL

logger = logging.getLogger("locking")

LINGER: Final = 5.0
"""Seconds for which the connection goes on listening when nobody waits any more."""

RECONNECT_PAUSE: Final = 0.5

BELLS: Final[WeakSet[Bell]] = WeakSet()


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
        self.reset()
        BELLS.add(self)

    def reset(self) -> None:
        """Start with nobody; a forked child has neither its parent's waiters nor the listening thread."""
        self._mutex = threading.Lock()
        self._lines: dict[str, deque[Waiter]] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        self.listens = False

    def join(self, key: str, waiter: Waiter) -> None:
        """Stand in line for news of `key`."""
        with self._mutex:
            self._lines.setdefault(key, deque()).append(waiter)
            if self._thread is None:
                self._closing = False
                self._thread = threading.Thread(target=self._run, name="locking-bell", daemon=True)
                self._thread.start()

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

    def _run(self) -> None:
        while not self._is_done(0.0):
            try:
                self._listen()
            except Exception as error:  # the driver's own, for nobody translates what comes unasked
                logger.warning("waiters of locks in the database ask by the clock, for now: %s", error)
                time.sleep(RECONNECT_PAUSE)
            finally:
                self.listens = False

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
        """Whether nobody waits (any more): the next to come then starts another thread."""
        with self._mutex:
            done = self._closing or (not self._lines and time.monotonic() - idle_since > LINGER)
            if done:
                self._thread = None
            return done


def _reset_all() -> None:
    for bell in list(BELLS):
        bell.reset()


os.register_at_fork(after_in_child=_reset_all)
