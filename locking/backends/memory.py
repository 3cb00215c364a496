"""Locks in the memory of one process: for tests, scripts and development, never between processes.

First in, first out: a release hands the lock to the first waiter that may have it and wakes that one alone.
Readers come before writers, as on Redis.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from locking.backends.base import BaseLockBackend, Busy, Grant, Heartbeat, Held, Holder, Outcome
from locking.backends.capabilities import Counters, ForceRelease, Heartbeats, Kinds, Listing
from locking.backends.waiters import WaitingSteps, WokenTask, WokenThread
from locking.conf import AliasSettings, own_options
from locking.utils.background import after_fork
from locking.utils.clock import now


@dataclass(slots=True)
class Hold:
    """Who has a lock, in which way, and until when."""

    owner: str
    deadline: float
    token: int
    kind: str = "lock"
    since: float = field(default_factory=time.time)  # noqa: TID251 shown


class Locks:
    """Locks by their keys, each with its holds and its queue; every public method is one atomic step."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holds: dict[str, list[Hold]] = {}
        self._queues: dict[str, deque[MemorySteps]] = {}
        self._permits: dict[str, int] = {}
        self._token = 0

    def take(
        self,
        key: str,
        owner: str,
        ttl: float,
        waiter: MemorySteps | None = None,
        *,
        kind: str = "lock",
        permits: int = 1,
    ) -> Outcome:
        """Grant the lock if it is the asker's turn; otherwise put `waiter`, if any, in the queue, once."""
        with self._mutex:
            if key in self._queues:  # a lease may have ended
                self._hand_off(key)
            hold = self._hold_of(key, owner, kind)
            if hold is not None:
                return self._prolong(hold, ttl)._replace(is_new=False)
            if self._admits(key, kind, permits):
                return self._grant(key, owner, ttl, kind)
            if waiter is not None and waiter not in self._queues.setdefault(key, deque()):
                self._queues[key].append(waiter)
            return Busy(retry_after=time_left(self._holds[key]), holder=self._holds[key][0].owner)

    def extend(self, key: str, owner: str, ttl: float, kind: str = "lock", *, exactly: bool = False) -> bool:
        """Move the deadline of `owner`'s hold; where it is earlier, the waiters ask again for the new end."""
        with self._mutex:
            hold = self._hold_of(key, owner, kind)
            if hold is None:
                return False
            before = hold.deadline
            self._prolong(hold, ttl if exactly else max(ttl, before - now()))
            if hold.deadline < before:
                for waiter in self._queues.get(key, ()):
                    waiter.wake()
            return True

    def release(self, key: str, owner: str, kind: str = "lock") -> bool:
        """End `owner`'s hold and hand the lock over."""
        with self._mutex:
            hold = self._hold_of(key, owner, kind)
            if hold is None:
                return False
            hold.deadline = 0.0
            self._live(key)
            self._hand_off(key)
            return True

    def holds(self, key: str) -> list[Hold]:
        """Return the holds of `key`."""
        with self._mutex:
            return self._live(key)

    def held(self) -> list[Held]:
        """Return every hold."""
        with self._mutex:
            return [
                Held(key=key, owner=hold.owner, kind=hold.kind, remaining=hold.deadline - now(),
                     token=hold.token, waiters=len(self._queues.get(key, ())), since=hold.since)
                for key in list(self._holds) for hold in self._live(key)
            ]  # fmt: skip

    def leave(self, key: str, waiter: MemorySteps) -> None:
        """Take `waiter` out of the queue, and release what was handed to it."""
        with self._mutex:
            if waiter in self._queues.get(key, ()):
                self._queues[key].remove(waiter)
        self.release(key, waiter.owner, waiter.kind)

    def _live(self, key: str) -> list[Hold]:
        moment = now()
        live = [hold for hold in self._holds.pop(key, ()) if hold.deadline > moment]
        if live:
            self._holds[key] = live
        return live

    def _hold_of(self, key: str, owner: str, kind: str) -> Hold | None:
        live = self._live(key)
        return next((hold for hold in live if (hold.owner, hold.kind) == (owner, kind)), None)

    def _admits(self, key: str, kind: str, permits: int) -> bool:
        """Whether one more may have the lock; a semaphore has the permits that the first to ask wanted."""
        live = self._live(key)
        if kind == "semaphore":
            return len(live) < self._permits.setdefault(key, permits)
        return all(kind == hold.kind == "read" for hold in live)

    def _grant(self, key: str, owner: str, ttl: float, kind: str) -> Grant:
        hold = Hold(owner, 0.0, self._mint(), kind)
        self._holds.setdefault(key, []).append(hold)
        return self._prolong(hold, ttl)

    def _prolong(self, hold: Hold, ttl: float) -> Grant:
        since = now()
        hold.deadline = since + ttl
        return Grant(hold.token, since)

    def _mint(self) -> int:
        """From the clock, as in Redis: a database may remember the tokens of an earlier process."""
        self._token = max(self._token + 1, time.time_ns() // 1000)
        return self._token

    def _hand_off(self, key: str) -> None:
        """Grant the lock to those in the queue who may have it now, the first of them first."""
        queue = self._queues.get(key, deque())
        for waiter in list(queue):
            if self._admits(key, waiter.kind, waiter.permits):
                queue.remove(waiter)
                waiter.grant = self._grant(key, waiter.owner, waiter.ttl, waiter.kind)
                waiter.wake()
            elif waiter.kind != "write":  # behind a writer there may be readers
                break
        if not queue:
            self._queues.pop(key, None)


def time_left(holds: Sequence[Hold]) -> float:
    """Return the seconds until a permit comes back, or until the last reader or the only holder is gone."""
    first_or_last = min if holds[0].kind == "semaphore" else max
    return max(0.0, first_or_last(hold.deadline for hold in holds) - now())


class Store(Locks):
    """The locks of one alias: the ordinary ones, and those of the other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.read_write, self.semaphores = Locks(), Locks()
        self.records: dict[str, tuple[str, float]] = {}
        self.figures: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def all_held(self) -> list[Held]:
        """Return every hold of every kind."""
        return [*self.held(), *self.read_write.held(), *self.semaphores.held()]


STORES: dict[str, Store] = {}
after_fork(STORES.clear)


class MemoryVerbs(ForceRelease):
    """One kind of lock in memory: `lock`, `read`, `write`, or `semaphore` with its number of permits."""

    supports_fencing = True
    shared_between_processes = False
    never_blocks = True  # for longer than a dict takes

    def __init__(self, settings: AliasSettings, kind: str = "lock", permits: int = 1) -> None:
        super().__init__(settings)
        self._kind, self._permits = kind, permits
        self.alias = settings.alias if kind == "lock" else f"{settings.alias}/{kind}"
        self.exclusive = kind != "semaphore"

    @property
    def store(self) -> Store:
        """The store that all backends of this alias in this process share."""
        return STORES.get(self.settings.alias) or STORES.setdefault(self.settings.alias, Store())

    @property
    def _locks(self) -> Locks:
        if self._kind == "lock":
            return self.store
        return self.store.semaphores if self._kind == "semaphore" else self.store.read_write

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self._locks.take(key, owner, ttl, kind=self._kind, permits=self._permits)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._locks.extend(key, owner, ttl, self._kind)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self._locks.extend(key, owner, ttl, self._kind, exactly=True)

    def release(self, key: str, owner: str) -> bool:
        return self._locks.release(key, owner, self._kind)

    def force_release(self, key: str, expected: str) -> bool:
        return self._locks.release(key, expected, self._kind)

    def holder(self, key: str) -> Holder | None:
        """Return one of the holders (there may be many), or None; the number of holds is its count."""
        holds = self._locks.holds(key)
        return Holder(holds[0].owner, len(holds), time_left(holds)) if holds else None

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> MemoryWaiter:
        return MemoryWaiter(self._locks, key, owner, ttl, self._kind, self._permits)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncMemoryWaiter:
        return AsyncMemoryWaiter(self._locks, key, owner, ttl, self._kind, self._permits)


class MemoryBackend(MemoryVerbs, Kinds, Listing, Heartbeats, Counters):
    """`"BACKEND": "locking.backends.memory.MemoryBackend"`."""

    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        own_options(settings)
        self._others: dict[tuple[str, int], MemoryVerbs] = {}

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        if kind == "fair":
            return self  # the ordinary lock is fair here
        which = (kind, options.get("permits", 0))
        if which not in self._others:
            self._others[which] = MemoryVerbs(self.settings, kind, **options)
        return self._others[which]

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        found = [hold for hold in self.store.all_held() if hold.key.startswith(prefix)]
        found.sort(key=lambda hold: (hold.since or 0.0, hold.key))
        return found[offset : offset + limit]

    def count_held(self, *, prefix: str = "") -> int:
        return sum(hold.key.startswith(prefix) for hold in self.store.all_held())

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        kept = self.store.records
        for client, text in records.items():
            kept[client] = (kept.get(client, ("{}", 0.0))[0] if text is None else text, now())
        for client in forget:
            kept.pop(client, None)

    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        wanted = list(self.store.records) if clients is None else clients
        found = {client: self.store.records.get(client) for client in wanted}
        return {client: Heartbeat(kept[0], now() - kept[1]) for client, kept in found.items() if kept}

    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        self.store.figures[minute].update(figures)

    def figures_by_minute(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        return [dict(self.store.figures.get(minute, {})) for minute in minutes]

    def tidy(self) -> None:
        """Forget figures that are older than two hours."""
        oldest = time.time() / 60 - 120  # noqa: TID251 shown
        for minute in [minute for minute in self.store.figures if minute < oldest]:
            del self.store.figures[minute]


class MemorySteps(WaitingSteps):
    """What waiting threads and tasks have in common; no step blocks. They stand in the queue themselves."""

    def __init__(
        self, locks: Locks, key: str, owner: str, ttl: float, kind: str = "lock", permits: int = 1
    ) -> None:
        super().__init__()
        self._locks, self._key = locks, key
        self.owner, self.ttl, self.kind, self.permits = owner, ttl, kind, permits
        self.grant: Grant | None = None  # set before `wake` is called

    def ask(self, *, queue: bool) -> Outcome:
        if self.grant is not None:
            return self.grant
        who = self._key, self.owner, self.ttl, self if queue else None
        return self._locks.take(*who, kind=self.kind, permits=self.permits)

    def give_up(self) -> None:
        self._locks.leave(self._key, self)

    def pause(self) -> float:
        return math.inf


class MemoryWaiter(MemorySteps, WokenThread):
    """A thread that waits."""


class AsyncMemoryWaiter(MemorySteps, WokenTask):
    """A task that waits."""

    async def try_acquire(self, *, queue: bool) -> Outcome:
        return self.ask(queue=queue)

    async def leave(self) -> None:
        self.give_up()
