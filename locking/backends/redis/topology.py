"""From the settings of an alias to its servers: one, a service that Sentinels watch, or a cluster.

    redis://host:6379/0                               one server
    rediss://host:6379/0                              the same by TLS; certificate and host name are verified
    unix:///path/to/redis.sock?db=0                   the same by a socket file
    sentinel+redis://host:26379,host:26379/service/0  the master of a service; sentinel+rediss:// by TLS
    ["redis://host:7000", "redis://host:7001"]        a cluster, reached by any of these nodes

`CACHE` instead of `LOCATION` shares the address, the credentials and the TLS settings of a cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import redis
from django.core.exceptions import ImproperlyConfigured
from redis import Redis
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool
from redis.exceptions import RedisError
from redis.sentinel import SentinelConnectionPool

from locking.backends.redis.async_transport import AsyncServer, EventLoops, Servers
from locking.backends.redis.protocol import ReplicaAck, Terms
from locking.backends.redis.scripts import Index
from locking.backends.redis.transport import ThreadServer
from locking.conf import AliasSettings, misplaced, own_count

SENTINEL_SCHEME: Final = "sentinel+"
DEFAULT_ACK_TIMEOUT_MS: Final = 1000
OLDEST: Final = (5, 2, 1)  # the oldest redis-py that the contract passed on

# What `OPTIONS` may hold beside arguments of redis-py's connections.
OWN_OPTIONS: Final = ("wait_replicas", "wait_timeout_ms", "sentinel_kwargs")
NUMBERS: Final = ("db", "socket_timeout", "socket_connect_timeout", "health_check_interval")
TEXTS: Final = ("username", "password", "client_name", "encoding")


def require_supported_client(version: str = redis.__version__) -> None:
    """Refuse a redis-py that pip could not refuse, because it was installed without the extra."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if found < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise ImproperlyConfigured(
            f"redis-py {version} is installed, and locks need {needed} or newer:"
            f" pip install 'redis>={needed}'"
        )


def servers_of(settings: AliasSettings) -> Servers:
    """Return the servers that `settings` name; nothing is sent yet."""
    require_supported_client()
    if settings.location is not None and settings.cache is not None:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}] has both CACHE and LOCATION; keep one")
    if settings.location is None:
        return _servers_of_cache(settings)
    if isinstance(settings.location, str):
        return _one(settings, _pool_at(settings, settings.location))
    from locking.backends.redis.cluster import cluster_at

    return cluster_at(settings, settings.location)


# one server, or one master


def _one(settings: AliasSettings, pool: ConnectionPool) -> Servers:
    try_options(settings, pool.connection_class, pool.connection_kwargs)
    has_failover = isinstance(pool, SentinelConnectionPool)
    ack = ack_of(settings, default="auto" if has_failover else 0)
    terms = Terms(settings.alias, Index(settings.key_prefix), ack, has_failover)
    return Servers(ThreadServer(terms, pool), EventLoops(lambda: AsyncServer(terms, pool)))


def _pool_at(settings: AliasSettings, url: str) -> ConnectionPool:
    try:
        if url.startswith(SENTINEL_SCHEME):
            from locking.backends.redis.sentinel import pool_at

            return pool_at(settings, url.removeprefix(SENTINEL_SCHEME))
        path = urlsplit(url).path.strip("/")
        is_file = bool(path and not path.isdecimal())
        if url.startswith("unix://") != is_file:  # redis-py takes both for defaults
            raise ValueError(f"{without_password(url)!r} must be unix:///path or redis://host:6379/<number>")
        return ConnectionPool.from_url(url, **connection_options(settings))
    except ValueError as error:
        raise bad_location(settings, str(error)) from error


# a cache's servers


def _servers_of_cache(settings: AliasSettings) -> Servers:
    client = _client_of_cache(settings)
    if isinstance(client, RedisCluster):
        from locking.backends.redis.cluster import cluster_of

        return cluster_of(settings, client)
    if isinstance(client, Redis):
        pool = client.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            from locking.backends.redis.sentinel import asking_each_once

            pool = asking_each_once(pool)
        return _one(settings, pool)
    raise ImproperlyConfigured(
        f"LOCKING[{settings.alias!r}]: can't lock through a {type(client).__qualname__};"
        " give LOCKING a LOCATION of its own"
    )


def _client_of_cache(settings: AliasSettings) -> object:
    from django.core.cache import caches

    cache: Any = caches[settings.cache or "default"]
    if hasattr(cache, "client") and hasattr(cache.client, "get_client"):  # django-redis
        try:
            return cache.client.get_client(write=True)
        except NotImplementedError as error:  # ShardClient's: each key has a client of its own
            raise ImproperlyConfigured(
                f"LOCKING[{settings.alias!r}] shares a cache whose {type(cache.client).__qualname__} spreads"
                " its keys over several servers; give LOCKING a LOCATION of its own"
            ) from error
    if hasattr(cache, "_cache") and hasattr(cache._cache, "get_client"):  # Django's own RedisCache
        return cache._cache.get_client(None, write=True)
    raise ImproperlyConfigured(
        f"LOCKING[{settings.alias!r}] shares the cache {settings.cache or 'default'!r}, which is"
        f" {type(cache).__module__}.{type(cache).__qualname__} and not on Redis;"
        " point CACHES at django-redis, or give LOCKING a LOCATION of its own"
    )


# options


def connection_options(settings: AliasSettings) -> dict[str, Any]:
    """Return those `OPTIONS` that redis-py's connections take."""
    return {name: value for name, value in settings.options.items() if name not in OWN_OPTIONS}


def try_options(settings: AliasSettings, kind: Any, options: Mapping[str, Any]) -> None:
    """Make a connection that is never opened: redis-py tells only then what it doesn't take."""
    named = {name: value for name, value in options.items() if name != "connection_class"}
    try:
        kind(**named)
    except (TypeError, ValueError, AttributeError, RedisError) as error:
        raise ImproperlyConfigured(
            f"LOCKING[{settings.alias!r}]: redis-py refuses OPTIONS: {error}"
        ) from error
    for name in (*NUMBERS, *TEXTS):
        expected, what = (int | float, "a number") if name in NUMBERS else (str | bytes, "a text")
        if options.get(name) is not None and not isinstance(options[name], expected):
            raise misplaced(settings, name, f"must be {what}, not {type(options[name]).__name__}")


def ack_of(settings: AliasSettings, *, default: int | Literal["auto"]) -> ReplicaAck | None:
    """Return what replicas must confirm, by the `OPTIONS`."""
    wanted = settings.options.get("wait_replicas", default)
    if wanted != "auto" and (type(wanted) is not int or wanted < 0):
        raise misplaced(settings, "wait_replicas", f'must be a number of replicas or "auto", not {wanted!r}')
    timeout_ms = settings.options.get("wait_timeout_ms", DEFAULT_ACK_TIMEOUT_MS)
    own_count(settings, timeout_ms, "wait_timeout_ms")  # WAIT 0 would wait without end
    return ReplicaAck(wanted, timeout_ms) if wanted else None


def bad_location(settings: AliasSettings, why: str) -> ImproperlyConfigured:
    """Return the error for an invalid `LOCATION`."""
    return ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['LOCATION']: {why}")


def without_password(url: str) -> str:
    """Return a URL as an error may show it."""
    credentials, at, rest = url.rpartition("@")
    return f"{credentials.split('//')[0]}//***@{rest}" if at else url
