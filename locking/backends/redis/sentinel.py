"""The master of a service that Sentinels watch, as the connections find it."""

from __future__ import annotations

from copy import copy
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from locking.backends.redis.topology import SENTINEL_SCHEME, connection_options, without_password
from locking.conf import AliasSettings

SENTINEL_TIMEOUT: Final = 1.0  # seconds after which the next Sentinel is asked: one of many may be down


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


def pool_at(settings: AliasSettings, url: str) -> ConnectionPool:
    """Return the connections to the master of the service that a URL names, without `sentinel+`."""
    parts = urlsplit(url)
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError(
            f"{without_password(SENTINEL_SCHEME + url)!r} names no service:"
            f" {SENTINEL_SCHEME}redis://host:26379/<service>"
        )
    credentials, at, hosts = parts.netloc.rpartition("@")
    master = parts._replace(netloc=f"{credentials}{at}localhost", path=f"/{database}")
    options = {**parse_url(master.geturl()), **connection_options(settings)}
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    sentinels = [_host_and_port(part) for part in hosts.split(",")]
    patience = {"socket_timeout": SENTINEL_TIMEOUT, "socket_connect_timeout": SENTINEL_TIMEOUT}
    asked = {**patience, "retry": Retry(NoBackoff(), 0), **settings.options.get("sentinel_kwargs", {})}
    manager = Sentinels(sentinels, sentinel_kwargs=asked, **options)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(service, manager, ssl=parts.scheme == "rediss", **options)


def _host_and_port(text: str) -> tuple[str, int]:
    parts = SplitResult("redis", text, "", "", "")
    if not parts.hostname:
        raise ValueError(f"{text!r} is no host:port")
    return parts.hostname, parts.port or 26379


def asking_each_once(pool: SentinelConnectionPool) -> ConnectionPool:
    """Return a pool like the cache's that asks its Sentinels as ours does: each once, for a second at most.

    redis-py would ask one that hangs eleven times, for five seconds each, before it asks the next.
    """
    theirs: Any = pool.sentinel_manager
    given = [each.connection_pool.connection_kwargs for each in theirs.sentinels]
    asked = {**theirs.sentinel_kwargs, "retry": Retry(NoBackoff(), 0)}
    for name in ("socket_timeout", "socket_connect_timeout"):
        asked[name] = min(asked.get(name) or SENTINEL_TIMEOUT, SENTINEL_TIMEOUT)
    hosts = [(each["host"], each["port"]) for each in given]
    manager = Sentinels(hosts, theirs.min_other_sentinels, asked, **theirs.connection_kwargs)  # type: ignore[no-untyped-call]
    options = {**pool.connection_kwargs, "connection_class": pool.connection_class}
    return SentinelConnectionPool(pool.service_name, manager, is_master=pool.is_master, **options)
