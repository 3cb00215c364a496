"""The verbs of the contract, on one Redis server or many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage

from locking.backends.base import AsyncPlace, BaseLockBackend, Holder, Outcome, Place
from locking.backends.redis.aio import AsyncRedisPlace
from locking.backends.redis.health import judge, parse_info
from locking.backends.redis.kinds import kind_named
from locking.backends.redis.scripts import (
    acquire_request,
    extend_request,
    read_outcome,
    release_request,
    shorten_request,
)
from locking.backends.redis.topology import servers_of
from locking.backends.redis.variant import RedisVariant
from locking.backends.redis.waiting import RedisPlace
from locking.clock import now
from locking.conf import AliasSettings

BATCH = 100
"""Leases a renewal script handles: Redis serves nobody else meanwhile."""


class RedisBackend(BaseLockBackend):
    """`"BACKEND": "locking.backends.redis.RedisBackend"`, with `"CACHE"` or `"LOCATION"`."""

    supports_fencing = True
    supports_force_release = True
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._wire, self._ears_of, self._rooms, self._close = servers_of(settings)
        self._variants: dict[tuple[str, int], RedisVariant] = {}

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        request = acquire_request(key, owner, ttl, keep=fenced, place=b"")
        reply = self._wire.acquire(request, lambda: release_request(key, owner))
        return read_outcome(reply, sent)[0]

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return self.extend_many([(key, owner, ttl)])[0]

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return bool(self._wire.call(shorten_request(key, owner, ttl)))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool]:
        """See the base class."""
        batches = list(self._batches([key for key, _, _ in leases]))
        replies = self._wire.call_many([extend_request([leases[i] for i in batch]) for batch in batches])
        held: dict[int, bool] = {}
        for batch, reply in zip(batches, replies, strict=True):
            held.update((i, answer == 1) for i, answer in zip(batch, reply, strict=True))
        return [held[i] for i in range(len(leases))]

    def _batches(self, keys: Sequence[str]) -> Iterator[list[int]]:
        """Yield the indices of keys that one script may handle: of one slot, and not too many."""
        by_slot: dict[int, list[int]] = {}
        for i, slot in enumerate(self._wire.slots(keys)):
            by_slot.setdefault(slot, []).append(i)
        for indices in by_slot.values():
            for start in range(0, len(indices), BATCH):
                yield indices[start : start + BATCH]

    def release(self, key: str, owner: str) -> bool:
        """See the base class."""
        return bool(self._wire.call(release_request(key, owner)))

    def force_release(self, key: str, expected: str) -> bool:
        """See the base class."""
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        """See the base class."""
        return read_holder(self._wire.command("HGETALL", key), self._wire.command("PTTL", key))

    def place(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Place:
        """See the base class."""
        return RedisPlace(self._wire, self._ears_of, key, owner, ttl, fenced)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        which = (kind, options.get("permits", 0))
        if which not in self._variants:
            made = kind_named(kind, **options)
            self._variants[which] = RedisVariant(self.settings, made, self._wire, self._ears_of, self._rooms)
        return self._variants[which]

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class."""
        return judge(parse_info(self._wire.command("INFO")), self.alias) if live else []

    # asyncio

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        request = acquire_request(key, owner, ttl, keep=fenced, place=b"")
        reply = await (await self._rooms.here()).acquire(request, lambda: release_request(key, owner))
        return read_outcome(reply, sent)[0]

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        reply = await (await self._rooms.here()).call(extend_request([(key, owner, ttl)]))
        return bool(reply[0] == 1)

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return bool(await (await self._rooms.here()).call(shorten_request(key, owner, ttl)))

    async def arelease(self, key: str, owner: str) -> bool:
        """See the base class."""
        return bool(await (await self._rooms.here()).call(release_request(key, owner)))

    async def aholder(self, key: str) -> Holder | None:
        """See the base class."""
        room = await self._rooms.here()
        return read_holder(await room.command("HGETALL", key), await room.command("PTTL", key))

    def aplace(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncPlace:
        """See the base class."""
        return AsyncRedisPlace(self._rooms, key, owner, ttl, fenced)

    def close(self) -> None:
        """See the base class; the sockets of an event loop close with it."""
        self._close()


def read_holder(fields: Any, left: int) -> Holder | None:
    """Return the holder from the lock's hash (a list in RESP2, a dict in RESP3) and its time left in ms."""
    pairs = (
        list(fields.items())
        if isinstance(fields, dict)
        else list(zip(fields[::2], fields[1::2], strict=True))
    )
    if not pairs or left == -2:
        return None
    owner, count = pairs[0]
    return Holder(owner.decode(), int(count), None if left < 0 else left / 1000)
