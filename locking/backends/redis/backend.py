"""The verbs of the contract on a single Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from redis import Redis
from redis.connection import ConnectionPool

from locking.backends.base import AsyncPlace, BaseLockBackend, Holder, Outcome, Place
from locking.backends.redis.aio import AsyncRedisPlace, Rooms, connections_like
from locking.backends.redis.health import judge, parse_info
from locking.backends.redis.kinds import kind_named
from locking.backends.redis.scripts import (
    acquire_request,
    extend_request,
    read_outcome,
    release_request,
    shorten_request,
)
from locking.backends.redis.variant import RedisVariant
from locking.backends.redis.waiting import Ears, RedisPlace
from locking.backends.redis.wire import Wire
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
        pool = connection_pool(settings)
        self._wire = Wire(pool, settings.alias)
        self._ears = Ears(self._wire)
        self._rooms = Rooms(connections_like(pool), settings.alias)
        self._variants: dict[tuple[str, int], RedisVariant] = {}

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        reply = self._wire.call(acquire_request(key, owner, ttl, keep=fenced, place=b""))
        return read_outcome(reply, sent)[0]

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return self.extend_many([(key, owner, ttl)])[0]

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class."""
        return bool(self._wire.call(shorten_request(key, owner, ttl)))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool]:
        """See the base class."""
        held: list[bool] = []
        for start in range(0, len(leases), BATCH):
            reply = self._wire.call(extend_request(list(leases[start : start + BATCH])))
            held += [answer == 1 for answer in reply]
        return held

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
        return RedisPlace(self._wire, self._ears, key, owner, ttl, fenced)

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        which = (kind, options.get("permits", 0))
        if which not in self._variants:
            made = kind_named(kind, **options)
            self._variants[which] = RedisVariant(self.settings, made, self._wire, self._ears, self._rooms)
        return self._variants[which]

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class."""
        return judge(parse_info(self._wire.command("INFO")), self.alias) if live else []

    # asyncio

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """See the base class."""
        sent = now()
        reply = await (await self._rooms.here()).call(
            acquire_request(key, owner, ttl, keep=fenced, place=b"")
        )
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
        self._ears.close()
        self._wire.close()


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


def connection_pool(settings: AliasSettings) -> ConnectionPool:
    """Return the pool of the cache that `CACHE` names, or of the server at `LOCATION`."""
    if settings.location is None:
        return _pool_of_cache(settings)
    if settings.cache is not None:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}] has both CACHE and LOCATION; keep one")
    if not isinstance(settings.location, str):
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]['LOCATION'] must be one redis:// URL for this backend,"
            f" not {settings.location!r}"
        )
    try:
        return ConnectionPool.from_url(settings.location, **settings.options)
    except ValueError as error:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['LOCATION']: {error}") from error


def _pool_of_cache(settings: AliasSettings) -> ConnectionPool:
    from django.core.cache import caches

    cache: Any = caches[settings.cache or "default"]
    if hasattr(cache, "client") and hasattr(cache.client, "get_client"):  # django-redis
        client = cache.client.get_client(write=True)
    elif hasattr(cache, "_cache") and hasattr(cache._cache, "get_client"):  # Django's own RedisCache
        client = cache._cache.get_client(None, write=True)
    else:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}] shares the cache {settings.cache or 'default'!r}, which is"
            f" {type(cache).__module__}.{type(cache).__qualname__} and not on Redis;"
            " point CACHES at django-redis, or give LOCKING a LOCATION of its own"
        )
    if not isinstance(client, Redis):
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]: can't lock through a {type(client).__qualname__}"
        )
    return client.connection_pool
