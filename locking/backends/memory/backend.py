"""Locks in the memory of one process: for tests, scripts and development, never between processes.

First in, first out: a release hands the lock to the first waiter and wakes that one alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from locking.backends.base import (
    AsyncWaiter,
    BaseLockBackend,
    Busy,
    Grant,
    Heartbeat,
    Held,
    Holder,
    Outcome,
    Waiter,
)
from locking.backends.memory.kinds import MemoryVariant, Shares
from locking.conf import AliasSettings
from locking.utils.background import after_fork
from locking.utils.clock import now


@dataclass(slots=True)
class Hold:
    """Who has a lock, and until when."""

    owner: str
    deadline: float
    token: int


@dataclass(slots=True, eq=False)
class QueuedWaiter:
    """A queued waiter; `grant` is set before `wake` is called."""

    owner: str
    ttl: float
    wake: Callable[[], None]
    grant: Grant | None = None


class Store:
    """The locks of one alias; every method is one atomic step."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._holds: dict[str, Hold] = {}
        self._queues: dict[str, deque[QueuedWaiter]] = {}
        self._token = 0
        self.read_write, self.semaphores = Shares(), Shares()
        self.told: dict[str, tuple[str, float]] = {}
        self.figures: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def publish(self, client: str, text: str | None) -> None:
        """Store a heartbeat of `client`."""
        before = self.told.get(client, ("{}", 0.0))[0]
        self.told[client] = (before if text is None else text, now())

    def take(self, key: str, owner: str, ttl: float, waiter: QueuedWaiter | None = None) -> Outcome:
        """Grant the lock if it is the asker's turn; otherwise put `waiter`, if any, in the queue, once."""
        with self._mutex:
            self._drop_expired(key)
            hold = self._holds.get(key)
            if hold is None:
                return self._grant(key, owner, ttl)
            if hold.owner == owner:
                return self._grant(key, owner, ttl, token=hold.token)
            if waiter is not None and waiter not in self._queues.setdefault(key, deque()):
                self._queues[key].append(waiter)
            return Busy(retry_after=hold.deadline - now(), holder=hold.owner)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """Move the deadline of `owner`'s hold."""
        with self._mutex:
            hold = self._live(key)
            if hold is None or hold.owner != owner:
                return False
            shorter = now() + ttl < hold.deadline
            hold.deadline = now() + ttl
            if shorter:
                self._tell_new_end(key)
            return True

    def release(self, key: str, owner: str) -> bool:
        """End `owner`'s hold and hand the lock over."""
        with self._mutex:
            hold = self._live(key)
            if hold is None or hold.owner != owner:
                return False
            self._hand_off(key)
            return True

    def reissue_token(self, key: str, owner: str, above: int) -> int:
        """Give `owner`'s hold a new token above `above`; 0 when it has none."""
        with self._mutex:
            hold = self._live(key)
            if hold is None or hold.owner != owner:
                return 0
            self._token = max(self._token, above)
            hold.token = self._mint()
            return hold.token

    def holder(self, key: str) -> Hold | None:
        """Return the hold of `key`, if it has one."""
        with self._mutex:
            return self._live(key)

    def held(self) -> list[Held]:
        """Return every hold."""
        with self._mutex:
            return [self._as_held(key, hold) for key in list(self._holds) if (hold := self._live(key))]

    def _as_held(self, key: str, hold: Hold) -> Held:
        waiters = len(self._queues.get(key, ()))
        return Held(
            key=key,
            owner=hold.owner,
            remaining=hold.deadline - now(),
            token=hold.token,
            waiters=waiters,
            since=hold.token / 1_000_000,  # minted from the clock
        )

    def leave(self, key: str, waiter: QueuedWaiter) -> None:
        """Take `waiter` out of the queue."""
        with self._mutex:
            queue = self._queues.get(key)
            if queue and waiter in queue:
                queue.remove(waiter)

    def _tell_new_end(self, key: str) -> None:
        """Have the waiters ask again: they sleep until the end of the lease that they know."""
        for waiter in self._queues.get(key, ()):
            waiter.wake()

    def _live(self, key: str) -> Hold | None:
        hold = self._holds.get(key)
        return hold if hold is not None and hold.deadline > now() else None

    def _drop_expired(self, key: str) -> None:
        if key in self._holds and self._live(key) is None:
            self._hand_off(key)

    def _grant(self, key: str, owner: str, ttl: float, token: int | None = None) -> Grant:
        if token is None:
            token = self._mint()
        since = now()
        self._holds[key] = Hold(owner, since + ttl, token)
        return Grant(token, since)

    def _mint(self) -> int:
        """From the clock, as in Redis: a database may remember the tokens of an earlier process."""
        self._token = max(self._token + 1, time.time_ns() // 1000)
        return self._token

    def _hand_off(self, key: str) -> None:
        self._holds.pop(key, None)
        queue = self._queues.get(key)
        if queue:
            waiter = queue.popleft()
            waiter.grant = self._grant(key, waiter.owner, waiter.ttl)
            waiter.wake()
        if not queue:
            self._queues.pop(key, None)


STORES: dict[str, Store] = {}
after_fork(STORES.clear)


class MemoryBackend(BaseLockBackend):
    """`"BACKEND": "locking.backends.memory.MemoryBackend"`."""

    supports_fencing = True
    supports_listing = True
    supports_force_release = True
    supports_handover = True
    supports_fairness = True
    shared_between_processes = False
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._others: dict[tuple[str, int], BaseLockBackend] = {}

    @property
    def store(self) -> Store:
        """The store that all backends of this alias in this process share."""
        return STORES.setdefault(self.alias, Store())

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.store.take(key, owner, ttl)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self.store.extend(key, owner, ttl)

    def release(self, key: str, owner: str) -> bool:
        return self.store.release(key, owner)

    def reissue_token(self, key: str, owner: str, above: int) -> int:
        return self.store.reissue_token(key, owner, above)

    def force_release(self, key: str, expected: str) -> bool:
        return self.store.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        hold = self.store.holder(key)
        return None if hold is None else Holder(hold.owner, 1, max(0.0, hold.deadline - now()))

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        found = [hold for hold in self._all_held() if hold.key.startswith(prefix)]
        found.sort(key=lambda hold: (hold.since or 0.0, hold.key))
        return found[offset : offset + limit]

    def _all_held(self) -> list[Held]:
        store = self.store
        return [*store.held(), *store.read_write.held(), *store.semaphores.held()]

    def count_held(self, *, prefix: str = "") -> int:
        return sum(hold.key.startswith(prefix) for hold in self._all_held())

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        for client, text in records.items():
            self.store.publish(client, text)
        for client in forget:
            self.store.told.pop(client, None)

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        told = self.store.told
        return {
            client: Heartbeat(text, now() - at)
            for client in clients
            if client in told
            for text, at in [told[client]]
        }

    def processes(self) -> dict[str, Heartbeat]:
        return self.heartbeats(list(self.store.told))

    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        self.store.figures[minute].update(figures)

    def figures(self, minutes: Sequence[int]) -> dict[str, int] | None:
        kept = self.store.figures
        return dict(sum((kept[minute] for minute in minutes if minute in kept), Counter[str]()))

    def tidy(self) -> None:
        """Forget figures that are older than two hours."""
        oldest = time.time() / 60 - 120  # noqa: TID251 shown
        for minute in [minute for minute in self.store.figures if minute < oldest]:
            del self.store.figures[minute]

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return MemoryWaiter(self.store, key, owner, ttl)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        which = (kind, options.get("permits", 0))
        if which not in self._others:
            self._others[which] = self._made(kind, **options)
        return self._others[which]

    def _made(self, kind: str, **options: int) -> BaseLockBackend:
        if kind == "semaphore":
            return MemoryVariant(self.settings, kind, lambda: self.store.semaphores, **options)
        if kind in ("read", "write"):
            return MemoryVariant(self.settings, kind, lambda: self.store.read_write)
        return self if kind == "fair" else super().variant(kind)  # the ordinary lock is fair here

    # No step of the store blocks for longer than a dict takes, so asyncio needs no thread.

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.store.take(key, owner, ttl)

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        return self.store.extend(key, owner, ttl)

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        return self.store.extend(key, owner, ttl)

    async def arelease(self, key: str, owner: str) -> bool:
        return self.store.release(key, owner)

    async def aholder(self, key: str) -> Holder | None:
        return self.holder(key)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return AsyncMemoryWaiter(self.store, key, owner, ttl)


class MemoryWaiter(Waiter):
    """A thread that waits: it sleeps on its own event."""

    def __init__(self, store: Store, key: str, owner: str, ttl: float) -> None:
        self._store, self._key = store, key
        self._woken = threading.Event()
        self._waiter = QueuedWaiter(owner, ttl, self._woken.set)

    def try_acquire(self, *, queue: bool) -> Outcome:
        waiter = self._waiter
        return self._store.take(self._key, waiter.owner, waiter.ttl, waiter if queue else None)

    def wait(self, timeout: float) -> Outcome:
        self._woken.wait(timeout)
        self._woken.clear()
        return self._waiter.grant or self.try_acquire(queue=True)

    def leave(self) -> None:
        self._store.leave(self._key, self._waiter)
        self._store.release(self._key, self._waiter.owner)


class AsyncMemoryWaiter(AsyncWaiter):
    """A task that waits: the releasing thread sets the event through the task's own loop."""

    def __init__(self, store: Store, key: str, owner: str, ttl: float) -> None:
        self._store, self._key = store, key
        self._woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._waiter = QueuedWaiter(owner, ttl, lambda: _wake(loop, self._woken))

    async def try_acquire(self, *, queue: bool) -> Outcome:
        waiter = self._waiter
        return self._store.take(self._key, waiter.owner, waiter.ttl, waiter if queue else None)

    async def wait(self, timeout: float) -> Outcome:
        with contextlib.suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the wake-up.
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        self._woken.clear()
        return self._waiter.grant or await self.try_acquire(queue=True)

    async def leave(self) -> None:
        self._store.leave(self._key, self._waiter)
        self._store.release(self._key, self._waiter.owner)


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
