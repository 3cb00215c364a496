"""The verbs of the contract, on one Redis server or many."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from django.conf import settings as django_settings
from django.core.checks import CheckMessage

from locking.backends.base import BaseLockBackend, Finding
from locking.backends.capabilities import Diagnosis, Kinds, ManyServers
from locking.backends.redis.diagnosis import diagnose_server, find_other_keys, judge, parse_info, permitted
from locking.backends.redis.kinds import NAMED, Ordinary
from locking.backends.redis.listing import ListingVerbs
from locking.backends.redis.scripts import extend_request
from locking.backends.redis.topology import servers_of
from locking.backends.redis.transport import run
from locking.backends.redis.verbs import RedisVariant
from locking.backends.redis.waiter import HandoffWaiter
from locking.conf import AliasSettings

with suppress(ImportError):  # a part that may be left out
    from locking.backends.redis import redisson_kinds as redisson_kinds

BATCH = 100
"""Leases per renewal script: Redis serves no other client while it runs."""


class RedisBackend(ListingVerbs, Kinds, ManyServers, Diagnosis):
    """`"BACKEND": "locking.backends.redis.RedisBackend"`, with `"CACHE"` or `"LOCATION"`."""

    supports_fairness = True
    kinds = frozenset(NAMED) - {Ordinary.name}
    waiter_class = HandoffWaiter
    kind: Ordinary

    def __init__(self, settings: AliasSettings) -> None:
        servers = servers_of(settings)
        super().__init__(settings, Ordinary(servers.calls.index), servers)
        self._variants: dict[tuple[str, int], RedisVariant] = {}

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
            self._variants[which] = RedisVariant(self.settings, made, self._servers)
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
