"""The verbs of the contract, on one Redis server or many."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.core.checks import CheckMessage

from locking.backends.base import BaseLockBackend, Finding, Heartbeat, Held, Holder
from locking.backends.redis.diagnosis import diagnose_server, named, permitted
from locking.backends.redis.health import judge, parse_info
from locking.backends.redis.heartbeats import HeartbeatStore
from locking.backends.redis.kinds import Ordinary, kind_named
from locking.backends.redis.listing import Listing
from locking.backends.redis.namespace import default_key_prefix
from locking.backends.redis.other_keys import find_other_keys
from locking.backends.redis.protocol import Calls, Steps
from locking.backends.redis.scripts import (
    Request,
    extend_request,
    force_release_request,
    get_holder_request,
    reissue_token_request,
    shorten_request,
)
from locking.backends.redis.topology import servers_of
from locking.backends.redis.verbs import RedisVariant, RedisVerbs
from locking.backends.redis.waiter import QueueWaitSteps
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable

logger = logging.getLogger(__name__)


BATCH = 100
"""Leases a renewal script handles: Redis serves nobody else meanwhile."""


class RedisBackend(RedisVerbs):
    """`"BACKEND": "locking.backends.redis.RedisBackend"`, with `"CACHE"` or `"LOCATION"`."""

    supports_listing = True
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    def __init__(self, settings: AliasSettings) -> None:
        servers = servers_of(settings)
        index = servers.client.index
        super().__init__(settings, Ordinary(index), servers)
        self._variants: dict[tuple[str, int], RedisVariant] = {}
        self._listing = Listing(self._client, settings.key_prefix, partial(kind_named, index=index))
        self._heartbeat_store = HeartbeatStore(self._client, settings.key_prefix)

    @classmethod
    def default_key_prefix(cls, settings: AliasSettings) -> str:
        return default_key_prefix(settings)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return bool(self._client.call(self._shorten(key, owner, ttl)))

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        return bool(await self._acall(self._shorten(key, owner, ttl)))

    def _shorten(self, key: str, owner: str, ttl: float) -> Request:
        return shorten_request(key, owner, ttl, index=self._client.index)

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class; many leases are one script, and what it refuses is asked one by one."""
        batches = list(self._batches([key for key, _, _ in leases]))
        replies = self._ask_each([extend_request([leases[i] for i in batch]) for batch in batches])
        answers: dict[int, bool | None] = {}
        for batch, reply in zip(batches, replies, strict=True):
            if isinstance(reply, list):
                answers.update((i, answer == 1) for i, answer in zip(batch, reply, strict=True))
            elif not isinstance(reply, BackendUnavailable):  # one key is no lock, and nothing was answered
                answers.update(zip(batch, super().extend_many([leases[i] for i in batch]), strict=True))
        return [answers.get(i) for i in range(len(leases))]

    def _batches(self, keys: Sequence[str]) -> Iterator[list[int]]:
        """Yield the indices of keys that one script may handle: of one slot, and not too many."""
        by_slot: dict[int, list[int]] = {}
        for i, slot in enumerate(self._calls.slots(keys)):
            by_slot.setdefault(slot, []).append(i)
        for indices in by_slot.values():
            for start in range(0, len(indices), BATCH):
                yield indices[start : start + BATCH]

    def _holder(self, calls: Calls, key: str) -> Steps[Holder | None]:
        return read_holder((yield from calls.call(get_holder_request(key))))

    def force_release(self, key: str, expected: str) -> bool:
        return bool(self._client.call(force_release_request(key, expected, index=self._client.index)))

    def reissue_token(self, key: str, owner: str, above: int) -> int:
        return int(self._client.call(reissue_token_request(key, owner, above, index=self._client.index)))

    def _wait_steps(self, calls: Calls, key: str, owner: str, ttl: float, fenced: bool) -> QueueWaitSteps:
        return QueueWaitSteps(calls, key, owner, ttl, fenced)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        which = (kind, options.get("permits", 0))
        if which not in self._variants:
            made = kind_named(kind, self._client.index, **options)
            self._variants[which] = RedisVariant(self.settings, made, self._servers)
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
        return self._listing.find(key, owner, kind)

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        self._heartbeat_store.publish(records, forget)

    def processes(self) -> dict[str, Heartbeat]:
        return self._heartbeat_store.read_all()

    def figures_by_minute(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        return self._heartbeat_store.by_minute(minutes)

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        return self._heartbeat_store.read(clients)

    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        self._heartbeat_store.add_counters(minute, figures)

    def figures(self, minutes: Sequence[int]) -> dict[str, int] | None:
        return self._heartbeat_store.figures(minutes)

    def tidy(self) -> None:
        self._listing.tidy()

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        return judge(parse_info(self._client.command("INFO")), self.alias) if live else []

    def diagnose(self) -> list[Finding]:
        """See the base class: each server that has keys."""
        found = [
            diagnose_server(server, self.alias, self._client.replica_ack) for server in self._client.servers()
        ]
        others = permitted(partial(find_other_keys, self, self._client.servers()), "SCAN")
        if len(found) == 1:
            return [*found[0], *others]
        numbered = enumerate(found, start=1)
        return [*(each for i, one in numbered for each in named(f"server {i} of {len(found)}", one)), *others]

    def close(self) -> None:
        """See the base class; the sockets of an event loop close with it."""
        self._client.close()


def read_holder(reply: Any) -> Holder | None:
    """Return what get_holder.lua answered."""
    if not reply:
        return None
    owner, left, count = reply
    return Holder(owner.decode(), count, None if left < 0 else left / 1000)
