"""A wait for a lock: how many of them this process allows, and what accompanies one.

An uncontended acquisition never comes here.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Final

from locking.backends.base import Busy
from locking.core.lease import LeaseTerms
from locking.utils.background import after_fork


class WaitWatch:
    """Accompanies one wait and may end it; this one does nothing.

    The search for deadlocks puts its own in the place of `watch`: the core does not know who looks.
    """

    def __init__(self, terms: LeaseTerms, context: object, begun: float) -> None:
        """Note the wait of a thread or task since `begun`."""

    def due(self) -> float:
        """Return the seconds until `look` wants to be called."""
        return inf

    def look(self, busy: Busy) -> None:
        """Look for a reason to end the wait: ask servers, and raise a LockNotAcquired if there is one."""

    def end(self) -> Callable[[], object] | None:
        """Note the end of the wait, before its lock is granted; return the request that withdraws it."""
        return None


watch: Callable[[LeaseTerms, object, float], WaitWatch] = WaitWatch


class WaiterCounts:
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


waiters: Final = WaiterCounts()
