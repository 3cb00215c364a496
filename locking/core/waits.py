"""A wait for a lock: how many of them this process allows, and what accompanies one.

An uncontended acquisition never comes here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from locking.backends.base import AsyncWaiter, Busy, Outcome, Waiter
from locking.core.lease import LeaseTerms
from locking.utils.background import after_fork


class WaitWatch:
    """Accompanies one wait and may interrupt its pauses; this one does nothing.

    The search for deadlocks puts its own in the place of `watch`: the core does not know who looks.
    """

    def __init__(self, terms: LeaseTerms, context: object, begun: float) -> None:
        """Note the wait of a thread or task since `begun`."""

    def wait(self, place: Waiter, busy: Busy, longest: float) -> Outcome:
        """Sleep for `longest` seconds at most, and return what came of it; may raise a LockNotAcquired."""
        return place.wait(longest)

    async def await_in(self, place: AsyncWaiter, busy: Busy, longest: float) -> Outcome:
        """`wait` for asyncio."""
        return await place.wait(longest)

    def end(self) -> None:
        """Note the end of the wait, before its lock is granted."""

    async def aend(self) -> None:
        """`end` for asyncio."""


watch: Callable[[LeaseTerms, object, float], WaitWatch] = WaitWatch


class Waiters:
    """How many threads and tasks of this process wait, by alias."""

    def __init__(self) -> None:
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child has none of its parent's waiters."""
        self._mutex = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self.total = 0

    def enter(self, alias: str, most: int | None) -> bool:
        """Count one more, unless there are `most` already; True when it was counted."""
        with self._mutex:
            if most is not None and self._waiting[alias] >= most:
                return False
            self._waiting[alias] += 1
            self.total += 1
            return True

    def leave(self, alias: str) -> None:
        """Count one less."""
        with self._mutex:
            self._waiting[alias] -= 1
            self.total -= 1


waiters: Final = Waiters()
