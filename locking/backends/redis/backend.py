"""The verbs of the contract, on one Redis server or many; threads and asyncio send the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from django.conf import settings as django_settings
from django.core.checks import CheckMessage

from locking.backends.base import AsyncWaiter, BaseLockBackend, Finding, Holder, Outcome, Waiter
from locking.backends.capabilities import Diagnosis, ForceRelease, Kinds, ManyServers
from locking.backends.redis.async_transport import Servers
from locking.backends.redis.diagnosis import diagnose_server, find_other_keys, judge, parse_info, permitted
from locking.backends.redis.listing import RedisListing
from locking.backends.redis.scripts import NAMED, Kind, Ordinary, Request, extend_request, read_holder
from locking.backends.redis.topology import servers_of
from locking.backends.redis.transport import ThreadWaiter, run
from locking.backends.redis.waiter import AnnouncedWaiter, HandoffWaiter
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable

with suppress(ImportError):  # a part that may be left out
    from locking.backends.redis import redisson_kinds as redisson_kinds

BATCH = 100  # leases per renewal script: Redis serves no other client while it runs


class RedisVerbs(ForceRelease):
    """What all kinds of lock on Redis have in common; alone, a kind on the sockets of its RedisBackend."""

    supports_fencing = True

    waiter_class: ClassVar[type[AnnouncedWaiter]] = AnnouncedWaiter

    def __init__(self, settings: AliasSettings, kind: Kind, servers: Servers) -> None:
        super().__init__(settings)
        self.kind, self._servers = kind, servers
        self.calls, self._loops = servers
        if kind.name != "lock":
            self.alias = f"{settings.alias}/{kind.name}"
        self.exclusive = kind.name != "semaphore"
        self.supports_fairness = kind.name in ("lock", "fair")

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return run(self.waiter_class(self.kind, self.calls, key, owner, ttl, fenced).try_acquire(queue=False))

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return await self.async_waiter(key, owner, ttl, fenced=fenced).try_acquire(queue=False)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(run(self.calls.call(self.kind.extend(key, owner, ttl))))

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(await self._acall(self.kind.extend(key, owner, ttl)))

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(run(self.calls.call(self.kind.extend(key, owner, ttl, exactly=True))))

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(await self._acall(self.kind.extend(key, owner, ttl, exactly=True)))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        return [_answer(reply) for reply in self._ask_each([self.kind.extend(*lease) for lease in leases])]

    def _ask_each(self, requests: Sequence[Request]) -> list[Any]:
        """Return the reply or the error of each; raise when no server answers."""
        replies = run(self.calls.call_each(requests))
        if replies and all(isinstance(reply, BackendUnavailable) for reply in replies):
            raise replies[0]
        return replies

    def release(self, key: str, owner: str) -> bool:
        return bool(run(self.calls.call(self.kind.release(key, owner))) == 1)

    async def arelease(self, key: str, owner: str) -> bool:
        return bool(await self._acall(self.kind.release(key, owner)) == 1)

    def force_release(self, key: str, expected: str) -> bool:
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        """Return one of the holders (there may be many), or None; the number of holds is its count."""
        return read_holder(run(self.calls.call(self.kind.holder(key))))

    async def aholder(self, key: str) -> Holder | None:
        return read_holder(await self._acall(self.kind.holder(key)))

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return ThreadWaiter(self.waiter_class(self.kind, self.calls, key, owner, ttl, fenced))

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return self.waiter_class(self.kind, self._loops.here(), key, owner, ttl, fenced)

    async def _acall(self, request: Request) -> Any:
        return await self._loops.here().call(request)


class RedisBackend(RedisVerbs, RedisListing, Kinds, ManyServers, Diagnosis):
    """`"BACKEND": "locking.backends.redis.RedisBackend"`, with `"CACHE"` or `"LOCATION"`."""

    supports_fairness = True
    kinds = frozenset(NAMED) - {Ordinary.name}
    waiter_class = HandoffWaiter
    kind: Ordinary

    def __init__(self, settings: AliasSettings) -> None:
        servers = servers_of(settings)
        super().__init__(settings, Ordinary(servers.calls.index), servers)
        self._variants: dict[tuple[str, int], RedisVerbs] = {}
        self._cursors: dict[tuple[int, str], bytes] = {}

    @classmethod
    def default_key_prefix(cls, settings: AliasSettings) -> str:
        """Return what is put before every name: its cache's `KEY_PREFIX` and `VERSION`, and `lock:`.

            lock:order:42              LOCATION, or a cache without a KEY_PREFIX
            shop:lock:order:42         a cache with KEY_PREFIX "shop"
            shop:v2:lock:order:42      and with VERSION 2

        Caches write `<KEY_PREFIX>:<VERSION>:<key>`, with a number in the middle: none of their keys is a
        lock's.
        """
        if settings.location is not None:
            return "lock:"
        cache = django_settings.CACHES.get(settings.cache or "default", {})
        prefix, version = str(cache.get("KEY_PREFIX") or ""), cache.get("VERSION", 1)
        versioned = [] if version == 1 else [f"v{version}"]
        return "".join(f"{part}:" for part in [prefix, *versioned] if part) + "lock:"

    def server_of(self, key: str) -> object:
        if not self.calls.index.clustered:
            return None
        return self.calls.server_of(key) or object()  # not known: like no other

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class; many leases are one script, but in a cluster, where each has its own slot."""
        if self.calls.index.clustered:
            return super().extend_many(leases)
        batches = [leases[start : start + BATCH] for start in range(0, len(leases), BATCH)]
        replies = self._ask_each([extend_request(batch) for batch in batches])
        answers: list[bool | None] = []
        for batch, reply in zip(batches, replies, strict=True):
            answers += [each == 1 for each in reply] if isinstance(reply, list) else [None] * len(batch)
        return answers

    def force_release(self, key: str, expected: str) -> bool:
        return bool(run(self.calls.call(self.kind.force_release(key, expected))))

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        which = (kind, options.get("permits", 0))
        if which not in self._variants:
            made = NAMED[kind](self.kind.index, **options)
            self._variants[which] = RedisVerbs(self.settings, made, self._servers)
        return self._variants[which]

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        return judge(self.info(), self.alias) if live else []

    def info(self) -> dict[str, str]:
        """Return what a server says about itself."""
        return parse_info(run(self.calls.command("INFO")))

    def diagnose(self) -> list[Finding]:
        """See the base class: each server that has keys."""
        servers = run(self.calls.servers())
        found = list[Finding]()
        for i, server in enumerate(servers, start=1):
            which = f" (server {i} of {len(servers)})" if len(servers) > 1 else ""
            for finding in diagnose_server(server):
                found.append(replace(finding, subject=f"{finding.subject}{which}"))
        return found + permitted(find_other_keys(self, servers), "SCAN")

    def close(self) -> None:
        """See the base class; the sockets of an event loop close with it."""
        for server in self.calls.opened():
            run(server.shutdown())


def _is_yes(reply: Any) -> bool:
    """Whether a script said 1; that of several leases answers in a list."""
    return bool(reply == 1 or reply == [1])


def _answer(reply: Any) -> bool | None:
    """Return whether a lease was extended: a key that is no lock has no holder, an outage leaves it open."""
    if isinstance(reply, BackendError):
        return False if any(word in str(reply.__cause__) for word in ("WRONGTYPE", "NOTALOCK")) else None
    return _is_yes(reply)
