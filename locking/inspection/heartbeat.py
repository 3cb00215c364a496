"""Heartbeats: what this process publishes about itself and the locks that it has held for a while.

The tidying thread publishes at the first lock which process this is, and repeats it every two seconds while
the process uses locks of that backend. Locks that are held for more than a second are published with details.
A process that falls silent while its locks go on is gone.
Waits are published too, with what their thread or task holds: so others find a deadlock (see
`locking.inspection.deadlocks`), and the admin names who waits. A wait that holds a lock itself is published
half a second after it began, any other with the next heartbeat.
The same step adds up what happened to locks, by the minute, for the line of the last hour in the admin, and
now and then has the backend's list swept. It is not the watchdog's: a renewal must never wait for this.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from heapq import nsmallest
from math import inf
from pathlib import Path
from typing import Any, Final

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import Counters, Heartbeats
from locking.core.handler import locks
from locking.core.lease import LeaseTerms, SingleLease, State, leases_of, live_leases
from locking.core.waits import facts_of
from locking.exceptions import LockError
from locking.liveness import registration, watcher
from locking.signals import Count, Observer, observe
from locking.utils.background import after_fork, tidier
from locking.utils.call_site import activity_of, caller_site, name_of
from locking.utils.clock import now
from locking.utils.ownership import PROCESS, new_owner

logger = logging.getLogger(__name__)

BEAT: Final = 2.0  # seconds between two signs of life
HELD_LONG: Final = 1.0  # seconds that a lock must have been held before its details are published
IDLE_AFTER: Final = 10.0  # seconds without use after which a process withdraws what it published on a backend
MOST: Final = 200  # how many holds a process publishes details of, the oldest first
TIDY_EVERY: Final = 60.0  # seconds until all is swept, and published again: a server may have lost it
PUBLISH_AFTER: Final = 0.5  # seconds of waiting after which its heartbeat publishes a wait
TOGETHER: Final = 0.1  # seconds by which it is published earlier, with one that is due: one request for both

SAMPLES: Final = deque[tuple[str, Count]](maxlen=100_000)
"""What has happened since the last beat; when there is more, the oldest is missing in the statistics."""

after_fork(SAMPLES.clear)

Records = dict[str, dict[str, str]]  # by alias and client


class Wait:
    """One waiter: a thread or task, and the lock that it waits for."""

    def __init__(self, terms: LeaseTerms, context: object, begun: float) -> None:
        self.id = new_owner()  # a wait that ended never resumes under the same id
        self.alias = terms.backend.settings.alias
        self.kind = terms.backend.alias.removeprefix(self.alias).lstrip("/") or "lock"
        self.key, self.name, self.permits = terms.key, terms.name, terms.permits
        self.begun = begun  # by `clock.now()`
        self.site = terms.site or caller_site()
        self.context = weakref.ref(context)
        self.published = False  # other processes may have read of it
        self.asked = 0  # requests that its looks for a circle have made
        self.blocks = bool(self.holds())  # others may wait for what it holds itself

    def holds(self) -> list[SingleLease]:
        """Return what the waiting thread or task holds."""
        context = self.context()
        return [] if context is None else leases_of(context)

    def as_record(self, holds: list[SingleLease]) -> dict[str, Any]:
        """Return what the heartbeat publishes of it, as plain values."""
        context = self.context()
        return {
            **{name: getattr(self, name) for name in ("alias", "kind", "key", "name", "permits")},
            "since": PROCESS.date_of(self.begun),
            "waited": round(now() - self.begun, 3),
            "thread": name_of(context),
            "doing": activity_of(context),
            "site": None if self.site is None else self.site.describe(),
            "holds": [[lease.backend.settings.alias, lease.owner, lease.name] for lease in holds],
        }


WAITS: Final[dict[str, Wait]] = {}  # the waits of this process, by id

after_fork(WAITS.clear)


def next_due() -> float:
    """Return the `clock.now()` at which a wait is to be published; if it blocks no other, not soon."""
    unpublished = [each.begun for each in list(WAITS.values()) if each.blocks and not each.published]
    return min(unpublished, default=inf) + PUBLISH_AFTER


class HeartbeatPublisher(Observer):
    """Publishes the heartbeats and the counters of this process."""

    def __init__(self) -> None:
        self.enabled = True  # False keeps it from starting
        self.counts = True  # False: not in the counters, where a lesson's locks would hide the project's own
        self.reset()

    def reset(self) -> None:
        """Start from nothing, as a forked child must."""
        self.running = False
        self._published: Records = {}
        self._publishing = threading.Lock()
        self._beat_at = now() + BEAT
        self._tidy_at = now() + TIDY_EVERY
        self._trouble = self._leaving = False
        self._used: dict[str, float] = {}  # when locks of an alias were used last, as far as a beat has seen
        self._idle = True

    def counted(self, backend: str, what: Count) -> None:
        if self.counts:
            SAMPLES.append((backend, what))
        if self._idle:
            self.start()

    def start(self) -> None:
        """Publish in the background that this process uses locks, unless that is known."""
        if self._idle and self.enabled:
            self.running, self._beat_at = True, now()
            self._idle = not tidier.wake()

    def publish_by(self, moment: float) -> None:
        """Have the thread publish what has changed at this `clock.now()` at the latest."""
        if self.enabled:
            self.running = True
            tidier.wake_by(moment)

    def step(self) -> float | None:
        """Do what is due; see `Worker`."""
        if not self.running:
            return None
        if now() >= self._beat_at:
            self.beat()
            self._beat_at = now() + BEAT
        elif now() >= next_due():
            self.publish()
        return min(self._beat_at, max(next_due(), now() + TOGETHER))  # of very many some stay unpublished

    def beat(self) -> None:
        """Publish what is new, and have the watcher look for dead processes whose locks have no waiters."""
        self._trouble = False
        watcher.look()
        self._note_use(self._add_counters())
        tidy = now() >= self._tidy_at
        self.publish(repeat=True, everything=tidy)
        if tidy:
            self._tidy_at = now() + TIDY_EVERY
            registration.refresh()
            for backend in locks.all(initialized_only=True):
                self._try(backend.tidy)

    def _note_use(self, aliases: Iterable[str]) -> None:
        moment = now()
        used = {**self._used, **dict.fromkeys(aliases, moment)}
        self._used = {alias: last for alias, last in used.items() if moment - last < IDLE_AFTER}
        self._idle = not self._used

    def deregister(self) -> None:
        """Say at the end of the process that it holds nothing; a backend in trouble isn't waited for."""
        if self.running and not self._trouble:
            self._leaving = True  # also for the thread, which may be about to publish
            self._add_counters()
            self.publish()

    def _add_counters(self) -> Collection[str]:
        minute = int(time.time() // 60)  # noqa: TID251 shown
        counters = take_counters()
        for alias, sums in counters.items():
            if isinstance(backend := locks.initialized(alias), Counters):
                self._try(backend.add_counters, minute, sums)
        return counters.keys()

    def publish(self, *, repeat: bool = False, everything: bool = False) -> None:
        """Tell what has changed since the last time; `repeat`: what hasn't lives on; or tell everything."""
        with self._publishing:
            before = self._published
            records = {} if self._leaving else records_of(_long_holds(), _long_waits(), self._used)
            self._published = records
            for alias in {**before, **records}:
                backend = locks.initialized(alias)
                if not isinstance(backend, Heartbeats):  # or a test has changed LOCKING since
                    continue
                old, new = before.get(alias, {}), records.get(alias, {})
                same = () if everything else old.items() & new.items()
                changed = {client: None if (client, text) in same else text for client, text in new.items()}
                gone = old.keys() - new.keys()
                if not repeat:
                    changed = {client: text for client, text in changed.items() if text is not None}
                if repeat or changed or gone:
                    self._try(backend.publish_heartbeats, changed, forget=gone)

    def _try(self, step: Callable[..., object], *args: Any, **options: Any) -> None:
        try:
            step(*args, **options)
        except LockError as error:
            self._trouble = True
            self._published = {}  # what has arrived is unknown: publish everything again
            logger.debug("publishing the heartbeat of this process failed: %s", error)


def take_counters() -> dict[str, Counter[str]]:
    """Return what happened how often, by alias, and clear the samples."""
    sums = defaultdict[str, Counter[str]](Counter)
    with suppress(IndexError):  # another thread may take some, too
        for _ in range(len(SAMPLES)):
            alias, what = SAMPLES.popleft()
            sums[alias][what] += 1
    return sums


def last_hour(backend: BaseLockBackend) -> list[dict[str, int]]:
    """Return what happened in each minute of the last hour (acquired, refused, deadlock, lost, ended), over
    all processes, the oldest first; empty where the backend keeps no statistics.
    """
    if not isinstance(backend, Counters):
        return []
    minute = int(time.time() // 60)  # noqa: TID251 shown
    return backend.figures_by_minute(range(minute - 59, minute + 1))


def _long_holds() -> list[SingleLease]:
    """Return the leases that have been held for a while, the oldest first."""
    moment = now() - HELD_LONG
    alive = [
        lease
        for lease in live_leases()
        if lease.taken_at <= moment and lease.state in (State.HELD, State.UNKNOWN) and not lease.inherited
    ]
    return nsmallest(MOST, alive, key=lambda lease: lease.taken_at)


def _long_waits() -> list[Wait]:
    """Return the waits to publish, the oldest first; each is marked as published."""
    moment = now() - PUBLISH_AFTER + TOGETHER
    long = [wait for wait in list(WAITS.values()) if wait.begun <= moment]
    waits = nsmallest(MOST, long, key=lambda wait: wait.begun)
    for wait in waits:
        wait.published = True
    # One that ended before it was marked won't withdraw its record; one that ended since will.
    return [wait for wait in waits if wait.id in WAITS]


def records_of(held: Iterable[SingleLease], waits: Iterable[Wait] = (), used: Iterable[str] = ()) -> Records:
    """Return what is published of these: a record for each client, with its process, holds and waits.

    This process has a record in each alias of `used`, whatever it holds there. A wait stands in it, and in
    those of the clients under which its thread or task holds locks: whom one of them keeps waiting finds it.
    """
    parts: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(lambda: {"holds": {}, "waits": {}})
    for alias in used:
        parts[alias, PROCESS.client_id]["holds"] = {}
    for lease in held:
        taken = {"renewals": lease.renewals, "ttl": lease.ttl, "since": PROCESS.date_of(lease.taken_at)}
        parts[_client_of(lease)]["holds"][lease.owner] = {**facts_of(lease), **taken}
    for wait in waits:
        holds = wait.holds()
        for which in {(wait.alias, PROCESS.client_id), *map(_client_of, holds)}:
            parts[which]["waits"][wait.id] = wait.as_record(holds)
    process, records = process_facts(), defaultdict[str, dict[str, str]](dict)
    for (alias, client), theirs in parts.items():
        stated = {name: value for name, value in theirs.items() if value or name == "holds"}
        records[alias][client] = json.dumps({**process, **stated})
    return records


def _client_of(lease: SingleLease) -> tuple[str, str]:
    return lease.backend.settings.alias, lease.owner.split(":", 1)[0]


def process_facts() -> dict[str, Any]:
    """Return what identifies this process to people; of its arguments only the program's name."""
    program = Path(sys.argv[0] if sys.argv else sys.executable).name
    return {"host": socket.gethostname(), "pid": os.getpid(), "program": program, "started": PROCESS.started}


reporter = HeartbeatPublisher()
after_fork(reporter.reset)


def start() -> None:
    """Have the reporter hear of this process's locks, and of its end."""
    tidier.steps.append(reporter.step)
    observe(reporter)
    atexit.register(reporter.deregister)
