"""Engines that keep contenders in a queue: ZooKeeper, etcd.

Each contender creates a numbered node, the lowest has the lock, and each waiter is woken by the
end of the one before it, so that a release wakes one. Source: P. Hunt et al., "ZooKeeper: Wait-free
coordination for Internet-scale systems", USENIX ATC 2010, section 2.4 (simple locks without herd effect,
read/write locks).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from locking.backends.base import AsyncWaiter, BaseLockBackend, Held, Holder, Outcome, Waiter
from locking.exceptions import LockError


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A contender that has a lock or waits for it.

    Attributes:
        node: where it stands on the engine.
        order: its number in the queue; the lowest came first.
        kind: lock, read, write or semaphore.
        permits: of a semaphore, as many as this one asked for.
    """

    node: str
    order: int
    kind: str = "lock"
    permits: int = 0


def holders_of(line: Sequence[QueueEntry]) -> Sequence[QueueEntry]:
    """Return the contenders of a queue, sorted by number, that have the lock.

    The first to use a semaphore decides how many permits it has.

    Example:
        >>> line = [QueueEntry("a", 1, "read"), QueueEntry("b", 2, "read"), QueueEntry("c", 3, "write")]
        >>> [contender.node for contender in holders_of(line)]
        ['a', 'b']
    """
    if not line:
        return ()
    first = line[0]
    if first.kind == "semaphore":
        return line[: first.permits]
    if first.kind != "read":
        return line[:1]
    writer = next((i for i, contender in enumerate(line) if contender.kind != "read"), len(line))
    return line[:writer]


def blockers_of(line: Sequence[QueueEntry], mine: QueueEntry) -> Sequence[QueueEntry]:
    """Return those whose end `mine` must watch: none if it has the lock, for a semaphore all before it.

    A permit may come back from any holder, so a semaphore's waiters are all woken by each of them.
    """
    ahead = [contender for contender in line if contender.order < mine.order]
    if mine.kind == "read":
        return [contender for contender in ahead if contender.kind != "read"][-1:]
    if mine.kind == "semaphore":
        return ahead if ahead and len(ahead) >= ahead[0].permits else ()
    return ahead[-1:]


def admits(line: Sequence[QueueEntry], kind: str, permits: int) -> bool:
    """Whether one who came now would have the lock at once."""
    return not blockers_of(line, QueueEntry("", sys.maxsize, kind, permits))


@dataclass(slots=True, eq=False)
class Contender:
    """The state of one waiter; `wake` is called when it is worth asking again.

    Attributes:
        key, owner, ttl: what is wanted.
        wake: called from any thread.
        node: its entry in the queue, once it has one.
        asked: a request that may have enqueued it has been sent.
        token, session: the fencing token and the engine's session of its node.
        left: it has been given up; a request that a thread left behind sends later does nothing.
    """

    key: str
    owner: str
    ttl: float
    wake: Callable[[], None]
    node: str | None = None
    asked: bool = False
    token: int = 0
    session: int = 0
    left: bool = False
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, _event: object = None) -> None:
        """Wake the waiter: a contender serves as the engine's callback."""
        self.wake()


class QueueBackend(BaseLockBackend):
    """What both engines have in common; a variant is a backend of its own on the same servers."""

    supports_fencing = True
    supports_listing = True
    lists_by_age = False  # the engines know who came first, not when each was granted
    supports_force_release = True
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    kind: str = "lock"
    permits: int = 0

    @abstractmethod
    def enqueue(self, contender: Contender, *, queue: bool) -> Outcome:
        """Take the lock if it is the contender's turn; else, with `queue`, wait in the queue and watch."""

    @abstractmethod
    def dequeue(self, contender: Contender) -> None:
        """Remove the contender from the queue, whether it waits or holds."""

    @abstractmethod
    def poll_interval(self, contender: Contender) -> float:
        """Return the seconds that a waiter may sleep at most before it must ask again."""

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.enqueue(Contender(key, owner, ttl, wake=lambda: None), queue=False)

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return QueueWaiter(self, key, owner, ttl)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return AsyncQueueWaiter(self, key, owner, ttl)

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        """See the base class; reads everything below the prefix, and each hold of the page."""
        return [self._shown(*hold) for hold in self._holders(prefix)[offset : offset + limit]]

    def count_held(self, *, prefix: str = "") -> int:
        return len(self._holders(prefix))

    @abstractmethod
    def _holders(self, prefix: str) -> list[tuple[str, QueueEntry, int]]:
        """Return key, holder and number of waiters of each hold, the oldest first."""

    @abstractmethod
    def _shown(self, key: str, contender: QueueEntry, waiters: int) -> Held:
        """Return a hold as a list shows it."""

    def holder(self, key: str) -> Holder | None:
        """See the base class; of several holders the oldest, and their number as its count."""
        line = self._line(key)
        if not line:
            return None
        holders = holders_of(line)
        shown = self._shown(key, holders[0], 0)
        return Holder(shown.owner, len(holders), shown.remaining)

    @abstractmethod
    def _line(self, key: str) -> Sequence[QueueEntry]:
        """Return all who hold the lock or wait for it, sorted by number."""


class Variant:
    """What variants don't do: the main backend lists all kinds."""

    supports_listing = False

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        """Refuse."""
        raise self.unsupported("list what is held: ask the backend itself")  # type: ignore[attr-defined]

    def count_held(self, *, prefix: str = "") -> int:
        """Refuse."""
        raise self.unsupported("list what is held: ask the backend itself")  # type: ignore[attr-defined]

    def close(self) -> None:
        """The connections are the main backend's."""


class QueueWaiter(Waiter):
    """A thread that waits: it sleeps on its own event."""

    def __init__(self, backend: QueueBackend, key: str, owner: str, ttl: float) -> None:
        self._backend = backend
        self._woken = threading.Event()
        self._ticket = Contender(key, owner, ttl, wake=self._woken.set)

    def try_acquire(self, *, queue: bool) -> Outcome:
        return enqueue(self._backend, self._ticket, queue)

    def wait(self, timeout: float) -> Outcome:
        self._woken.wait(min(timeout, self._backend.poll_interval(self._ticket)))
        self._woken.clear()
        return self.try_acquire(queue=True)

    def sleep(self, timeout: float) -> Outcome | None:
        """See the base class."""
        if timeout > self._backend.poll_interval(self._ticket) or self._woken.wait(timeout):
            return self.wait(timeout)
        return None

    def leave(self) -> None:
        leave(self._backend, self._ticket)


class AsyncQueueWaiter(AsyncWaiter):
    """A task that waits: its requests run in threads, its waiting in the event loop."""

    def __init__(self, backend: QueueBackend, key: str, owner: str, ttl: float) -> None:
        self._backend = backend
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ticket = Contender(key, owner, ttl, wake=self._wake)

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._woken.set)

    async def try_acquire(self, *, queue: bool) -> Outcome:
        return await asyncio.to_thread(enqueue, self._backend, self._ticket, queue)

    async def wait(self, timeout: float) -> Outcome:
        with contextlib.suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the wake-up.
            async with asyncio.timeout(min(timeout, self._backend.poll_interval(self._ticket))):
                await self._woken.wait()
        self._woken.clear()
        return await self.try_acquire(queue=True)

    async def sleep(self, timeout: float) -> Outcome | None:
        """See the base class."""
        if timeout > self._backend.poll_interval(self._ticket):
            return await self.wait(timeout)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        return await self.wait(0) if self._woken.is_set() else None

    async def leave(self) -> None:
        await asyncio.to_thread(leave, self._backend, self._ticket)


def enqueue(backend: QueueBackend, contender: Contender, queue: bool) -> Outcome:
    """Enqueue the contender, one thread at a time, and never after it was cancelled.

    A cancelled task leaves its request running in a thread: `leave` waits for that one.
    """
    with contender.mutex:
        if contender.left:
            raise LockError(f"the waiter in the queue of {contender.key!r} was given up")
        return backend.enqueue(contender, queue=queue)


def leave(backend: QueueBackend, contender: Contender) -> None:
    """Cancel the contender; what the engine doesn't receive now ends with the session."""
    with contender.mutex:
        contender.left = True
        with contextlib.suppress(LockError):
            backend.dequeue(contender)
