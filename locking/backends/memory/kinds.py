"""Read-write locks and semaphores in the memory of one process.

As on Redis, all waiters are woken to ask again, and readers come before writers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from locking.backends.base import AsyncWaiter, BaseLockBackend, Busy, Grant, Held, Holder, Outcome, Waiter
from locking.conf import AliasSettings
from locking.utils.clock import now

Admits = Callable[[list["Share"]], bool]
"""Whether a newcomer may join those who hold the lock."""


@dataclass(slots=True)
class Share:
    """One of the holds of a lock: who has it, in which way, and until when."""

    owner: str
    kind: str
    deadline: float
    token: int
    at: float = field(default_factory=time.time)  # noqa: TID251 shown


class Shares:
    """Locks that several may hold at a time; every method is one atomic step."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._shares: dict[str, list[Share]] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._permits: dict[str, int] = {}
        self._token = 0

    def permits(self, key: str, wanted: int) -> int:
        """Return how many permits `key` has: as many as the first to ask wanted."""
        return self._permits.setdefault(key, wanted)

    def take(self, key: str, owner: str, kind: str, ttl: float, admits: Admits) -> Outcome:
        """Grant a share if `admits` agrees; an owner who has one is granted it again."""
        with self._mutex:
            live = self._live(key)
            own = _owned(live, owner, kind)
            if own is None and not admits(live):
                return Busy(retry_after=time_left(live), holder=live[0].owner)
            if own is None:
                self._token += 1
                own = Share(owner, kind, 0.0, self._token)
                self._shares[key] = [*live, own]
            since = now()
            own.deadline = since + ttl
            return Grant(own.token, since)

    def extend(self, key: str, owner: str, kind: str, ttl: float) -> bool:
        """Move the deadline of `owner`'s share; waiters are woken if it is earlier."""
        with self._mutex:
            share = _owned(self._live(key), owner, kind)
            if share is None:
                return False
            share.deadline, before = now() + ttl, share.deadline
            if share.deadline < before:
                self._wake_all(key)
            return True

    def release(self, key: str, owner: str, kind: str) -> bool:
        """End `owner`'s share and wake the waiters."""
        with self._mutex:
            share = _owned(self._live(key), owner, kind)
            if share is None:
                return False
            share.deadline = 0.0
            self._wake_all(key)
            return True

    def holders(self, key: str) -> list[Share]:
        """Return the shares of `key`."""
        with self._mutex:
            return self._live(key)

    def held(self) -> list[Held]:
        """Return every hold; a listening waiter may be one who has just been woken."""
        with self._mutex:
            return [self._as_held(key, share) for key in list(self._shares) for share in self._live(key)]

    def _as_held(self, key: str, share: Share) -> Held:
        return Held(
            key=key,
            owner=share.owner,
            kind=share.kind,
            remaining=share.deadline - now(),
            token=share.token,
            waiters=len(self._waiting.get(key, ())),
            since=share.at,
        )

    def listen(self, key: str, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a share of `key` ends early."""
        with self._mutex:
            self._waiting.setdefault(key, []).append(wake)

    def forget(self, key: str, wake: Callable[[], None]) -> None:
        """Call `wake` no more."""
        with self._mutex:
            self._waiting[key].remove(wake)
            if not self._waiting[key]:
                del self._waiting[key]

    def _live(self, key: str) -> list[Share]:
        moment = now()
        live = [share for share in self._shares.pop(key, ()) if share.deadline > moment]
        if live:
            self._shares[key] = live
        return live

    def _wake_all(self, key: str) -> None:
        for wake in self._waiting.get(key, ()):
            wake()


def _owned(shares: Iterable[Share], owner: str, kind: str) -> Share | None:
    return next((share for share in shares if (share.owner, share.kind) == (owner, kind)), None)


def time_left(shares: list[Share]) -> float:
    """Return the seconds until a permit comes back, or until the last reader or the writer is gone."""
    first_or_last = min if shares[0].kind == "semaphore" else max
    return max(0.0, first_or_last(share.deadline for share in shares) - now())


class MemoryVariant(BaseLockBackend):
    """One kind of lock: `read`, `write`, or `semaphore` with its number of permits."""

    supports_fencing = True
    supports_force_release = True
    supports_handover = True
    shared_between_processes = False

    def __init__(
        self, settings: AliasSettings, kind: str, shares: Callable[[], Shares], permits: int = 0
    ) -> None:
        super().__init__(settings)
        self.alias = f"{settings.alias}/{kind}"
        self.exclusive = kind != "semaphore"
        self._kind, self._shares, self._permits = kind, shares, permits

    @property
    def shares(self) -> Shares:
        """What all variants of this alias in this process share."""
        return self._shares()

    def _admits(self, key: str) -> Admits:
        if self._kind == "semaphore":
            permits = self.shares.permits(key, self._permits)
            return lambda holders: len(holders) < permits
        if self._kind == "read":
            return lambda holders: all(share.kind == "read" for share in holders)
        return lambda holders: not holders

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.shares.take(key, owner, self._kind, ttl, self._admits(key))

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self.shares.extend(key, owner, self._kind, ttl)

    def release(self, key: str, owner: str) -> bool:
        return self.shares.release(key, owner, self._kind)

    def force_release(self, key: str, expected: str) -> bool:
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        """Return one of the holders (there may be many), or None; the number of holds is its count."""
        holders = self.shares.holders(key)
        if not holders:
            return None
        return Holder(holders[0].owner, len(holders), time_left(holders))

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return SharedWaiter(self, key, owner, ttl)

    # No step of the store blocks for longer than a list takes, so asyncio needs no thread.

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.try_acquire(key, owner, ttl)

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        return self.extend(key, owner, ttl)

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        return self.extend(key, owner, ttl)

    async def arelease(self, key: str, owner: str) -> bool:
        return self.release(key, owner)

    async def aholder(self, key: str) -> Holder | None:
        return self.holder(key)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return AsyncSharedWaiter(self, key, owner, ttl)


class Listening:
    """What waiting threads and tasks have in common."""

    def __init__(self, variant: MemoryVariant, key: str, owner: str, ttl: float) -> None:
        self._variant, self._key, self._owner, self._ttl = variant, key, owner, ttl
        self._listening = False

    def _wake(self) -> None:
        raise NotImplementedError

    def _ask(self, queue: bool) -> Outcome:
        """Listen before asking, so that no release in between is missed."""
        if queue and not self._listening:
            self._listening = True
            self._variant.shares.listen(self._key, self._wake)
        outcome = self._variant.try_acquire(self._key, self._owner, self._ttl)
        if isinstance(outcome, Grant):
            self._stop()
        return outcome

    def _stop(self) -> None:
        if self._listening:
            self._listening = False
            self._variant.shares.forget(self._key, self._wake)

    def _leave(self) -> None:
        self._stop()
        self._variant.release(self._key, self._owner)


class SharedWaiter(Listening, Waiter):
    """A thread that is woken by its own event."""

    def __init__(self, variant: MemoryVariant, key: str, owner: str, ttl: float) -> None:
        super().__init__(variant, key, owner, ttl)
        self._woken = threading.Event()

    def _wake(self) -> None:
        self._woken.set()

    def try_acquire(self, *, queue: bool) -> Outcome:
        return self._ask(queue)

    def wait(self, timeout: float) -> Outcome:
        self._woken.wait(timeout)
        self._woken.clear()
        return self._ask(queue=True)

    def leave(self) -> None:
        self._leave()


class AsyncSharedWaiter(Listening, AsyncWaiter):
    """A task: the releasing thread, whichever it is, sets the event through the task's own loop."""

    def __init__(self, variant: MemoryVariant, key: str, owner: str, ttl: float) -> None:
        super().__init__(variant, key, owner, ttl)
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def try_acquire(self, *, queue: bool) -> Outcome:
        return self._ask(queue)

    async def wait(self, timeout: float) -> Outcome:
        with contextlib.suppress(TimeoutError):
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes with the wake-up.
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        self._woken.clear()
        return self._ask(queue=True)

    async def leave(self) -> None:
        self._leave()
