"""A wait for a lock: how many of them this process allows, what accompanies one, and who is waited for.

An uncontended acquisition never comes here.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

from locking.backends.base import BaseLockBackend, Busy
from locking.backends.capabilities import Heartbeats
from locking.core.lease import LeaseTerms, SingleLease, live_leases
from locking.exceptions import LockError
from locking.signals import tell
from locking.utils.background import after_fork
from locking.utils.call_site import activity_of, name_of


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


# --- who has the lock, in the words of an error ----------------------------------------------------------

WORTH_A_QUESTION = 1.0
"""Seconds: who has waited for so long may ask once more; a process publishes what it has held for as long."""


def description(backend: BaseLockBackend, owner: str, *, ask: bool) -> str | None:
    """Return who the owner is, as far as it is known; with `ask` by what its process has published."""
    facts: dict[str, Any] = {}
    for lease in live_leases():
        if lease.owner == owner:
            facts = {"host": socket.gethostname(), "pid": os.getpid(), **facts_of(lease)}
    if ask and not facts and isinstance(backend, Heartbeats):
        client = owner.split(":", 1)[0]
        with suppress(LockError, ValueError):
            if (published := backend.heartbeats([client]).get(client)) is not None:
                process = json.loads(published.text)
                facts = {**process, **process.get("holds", {}).get(owner, {})}
    if not facts:
        return None
    words = [f"process {facts.get('pid')} on {facts.get('host')}"]
    words += [str(facts[name]) for name in ("thread", "doing") if facts.get(name)]
    return ", ".join([*words, f"at {facts['site']}"] if facts.get("site") else words)


def facts_of(lease: SingleLease) -> dict[str, Any]:
    """Return who holds a lease of this process, and where it was taken."""
    context = lease.context()
    site = lease.site.describe() if lease.site is not None else None
    return {"thread": name_of(context), "doing": activity_of(context), "site": site}
