"""A cluster: which server owns a lock, and what to do while that changes.

All keys of a script lie in one slot by construction, so a request goes to one server. Redirections (MOVED,
ASK) are followed, moments of change (TRYAGAIN, CLUSTERDOWN) are waited out, a dead server's successor is
looked for; each within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final, NamedTuple

from redis.cluster import RedisCluster
from redis.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from locking.backends.redis.async_transport import AsyncServer, EventLoops, Servers
from locking.backends.redis.protocol import (
    MOVING,
    UNREACHABLE,
    Calls,
    NeverSent,
    ReplicaAck,
    Server,
    Terms,
    translated,
)
from locking.backends.redis.scripts import Index, Request, command
from locking.backends.redis.topology import (
    ack_of,
    bad_location,
    connection_options,
    try_options,
    without_password,
)
from locking.backends.redis.transport import ThreadServer
from locking.conf import AliasSettings
from locking.utils.clock import now

TIMEOUT: Final = 1.0  # seconds for which a request follows a cluster that changes; a waiter goes on anyway
PAUSE: Final = 0.05  # seconds between two questions meanwhile
# Redisson announces by SPUBLISH in a cluster of Redis 7 and by PUBLISH in an older one.
LISTEN_BOTH: Final = ("SUBSCRIBE", "SSUBSCRIBE")


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class SlotMap:
    """Which server owns which slot, as far as this process knows."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = list(seeds)
        self.owner: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS

    def learn(self, reply: Any, asked: Address) -> None:
        """Take over the answer to CLUSTER SLOTS; a server that names no host means the one that was asked."""
        owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, master, *_ in reply:
            address = Address((master[0] or b"").decode() or asked.host, master[1])
            owners[first : last + 1] = [address] * (last - first + 1)
        self.owner = owners

    def owners(self) -> list[Address]:
        """Return every known owner once."""
        return list(dict.fromkeys(owner for owner in self.owner if owner is not None))

    def addresses(self) -> list[Address]:
        """Return every known server once: the owners, then those that the settings name."""
        return list(dict.fromkeys([*self.owners(), *self._seeds]))


@dataclass(slots=True)
class Route:
    """The way of one request: where it goes next."""

    slot: int
    address: Address | None
    until: float
    asking: bool = False
    was_sent: bool = False


class Cluster(Calls):
    """Requests to a cluster."""

    def __init__(self, terms: Terms, slots: SlotMap, make: Callable[[Address], Server]) -> None:
        super().__init__(terms)
        self._slots, self._make = slots, make
        self._servers: dict[Address, Server] = {}
        self.sleep = self._server(slots.addresses()[0]).sleep

    def server_of(self, key: str | bytes) -> Server | None:
        owner = self._slots.owner[key_slot(key.encode() if isinstance(key, str) else key)]
        return None if owner is None else self._server(owner)

    async def servers(self) -> list[Server]:
        if self._slots.owner[0] is None:
            try:
                await self._refresh()
            except (RedisError, OSError) as error:
                raise translated(error, self.alias) from error
        return [self._server(address) for address in self._slots.owners()]

    def opened(self) -> list[Server]:
        return list(self._servers.values())

    async def deliver(self, request: Request, replica_ack: ReplicaAck | None = None) -> Any:
        """See the base class: follow the cluster until it answers or the patience ends."""
        slot = key_slot(request.key)
        route = Route(slot, self._slots.owner[slot], now() + TIMEOUT)
        while True:
            try:
                if route.address is None:
                    raise ClusterDownError(f"no server of the cluster owns the slot {slot}")
                server = self._server(route.address)
                reply = await server.deliver(request, replica_ack, asking=route.asking)
                return request.resent(reply) if route.was_sent else reply
            except (RedisError, OSError) as error:
                route.was_sent |= isinstance(error, UNREACHABLE) and not isinstance(error, NeverSent)
                try:
                    pause = await self._redirected(route, error)
                except NeverSent as unsent:
                    if route.was_sent:  # not this time, but before
                        raise RedisConnectionError(str(unsent)) from unsent
                    raise
            await self.sleep(pause)

    async def _redirected(self, route: Route, error: RedisError | OSError) -> float:
        """Return the pause before the next try at `route.address`; raise when there shall be none.

        A dead server without a successor is given up at once.
        """
        if now() >= route.until:
            is_moving = isinstance(error, AskError)
            raise TryAgainError(f"the slot {route.slot} is still moving") if is_moving else error
        if isinstance(error, AskError):  # MOVED is one as well
            assert route.address is not None
            route.address = Address(error.host or route.address.host, error.port)
            route.asking = not isinstance(error, MovedError)
            if not route.asking:
                self._slots.owner[route.slot] = route.address
            return 0.0
        if not isinstance(error, (*MOVING, *UNREACHABLE)):
            raise error
        if not isinstance(error, TryAgainError):
            await self._refresh(last=route.address)
        before, route.address, route.asking = route.address, self._slots.owner[route.slot], False
        if isinstance(error, MOVING) or route.address is None:
            return PAUSE
        if route.address == before:
            raise error
        return 0.0

    async def _refresh(self, last: Address | None = None) -> None:
        """Ask any server for the map, the one that just failed last of all."""
        problem: Exception | None = None
        for address in sorted(self._slots.addresses(), key=lambda address: address == last):
            try:
                reply = await self._server(address).deliver(command("CLUSTER", "SLOTS"))
                if reply:  # a node that was taken out of the cluster knows of no slot, and isn't believed
                    self._slots.learn(reply, address)
                    return
            except (RedisError, OSError) as error:
                problem = error
        if problem is not None:
            raise problem
        # Their owners are unknown by now: asked again, within the bounds of `Route`.
        self._slots.owner = [None] * REDIS_CLUSTER_HASH_SLOTS

    def _server(self, address: Address) -> Server:
        if (server := self._servers.get(address)) is None:
            server = self._servers.setdefault(address, self._make(address))
        return server


# from the settings to a cluster


def cluster_at(settings: AliasSettings, urls: object) -> Servers:
    """Return the cluster that is reached by any of these nodes."""
    return _cluster(settings, *_seeds(settings, urls))


def cluster_of(settings: AliasSettings, client: RedisCluster) -> Servers:
    """Return the cluster of a cache's client, with the same credentials and TLS settings."""
    nodes = client.nodes_manager
    seeds = [Address(node.host, node.port) for node in nodes.startup_nodes.values()]
    return _cluster(settings, seeds, _of_connections(nodes.connection_kwargs))


def _cluster(settings: AliasSettings, seeds: Sequence[Address], options: Mapping[str, Any]) -> Servers:
    ack = ack_of(settings, default="auto")
    try_options(settings, options.get("connection_class", Connection), options)
    index, slots = Index(settings.key_prefix, clustered=True), SlotMap(seeds)
    terms = Terms(settings.alias, index, ack, has_failover=True)

    @cache
    def pool(address: Address) -> ConnectionPool:
        return ConnectionPool(**{**options, **address._asdict()})

    def cluster(kind: type[ThreadServer | AsyncServer]) -> Cluster:
        return Cluster(terms, slots, lambda address: kind(terms, pool(address), LISTEN_BOTH))

    return Servers(cluster(ThreadServer), EventLoops(partial(cluster, AsyncServer)))


def _seeds(settings: AliasSettings, urls: object) -> tuple[list[Address], dict[str, Any]]:
    """Return the addresses of a list of URLs, and the connection options of the first, which hold for all."""
    if not isinstance(urls, Sequence) or not urls or not all(isinstance(url, str) for url in urls):
        raise bad_location(settings, f"must be a URL, or a list of URLs of a cluster's nodes, not {urls!r}")
    try:
        parsed = [parse_url(url) for url in urls]
        for url, options in zip(urls, parsed, strict=True):
            if "path" in options:
                raise ValueError(f"{url!r} is a socket file; a cluster's nodes find each other by host")
            if options.pop("db", 0):
                raise ValueError(f"{without_password(url)!r} names a database; a cluster has only one")
    except ValueError as error:
        raise bad_location(settings, str(error)) from error
    seeds = [Address(each.get("host", "localhost"), each.get("port", 6379)) for each in parsed]
    return seeds, {**parsed[0], **connection_options(settings)}


def _of_connections(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's arguments as its connections take them: TLS is their class, not an argument."""
    if "ssl" not in options:  # it was made from a URL
        return dict(options)
    if options["ssl"]:
        named = {name: value for name, value in options.items() if name != "ssl"}
        return {"connection_class": SSLConnection, **named}
    return {name: value for name, value in options.items() if not name.startswith("ssl")}
