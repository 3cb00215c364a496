"""Waits: how many this process allows, what accompanies one, who is waited for, and which servers are silent.

An uncontended acquisition only asks whether a server is silent.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

from locking.backends.base import BaseLockBackend, Busy
from locking.backends.capabilities import Heartbeats, ManyServers
from locking.core.lease import LeaseTerms, SingleLease, live_leases
from locking.exceptions import BackendUnavailable, LockError
from locking.signals import tell
from locking.utils.background import after_fork
from locking.utils.call_site import activity_of, name_of
from locking.utils.clock import now
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)


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


WORTH_A_QUESTION = 1.0  # seconds of waiting; a process publishes what it has held for as long


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


SLOW: Final = 0.1  # seconds after which a failure is silence; a closed port, which refuses, keeps no thread
PAUSE: Final = 1.0  # seconds for which acquisitions are refused before the next one is let through
LONGEST_TRY: Final = 15.0  # after which another one is, should the one before have ended without a word

Where = tuple[str, object]


class Breaker:
    """The silent servers of this process, by alias and, in a cluster, by server.

    Renewals, releases and what cleans up are tried all the same: only new work is kept from piling up. About
    once a second one acquisition is let through, whose answer ends it.
    """

    def __init__(self) -> None:
        self.silent: dict[Where, float] = {}
        """When the next acquisition is let through; nearly always empty, and then a caller need not ask."""
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Know of no silent server: in a forked child, and between tests."""
        self.silent.clear()
        self._mutex = threading.Lock()

    def admit(self, backend: BaseLockBackend, key: str) -> None:
        """Let an acquisition through, or raise BackendUnavailable where the server was asked just now."""
        where = _where(backend, key)
        with self._mutex:
            if self.silent.get(where, 0.0) <= now():
                if where in self.silent:
                    self.silent[where] = now() + LONGEST_TRY
                return
        error = BackendUnavailable(
            f"the backend {backend.alias!r} did not answer lately, so nothing was sent to it; one acquisition"
            f" per {PAUSE:g} s tries again"
        )
        error.sent = False
        raise error

    def failed(self, backend: BaseLockBackend, key: str, after: float) -> None:
        """Note that an acquisition got no answer in so many seconds; `ended` follows its clean-up."""
        where = _where(backend, key)
        if after < SLOW:
            self.silent.pop(where, None)
            return
        self.silent[where] = now() + LONGEST_TRY
        message = "the lock backend %r is silent: acquisitions fail at once, but for one per %g s that tries"
        log_rarely(logger, logging.ERROR, ("silent", where), message, backend.alias, PAUSE)

    def ended(self, backend: BaseLockBackend, key: str) -> None:
        """Have the next one let through after the pause."""
        where = _where(backend, key)
        with self._mutex:
            if where in self.silent:
                self.silent[where] = now() + PAUSE

    def answered(self, backend: BaseLockBackend, key: str) -> None:
        """Note that the server is there."""
        self.silent.pop(_where(backend, key), None)


def _where(backend: BaseLockBackend, key: str) -> Where:
    server = backend.server_of(key) if isinstance(backend, ManyServers) else None
    return backend.settings.alias, server


breaker = Breaker()
