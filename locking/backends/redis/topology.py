"""From the settings of an alias to its servers: one, a service that Sentinels watch, or a cluster.

    redis://host:6379/0                               one server
    rediss://host:6379/0                              the same by TLS; certificate and host name are verified
    unix:///path/to/redis.sock?db=0                   the same by a socket file
    sentinel+redis://host:26379,host:26379/service/0  the master of a service; sentinel+rediss:// by TLS
    ["redis://host:7000", "redis://host:7001"]        a cluster, reached by any of these nodes

`CACHE` instead of `LOCATION` shares the address, the credentials and the TLS settings of a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache, partial
from typing import Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

from django.core.exceptions import ImproperlyConfigured
from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from locking.backends.options import misplaced
from locking.backends.redis.async_transport import AsyncTransport, EventLoops
from locking.backends.redis.cluster import Address, Cluster, SlotMap
from locking.backends.redis.compat import require_supported_client
from locking.backends.redis.index import Index
from locking.backends.redis.protocol import ReplicaAck, Server
from locking.backends.redis.transport import RedisClient, Transport
from locking.backends.redis.verbs import Servers
from locking.conf import AliasSettings

SENTINEL_SCHEME: Final = "sentinel+"

SENTINEL_TIMEOUT: Final = 1.0
"""Seconds after which the next Sentinel is asked: they are many, so that one may be down."""

DEFAULT_ACK_TIMEOUT_MS: Final = 1000

LISTEN_BOTH: Final = ("SUBSCRIBE", "SSUBSCRIBE")
"""Redisson announces by SPUBLISH in a cluster of Redis 7 and by PUBLISH in an older one."""

LOCKS: Final = "lock:"

OWN_OPTIONS: Final = ("wait_replicas", "wait_timeout_ms", "sentinel_kwargs")
"""What `OPTIONS` may hold beside arguments of redis-py's connections."""


def default_key_prefix(settings: AliasSettings) -> str:
    """Return what is put before every name: its cache's `KEY_PREFIX` and `VERSION`, and `lock:`.

        lock:order:42              LOCATION, or a cache without a KEY_PREFIX
        shop:lock:order:42         a cache with KEY_PREFIX "shop"
        shop:v2:lock:order:42      and with VERSION 2

    Caches write `<KEY_PREFIX>:<VERSION>:<key>`, with a number in the middle: none of their keys is a lock's.
    """
    if settings.location is not None:
        return LOCKS
    from django.conf import settings as django_settings

    cache = django_settings.CACHES.get(settings.cache or "default", {})
    prefix, version = str(cache.get("KEY_PREFIX") or ""), cache.get("VERSION", 1)
    versioned = [] if version == 1 else [f"v{version}"]
    return "".join(f"{part}:" for part in [prefix, *versioned] if part) + LOCKS


def servers_of(settings: AliasSettings) -> Servers:
    """Return the servers that `settings` name; nothing is sent yet.

    Raises:
        ImproperlyConfigured: `CACHE`, `LOCATION` or `OPTIONS` is invalid; the message says why.
    """
    require_supported_client()
    if settings.location is not None and settings.cache is not None:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}] has both CACHE and LOCATION; keep one")
    if settings.location is None:
        return _servers_of_cache(settings)
    if isinstance(settings.location, str):
        return _one(settings, _pool_at(settings, settings.location))
    return _cluster(settings, *_seeds(settings, settings.location))


# one server, or one master


def _one(settings: AliasSettings, pool: ConnectionPool) -> Servers:
    _try_options(settings, pool.connection_class, pool.connection_kwargs)
    has_failover = isinstance(pool, SentinelConnectionPool)
    ack = _replica_ack(settings, default="auto" if has_failover else 0)
    index = Index(settings.key_prefix)

    def server(kind: type[Transport | AsyncTransport]) -> Server:
        return Server(kind(pool), settings.alias, index, ack, has_failover=has_failover)

    return Servers(RedisClient(server(Transport)), EventLoops(partial(server, AsyncTransport)))


def _pool_at(settings: AliasSettings, url: str) -> ConnectionPool:
    try:
        if url.startswith(SENTINEL_SCHEME):
            return _sentinel_pool(settings, url)
        path = urlsplit(url).path.strip("/")
        if url.startswith("unix://") != bool(
            path and not path.isdecimal()
        ):  # redis-py takes both for defaults
            raise ValueError(f"{_without_password(url)!r} must be unix:///path or redis://host:6379/<number>")
        return ConnectionPool.from_url(url, **_connection_options(settings))
    except ValueError as error:
        raise _bad_location(settings, str(error)) from error


class Sentinels(Sentinel):
    """Asks Sentinels in turn for their master, first the one that answered last time.

    redis-py moves that one to the front of a list that all threads share, from the place where it was when it
    was asked. Of two that ask at once, the second then puts it in twice and drops another Sentinel. Here each
    asks in a list of its own.
    """

    def discover_master(self, service_name: str) -> Any:
        """See redis-py."""
        own = copy(self)
        own.sentinels = list(self.sentinels)
        found = Sentinel.discover_master(own, service_name)
        self.sentinels = own.sentinels
        return found


def _sentinel_pool(settings: AliasSettings, url: str) -> ConnectionPool:
    parts = urlsplit(url.removeprefix(SENTINEL_SCHEME))
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(
            f"{_without_password(url)!r} names no service: {SENTINEL_SCHEME}redis://host:26379/<service>"
        )
    credentials, at, hosts = parts.netloc.rpartition("@")
    master = parts._replace(netloc=f"{credentials}{at}localhost", path=f"/{database}")
    options = {**parse_url(master.geturl()), **_connection_options(settings)}
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    sentinels = [_host_and_port(part, 26379) for part in hosts.split(",")]
    asked = _sentinel_options(settings)
    manager = Sentinels(sentinels, sentinel_kwargs=asked, **options)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(service, manager, ssl=parts.scheme == "rediss", **options)


def _sentinel_options(settings: AliasSettings) -> dict[str, Any]:
    patience = {"socket_timeout": SENTINEL_TIMEOUT, "socket_connect_timeout": SENTINEL_TIMEOUT}
    return {**patience, "retry": Retry(NoBackoff(), 0), **settings.options.get("sentinel_kwargs", {})}


def _host_and_port(text: str, default: int) -> tuple[str, int]:
    parts = SplitResult("redis", text, "", "", "")
    if not parts.hostname:
        raise ValueError(f"{text!r} is no host:port")
    return parts.hostname, parts.port or default


# a cluster


def _cluster(settings: AliasSettings, seeds: Sequence[Address], options: Mapping[str, Any]) -> Servers:
    ack = _replica_ack(settings, default="auto")
    _try_options(settings, options.get("connection_class", Connection), options)
    index, slots = Index(settings.key_prefix, clustered=True), SlotMap(seeds)

    @cache
    def pool(address: Address) -> ConnectionPool:
        return ConnectionPool(**{**options, **address._asdict()})

    def cluster(kind: type[Transport | AsyncTransport]) -> Cluster:
        return Cluster(slots, lambda address: kind(pool(address), LISTEN_BOTH), settings.alias, index, ack)

    return Servers(RedisClient(cluster(Transport)), EventLoops(partial(cluster, AsyncTransport)))


def _seeds(settings: AliasSettings, urls: object) -> tuple[list[Address], dict[str, Any]]:
    """Return the addresses of a list of URLs, and the connection options of the first, which hold for all."""
    if not isinstance(urls, Sequence) or not urls or not all(isinstance(url, str) for url in urls):
        raise _bad_location(settings, f"must be a URL, or a list of URLs of a cluster's nodes, not {urls!r}")
    try:
        parsed = [parse_url(url) for url in urls]
    except ValueError as error:
        raise _bad_location(settings, str(error)) from error
    for url, options in zip(urls, parsed, strict=True):
        if "path" in options:
            raise _bad_location(
                settings, f"{url!r} is a socket file; a cluster's nodes find each other by host"
            )
        if options.pop("db", 0):
            raise _bad_location(
                settings, f"{_without_password(url)!r} names a database; a cluster has only one"
            )
    seeds = [Address(each.get("host", "localhost"), each.get("port", 6379)) for each in parsed]
    return seeds, {**parsed[0], **_connection_options(settings)}


# a cache's servers


def _servers_of_cache(settings: AliasSettings) -> Servers:
    client = _client_of_cache(settings)
    if isinstance(client, RedisCluster):
        nodes = client.nodes_manager
        seeds = [Address(node.host, node.port) for node in nodes.startup_nodes.values()]
        return _cluster(settings, seeds, _of_connections(nodes.connection_kwargs))
    if isinstance(client, Redis):
        return _one(settings, _asking_sentinels_once(client.connection_pool))
    raise ImproperlyConfigured(
        f"LOCKING[{settings.alias!r}]: can't lock through a {type(client).__qualname__};"
        " give LOCKING a LOCATION of its own"
    )


def _of_connections(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's arguments as its connections take them: TLS is their class, not an argument."""
    if "ssl" not in options:  # it was made from a URL
        return dict(options)
    if options["ssl"]:
        named = {name: value for name, value in options.items() if name != "ssl"}
        return {"connection_class": SSLConnection, **named}
    return {name: value for name, value in options.items() if not name.startswith("ssl")}


def _asking_sentinels_once(pool: ConnectionPool) -> ConnectionPool:
    """Return a pool like the cache's that asks its Sentinels as ours does: each once, for a second at most.

    redis-py would ask one that hangs eleven times, for five seconds each, before it asks the next.
    """
    if not isinstance(pool, SentinelConnectionPool):
        return pool
    manager = Sentinels([])  # type: ignore[no-untyped-call]
    manager.__dict__.update(pool.sentinel_manager.__dict__)
    manager.sentinels = [
        Redis(connection_pool=_asking_once(each.connection_pool)) for each in manager.sentinels
    ]
    options = {**pool.connection_kwargs, "connection_class": pool.connection_class}
    return SentinelConnectionPool(pool.service_name, manager, is_master=pool.is_master, **options)


def _asking_once(pool: ConnectionPool) -> ConnectionPool:
    asked = pool.connection_kwargs
    patience = {
        name: min(asked.get(name) or SENTINEL_TIMEOUT, SENTINEL_TIMEOUT)
        for name in ("socket_timeout", "socket_connect_timeout")
    }
    options = {**asked, **patience, "retry": Retry(NoBackoff(), 0)}
    return ConnectionPool(connection_class=pool.connection_class, **options)


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


def _connection_options(settings: AliasSettings) -> dict[str, Any]:
    return {name: value for name, value in settings.options.items() if name not in OWN_OPTIONS}


NUMBERS: Final = ("db", "socket_timeout", "socket_connect_timeout", "health_check_interval")
TEXTS: Final = ("username", "password", "client_name", "encoding")


def _try_options(settings: AliasSettings, kind: Any, options: Mapping[str, Any]) -> None:
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


def _replica_ack(settings: AliasSettings, *, default: int | Literal["auto"]) -> ReplicaAck | None:
    wanted = settings.options.get("wait_replicas", default)
    timeout_ms = settings.options.get("wait_timeout_ms", DEFAULT_ACK_TIMEOUT_MS)
    if wanted != "auto" and not _is_whole(wanted, at_least=0):
        raise misplaced(settings, "wait_replicas", f'must be a number of replicas or "auto", not {wanted!r}')
    if not _is_whole(timeout_ms, at_least=1):  # WAIT 0 would wait without end
        why = f"must be whole milliseconds, at least 1, not {timeout_ms!r}"
        raise misplaced(settings, "wait_timeout_ms", why)
    return ReplicaAck(wanted, timeout_ms) if wanted else None


def _is_whole(value: object, *, at_least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least


def _bad_location(settings: AliasSettings, why: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['LOCATION']: {why}")


def _without_password(url: str) -> str:
    credentials, at, rest = url.rpartition("@")
    return f"{credentials.split('//')[0]}//***@{rest}" if at else url
