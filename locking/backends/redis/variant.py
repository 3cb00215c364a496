"""A kind of lock as a backend of its own: it shares the sockets of the RedisBackend that it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import RedisError

from locking.backends.base import AsyncPlace, BaseLockBackend, Busy, Grant, Holder, Outcome, Place
from locking.backends.redis.aio import AsyncCalls, Hub, Rooms
from locking.backends.redis.kinds import Kind, key_of_queue, read_holders
from locking.backends.redis.listing import escaped
from locking.backends.redis.scripts import read_outcome, reissue_token_request
from locking.backends.redis.waiting import RECOVERY_PAUSE, Ear, EarsOf
from locking.backends.redis.wire import Calls, TooFewCopies, Wire
from locking.clock import now
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable, LockError


class RedisVariant(BaseLockBackend):
    """The contract's verbs for one kind."""

    supports_fencing = True
    supports_force_release = True

    def __init__(
        self, settings: AliasSettings, kind: Kind, wire: Calls, ears_of: EarsOf, rooms: Rooms
    ) -> None:
        super().__init__(settings)
        self.alias = f"{settings.alias}/{kind.name}"
        self.exclusive = kind.name != "semaphore"
        self.supports_fairness = kind.name == "fair"
        self.kind, self._wire, self._ears_of, self._rooms = kind, wire, ears_of, rooms

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        request = self.kind.acquire(key, owner, ttl, keep=fenced, queue=False)
        reply = self._wire.acquire(request, lambda: self.kind.release(key, owner))
        return read_outcome(reply, sent)[0]

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return _yes(self._wire.call(self.kind.extend(key, owner, ttl)))

    def release(self, key: str, owner: str) -> bool:
        """See the base class."""
        return _yes(self._wire.call(self.kind.release(key, owner)))

    def force_release(self, key: str, expected: str) -> bool:
        """See the base class."""
        return self.release(key, expected)

    def reissue_token(self, key: str, owner: str, above: int) -> int:
        """See the base class; a read hold may have ended although its field is there, so it gets none."""
        field = {"write": f"{owner}:write", "fair": owner}.get(self.kind.name)
        if field is None:
            return 0
        return int(self._wire.call(reissue_token_request(key, field, above, index=self._wire.index)))

    def holder(self, key: str) -> Holder | None:
        """Return one of the holders (there may be many), or None; the number of holds is its count."""
        return read_holders(self._wire.call(self.kind.holder(key)))

    def place(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Place:
        """See the base class."""
        return AnnouncedPlace(self.kind, self._wire, self._ears_of, key, owner, ttl, fenced)

    def dequeue(self, owned: Callable[[str], bool]) -> None:
        """See the base class: only Redisson's fair lock keeps a waiter in its queue that is silent."""
        if self.kind.name != "fair":
            return
        for server in self._wire.servers():
            for queue in _fair_queues(server, self.settings.key_prefix):
                waiters = [owner.decode() for owner in server.command("LRANGE", queue, 0, -1)]
                for owner in waiters:
                    if owned(owner):
                        self._wire.call(self.kind.release(key_of_queue(queue), owner))

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        room, sent = await self._rooms.here(), now()
        request = self.kind.acquire(key, owner, ttl, keep=fenced, queue=False)
        reply = await room.acquire(request, lambda: self.kind.release(key, owner))
        return read_outcome(reply, sent)[0]

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return _yes(await (await self._rooms.here()).call(self.kind.extend(key, owner, ttl)))

    async def arelease(self, key: str, owner: str) -> bool:
        """See the base class."""
        return _yes(await (await self._rooms.here()).call(self.kind.release(key, owner)))

    async def aholder(self, key: str) -> Holder | None:
        """See `holder`."""
        return read_holders(await (await self._rooms.here()).call(self.kind.holder(key)))

    def aplace(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncPlace:
        """See the base class."""
        return AsyncAnnouncedPlace(self.kind, self._rooms, key, owner, ttl, fenced)


def _fair_queues(server: Wire, key_prefix: str) -> Iterator[bytes]:
    """Yield the queues of one server's fair locks: no list of them is kept, so it looks at every key."""
    pattern, cursor = f"redisson_lock_queue:*{escaped(key_prefix)}*", b"0"
    while True:
        cursor, found = server.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000, "TYPE", "list")
        yield from (queue for queue in found if key_of_queue(queue).startswith(key_prefix))
        if cursor == b"0":
            return


def _yes(reply: Any) -> bool:
    return bool(reply == 1)


class AnnouncedPlace(Place):
    """A thread that hears the kind's channel and asks again after every announcement."""

    def __init__(
        self, kind: Kind, wire: Calls, ears_of: EarsOf, key: str, owner: str, ttl: float, fenced: bool
    ) -> None:
        self._kind, self._wire, self._ears_of = kind, wire, ears_of
        self._key, self._owner, self._ttl, self._fenced = key, owner, ttl, fenced
        self._ear: Ear | None = None
        self._asked_in_line = False

    def try_acquire(self, *, queue: bool) -> Outcome:
        """Ask; a waiter asks again once it listens, lest it miss what happened in between."""
        try:
            outcome = self._try(queue)
        except TooFewCopies:
            raise
        except BackendUnavailable as error:
            if not (queue and self._wire.recovers):
                raise
            outcome = Busy(outage=error)
        if isinstance(outcome, Grant):
            self._stop_listening()
        return outcome

    def _try(self, queue: bool) -> Outcome:
        outcome = self._ask(queue)
        if self._ear is not None and self._ear.home is not self._ears_of(self._key):
            self._stop_listening()  # the lock lives on another server by now
        if queue and self._ear is None and isinstance(outcome, Busy):
            self._listen()
            outcome = self._ask(queue)
        return outcome

    def _ask(self, queue: bool) -> Outcome:
        sent = now()
        self._asked_in_line |= queue
        request = self._kind.acquire(self._key, self._owner, self._ttl, keep=self._fenced, queue=queue)
        reply = self._wire.acquire(request, lambda: self._kind.release(self._key, self._owner))
        return read_outcome(reply, sent)[0]

    def _listen(self) -> None:
        ears = self._ears_of(self._key)
        ear = ears.idle() or ears.open()
        try:
            ear.listen_to(self._kind.channel(self._key, self._owner))
        except (RedisError, OSError) as error:
            ear.close()
            raise BackendUnavailable(f"can't subscribe to wake-ups: {error}") from error
        self._ear = ear

    def wait(self, timeout: float) -> Outcome:
        """See the base class."""
        if self._ear is None:  # the server was away
            time.sleep(min(timeout, RECOVERY_PAUSE))
            return self.try_acquire(queue=True)
        own, deadline = self._ear.channel.encode(), now() + timeout
        try:
            while (left := deadline - now()) > 0:
                heard = self._ear.hear(left)
                if heard is None or heard[0] not in (b"", own):
                    break
        except (RedisError, OSError):
            self._ear.close()
            self._ear = None
        return self.try_acquire(queue=True)

    def leave(self) -> None:
        """See the base class."""
        self._stop_listening()
        request = self._kind.leave(self._key, self._owner) if self._asked_in_line else None
        if request is not None:
            _quietly(self._wire, request)

    def _stop_listening(self) -> None:
        if self._ear is not None:
            self._ear.home.give_back(self._ear)
            self._ear = None


def _quietly(wire: Calls, request: Any) -> None:
    with contextlib.suppress(LockError):  # Redisson's queue drops a silent waiter by itself
        wire.call(request)


class AsyncAnnouncedPlace(AsyncPlace):
    """`AnnouncedPlace` for a task."""

    def __init__(self, kind: Kind, rooms: Rooms, key: str, owner: str, ttl: float, fenced: bool) -> None:
        self._kind, self._rooms = kind, rooms
        self._key, self._owner, self._ttl, self._fenced = key, owner, ttl, fenced
        self._hub: Hub | None = None
        self._asked_in_line = False

    async def try_acquire(self, *, queue: bool) -> Outcome:
        """See `AnnouncedPlace.try_acquire`."""
        room = await self._rooms.here()
        try:
            outcome = await self._try(room, queue)
        except TooFewCopies:
            raise
        except BackendUnavailable as error:
            if not (queue and room.recovers):
                raise
            outcome = Busy(outage=error)
        if isinstance(outcome, Grant):
            await self._stop_listening()
        return outcome

    async def _try(self, room: AsyncCalls, queue: bool) -> Outcome:
        outcome = await self._ask(room, queue)
        if self._hub is not None and self._is_misplaced(await room.hub_of(self._key)):
            await self._stop_listening()
        if queue and self._hub is None and isinstance(outcome, Busy):
            await self._listen(room)
            outcome = await self._ask(room, queue)
        return outcome

    def _is_misplaced(self, hub: Hub) -> bool:
        return self._hub is not hub or hub.is_deaf(self._owner)

    async def _ask(self, room: AsyncCalls, queue: bool) -> Outcome:
        sent = now()
        self._asked_in_line |= queue
        request = self._kind.acquire(self._key, self._owner, self._ttl, keep=self._fenced, queue=queue)
        reply = await room.acquire(request, lambda: self._kind.release(self._key, self._owner))
        return read_outcome(reply, sent)[0]

    async def _listen(self, room: AsyncCalls) -> None:
        self._hub = hub = await room.hub_of(self._key)
        try:
            await hub.expect(self._owner)
            await hub.listen(self._owner, self._kind.channel(self._key, self._owner))
        except (RedisError, OSError) as error:
            raise BackendUnavailable(f"can't subscribe to wake-ups: {error}") from error

    async def wait(self, timeout: float) -> Outcome:
        """See the base class."""
        if self._hub is None or self._hub.is_deaf(self._owner):  # the server was away
            await asyncio.sleep(min(timeout, RECOVERY_PAUSE))
        else:
            await self._hub.next_message(self._owner, timeout)
        return await self.try_acquire(queue=True)

    async def leave(self) -> None:
        """See the base class."""
        room = await self._rooms.here()
        await self._stop_listening()
        request = self._kind.leave(self._key, self._owner) if self._asked_in_line else None
        if request is not None:
            with contextlib.suppress(LockError):
                await room.call(request)

    async def _stop_listening(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.forget(self._owner)
