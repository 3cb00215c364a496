"""The verbs of the contract, on one Redis server or many."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.core.checks import CheckMessage

from locking.backends.base import AsyncPlace, BaseLockBackend, Finding, Held, Holder, Outcome, Place, Presence
from locking.backends.redis.aio import AsyncRedisPlace
from locking.backends.redis.diagnosis import diagnose_server, named
from locking.backends.redis.health import judge, parse_info
from locking.backends.redis.kinds import kind_named
from locking.backends.redis.listing import Listing
from locking.backends.redis.presence import PresenceBook
from locking.backends.redis.scripts import (
    acquire_request,
    extend_request,
    force_release_request,
    read_outcome,
    reissue_token_request,
    release_request,
    seen_request,
    shorten_request,
)
from locking.backends.redis.topology import servers_of
from locking.backends.redis.variant import RedisVariant
from locking.backends.redis.waiting import RedisPlace
from locking.clock import now
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable

logger = logging.getLogger("locking")


BATCH = 100
"""Leases a renewal script handles: Redis serves nobody else meanwhile."""


class RedisBackend(BaseLockBackend):
    """`"BACKEND": "locking.backends.redis.RedisBackend"`, with `"CACHE"` or `"LOCATION"`."""

    supports_fencing = True
    supports_listing = True
    supports_force_release = True
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._wire, self._ears_of, self._rooms, self._close = servers_of(settings)
        self._variants: dict[tuple[str, int], RedisVariant] = {}
        self._listing = Listing(self._wire, settings.key_prefix, partial(kind_named, index=self._wire.index))
        self._book = PresenceBook(self._wire, settings.key_prefix)

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        request = acquire_request(key, owner, ttl, keep=fenced, place=b"", index=self._wire.index)
        reply = self._wire.acquire(request, partial(release_request, key, owner, index=self._wire.index))
        return read_outcome(reply, sent)[0]

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return bool(self.extend_many([(key, owner, ttl)])[0])

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return bool(self._wire.call(shorten_request(key, owner, ttl, index=self._wire.index)))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
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
        return bool(self._wire.call(release_request(key, owner, index=self._wire.index)))

    def force_release(self, key: str, expected: str) -> bool:
        """See the base class."""
        return bool(self._wire.call(force_release_request(key, expected, index=self._wire.index)))

    def reissue_token(self, key: str, owner: str, above: int) -> int:
        """See the base class."""
        return int(self._wire.call(reissue_token_request(key, owner, above, index=self._wire.index)))

    def holder(self, key: str) -> Holder | None:
        """See the base class."""
        return read_holder(self._wire.call(seen_request(key)))

    def place(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Place:
        """See the base class."""
        return RedisPlace(self._wire, self._ears_of, key, owner, ttl, fenced)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        which = (kind, options.get("permits", 0))
        if which not in self._variants:
            made = kind_named(kind, self._wire.index, **options)
            self._variants[which] = RedisVariant(self.settings, made, self._wire, self._ears_of, self._rooms)
        return self._variants[which]

    # what is held, and by whom

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        """See the base class; locks of Redisson's clients appear once one of ours has met them."""
        if offset == 0:
            self._adopt()
        return self._listing.held(prefix, offset, limit)

    def _adopt(self) -> None:
        try:
            self._listing.adopt()
        except BackendUnavailable:
            raise
        except (
            BackendError
        ) as error:  # the ACL user may be without SCAN: our own locks are listed all the same
            logger.debug("not looking for locks of other clients: %s", error)

    def count_held(self, *, prefix: str = "") -> int:
        """See the base class; what ended by itself and wasn't met since is counted too."""
        return self._listing.count(prefix)

    def find_held(self, key: str, owner: str, kind: str) -> Held | None:
        """See the base class."""
        return self._listing.find(key, owner, kind)

    def tell_presence(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        """See the base class."""
        self._book.tell(records, forget)

    def presence(self, clients: Sequence[str]) -> dict[str, Presence]:
        """See the base class."""
        return self._book.read(clients)

    def add_figures(self, minute: int, figures: Mapping[str, int]) -> None:
        """See the base class."""
        self._book.add_figures(minute, figures)

    def figures(self, minutes: Sequence[int]) -> dict[str, int] | None:
        """See the base class."""
        return self._book.figures(minutes)

    def tidy(self) -> None:
        """See the base class."""
        self._listing.tidy()

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class."""
        return judge(parse_info(self._wire.command("INFO")), self.alias) if live else []

    def diagnose(self) -> list[Finding]:
        """See the base class: each server that has keys."""
        servers = self._wire.servers()
        found = [diagnose_server(wire, self.alias, self._wire.copies) for wire in servers]
        if len(found) == 1:
            return found[0]
        numbered = enumerate(found, start=1)
        return [each for i, one in numbered for each in named(f"server {i} of {len(found)}", one)]

    # asyncio

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        request = acquire_request(key, owner, ttl, keep=fenced, place=b"", index=self._wire.index)
        undo = partial(release_request, key, owner, index=self._wire.index)
        reply = await (await self._rooms.here()).acquire(request, undo)
        return read_outcome(reply, sent)[0]

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        reply = await (await self._rooms.here()).call(extend_request([(key, owner, ttl)]))
        return bool(reply[0] == 1)

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return bool(
            await (await self._rooms.here()).call(shorten_request(key, owner, ttl, index=self._wire.index))
        )

    async def arelease(self, key: str, owner: str) -> bool:
        """See the base class."""
        return bool(
            await (await self._rooms.here()).call(release_request(key, owner, index=self._wire.index))
        )

    async def aholder(self, key: str) -> Holder | None:
        """See the base class."""
        room = await self._rooms.here()
        return read_holder(await room.call(seen_request(key)))

    def aplace(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncPlace:
        """See the base class."""
        return AsyncRedisPlace(self._rooms, key, owner, ttl, fenced)

    def close(self) -> None:
        """See the base class; the sockets of an event loop close with it."""
        self._close()


def read_holder(reply: Any) -> Holder | None:
    """Return what seen.lua answered."""
    if not reply:
        return None
    owner, left, count = reply
    return Holder(owner.decode(), count, None if left < 0 else left / 1000)
