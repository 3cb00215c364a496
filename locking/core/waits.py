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
from locking.signals import tell
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
        is_counted = False
        try:
            with self._mutex:
                if most is None or self._waiting[alias] < most:
                    self._waiting[alias] += 1
                    self.total += 1
                    is_counted = True
            return is_counted
        except BaseException:  # a signal's handler, as the mutex was given back
            if is_counted:
                self.leave(alias)
            raise

    def leave(self, alias: str) -> None:
        """Count one less."""
        with self._mutex:
            self._waiting[alias] -= 1
            self.total -= 1


waiters: Final = WaiterCounts()


class Waiting:
    """One wait that counts, and of which observers hear; `end` undoes what `begin` has done so far.

    It is no context manager: no `__exit__` follows where a signal's handler raises right after `__enter__`.
    """

    _is_counted = False
    _watch: WaitWatch | None = None

    def __init__(self, terms: LeaseTerms, context: object, begun: float) -> None:
        self._wait = terms, context, begun

    def begin(self) -> WaitWatch | None:
        """Return what accompanies the wait; None where there are as many as the settings allow."""
        settings = self._wait[0].backend.settings
        self._is_counted = waiters.enter(settings.alias, settings.max_waiters)
        if self._is_counted:
            self._tell(1)
            self._watch = watch(*self._wait)
        return self._watch

    def end(self) -> Callable[[], object] | None:
        """End the wait, before its lock is granted; return the request that withdraws it, if there is one."""
        try:
            return None if self._watch is None else self._watch.end()
        finally:
            if self._is_counted:
                waiters.leave(self._wait[0].backend.settings.alias)
                self._tell(-1)

    def _tell(self, change: int) -> None:
        terms = self._wait[0]
        tell("waiting", terms.name, terms.template, terms.backend.alias, change)
