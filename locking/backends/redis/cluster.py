"""A cluster: which server owns a lock, and what to do while that changes.

All keys of a script lie in one slot by construction, so a request goes to one server. Redirections (MOVED,
ASK) are followed, moments of change (TRYAGAIN, CLUSTERDOWN) are waited out, a dead server's successor is
looked for; each within bounds. `Route` decides, without I/O; threads and asyncio differ in how they send.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis.connection import ConnectionPool
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from locking.backends.redis.aio import Hub, Room, connections_like
from locking.backends.redis.index import Index
from locking.backends.redis.scripts import Command, Request
from locking.backends.redis.waiting import Ears
from locking.backends.redis.wire import MISSED, MOVING, UNREACHABLE, Copies, TooFewCopies, Wire, translated
from locking.clock import now
from locking.exceptions import LockError

PATIENCE: Final = 1.0
"""Seconds for which one request follows a cluster that changes; a waiter goes on asking anyway."""

PAUSE: Final = 0.05
"""Seconds between two questions meanwhile."""

HEAR_BOTH: Final = ("SUBSCRIBE", "SSUBSCRIBE")
"""Redisson announces by SPUBLISH in a cluster of Redis 7 and by PUBLISH in an older one."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int


class SlotMap:
    """Which server owns which slot, as far as this process knows."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = list(seeds)
        self._owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS

    def owner(self, slot: int) -> Address | None:
        """Return the server of `slot`; None: nobody knows yet."""
        return self._owners[slot]

    def move(self, slot: int, address: Address) -> None:
        """Note that `slot` is at `address` now."""
        self._owners[slot] = address

    def learn(self, reply: Any, asked: Address) -> None:
        """Take over the answer to CLUSTER SLOTS; a server that names no host means the one that was asked."""
        owners: list[Address | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for first, last, master, *_ in reply:
            address = Address((master[0] or b"").decode() or asked.host, master[1])
            owners[first : last + 1] = [address] * (last - first + 1)
        self._owners = owners

    def owners(self) -> list[Address]:
        """Return every known owner once."""
        return list(dict.fromkeys(owner for owner in self._owners if owner is not None))

    def addresses(self) -> list[Address]:
        """Return every known server once: the owners, then those that the settings name."""
        return list(dict.fromkeys([*self.owners(), *self._seeds]))


class Route:
    """The way of one request: where it goes first, and where after an error."""

    def __init__(self, slots: SlotMap, slot: int) -> None:
        self._slots, self._slot = slots, slot
        self._until = now() + PATIENCE
        self.asking = False
        self.address = slots.owner(slot)

    def redirect(self, error: RedisError | OSError) -> float | None:
        """Return the pause before the next try, at `address`; None: ask the cluster who owns the slot."""
        if now() >= self._until:
            raise (
                TryAgainError(f"the slot {self._slot} is still moving")
                if isinstance(error, AskError)
                else error
            )
        if isinstance(error, AskError):  # MOVED is one as well
            self._follow(error)
            return 0.0
        if isinstance(error, MOVING):
            self.asking = False
            self.address = self._slots.owner(self._slot)
            return None if isinstance(error, ClusterDownError) else PAUSE
        if isinstance(error, UNREACHABLE):
            return None
        raise error

    def _follow(self, error: AskError) -> None:
        assert self.address is not None
        self.asking = not isinstance(error, MovedError)
        target = Address(error.host or self.address.host, error.port)
        if not self.asking:
            self._slots.move(self._slot, target)
        self.address = target

    def renewed(self, error: RedisError | OSError) -> float:
        """Return the pause once the map is fresh; a dead server without a successor is given up at once."""
        before, self.address = self.address, self._slots.owner(self._slot)
        self.asking = False
        if isinstance(error, MOVING) or self.address is None:
            return PAUSE
        if self.address == before:
            raise error
        return 0.0


class Nodes:
    """What threads and asyncio share of a cluster: its map, and how to connect to each server."""

    def __init__(
        self, seeds: Sequence[Address], options: Mapping[str, Any], alias: str, index: Index
    ) -> None:
        self.slots = SlotMap(seeds)
        self.alias = alias
        self.index = index
        self._options = dict(options)
        self._pools: dict[Address, ConnectionPool] = {}

    def pool(self, address: Address) -> ConnectionPool:
        """Return the pool of connections to the server at `address`."""
        if address not in self._pools:
            self._pools[address] = ConnectionPool(**{**self._options, **address._asdict()})
        return self._pools[address]

    def uncovered(self, slot: int) -> ClusterDownError:
        """Return the error for a slot that no server owns."""
        return ClusterDownError(f"no server of the cluster owns the slot {slot}")


class ClusterWire:
    """Requests of all threads to a cluster; the counterpart of `Wire`."""

    recovers = True

    def __init__(self, nodes: Nodes, copies: Copies | None) -> None:
        self._nodes = nodes
        self.index = nodes.index
        self.copies = copies
        self._servers: dict[Address, tuple[Wire, Ears]] = {}

    def call(self, request: Request | Command) -> Any:
        """See `Wire.call`."""
        return self._translate(lambda: self._follow(request))

    def acquire(self, request: Request, undo: Callable[[], Request]) -> Any:
        """See `Wire.acquire`."""
        try:
            return self._translate(lambda: self._follow(request, self.copies))
        except TooFewCopies:
            self._quietly(undo())
            raise

    def command(self, *parts: str | bytes | int) -> Any:
        """See `Wire.command`; the second part is the key. One without a key is answered by some server."""
        slot = key_slot(_bytes(parts[1])) if len(parts) > 1 else 0

        def send(wire: Wire, asking: bool) -> Any:
            return wire.converse(*parts)

        return self._translate(lambda: self._travel(slot, send))

    def call_many(self, requests: Sequence[Request | Command]) -> list[Any]:
        """See `Wire.call`: one pipeline for each server; what fails in it is sent once more, alone."""
        replies: dict[int, Any] = {}
        for wire, indices in self._by_server(requests).items():
            try:
                answers = wire.exchange_many([requests[i].in_cluster for i in indices])
            except UNREACHABLE:
                continue
            replies.update(zip(indices, answers, strict=True))
        return [
            self.call(request) if isinstance(reply := replies.get(i, MISSED), ResponseError) else reply
            for i, request in enumerate(requests)
        ]

    def servers(self) -> list[Wire]:
        """See `Calls.servers`."""
        if self._nodes.slots.owner(0) is None:
            self._translate(self._refresh)
        return [self._server(address)[0] for address in self._nodes.slots.owners()]

    def _by_server(self, requests: Sequence[Request | Command]) -> dict[Wire, list[int]]:
        groups: dict[Wire, list[int]] = {}
        for i, request in enumerate(requests):
            owner = self._nodes.slots.owner(key_slot(request.key))
            if owner is not None:
                groups.setdefault(self._server(owner)[0], []).append(i)
        return groups

    def slots(self, keys: Sequence[str]) -> list[int]:
        """See `Wire.slots`."""
        return [key_slot(key.encode()) for key in keys]

    def ears_of(self, key: str) -> Ears:
        """Return the ears on the server that owns `key`."""
        slot = key_slot(key.encode())
        owner = self._nodes.slots.owner(slot)
        if owner is None:
            self._translate(self._refresh)
            owner = self._nodes.slots.owner(slot)
        if owner is None:
            raise translated(self._nodes.uncovered(slot), self._nodes.alias)
        return self._server(owner)[1]

    def close(self) -> None:
        """Close the idle sockets."""
        for wire, ears in list(self._servers.values()):  # others may add one meanwhile
            ears.close()
            wire.close()

    def _follow(self, request: Request | Command, copies: Copies | None = None) -> Any:
        sharded = request.in_cluster
        return self._travel(
            key_slot(request.key), lambda wire, asking: wire.exchange(sharded, asking=asking, copies=copies)
        )

    def _travel(self, slot: int, send: Callable[[Wire, bool], Any]) -> Any:
        """Send to the slot's owner and follow the cluster until it answers or the patience ends."""
        route = Route(self._nodes.slots, slot)
        while True:
            try:
                if route.address is None:
                    raise self._nodes.uncovered(slot)
                return send(self._server(route.address)[0], route.asking)
            except (RedisError, OSError) as error:
                pause = route.redirect(error)
                if pause is None:
                    self._refresh(last=route.address)
                    pause = route.renewed(error)
            time.sleep(pause)

    def _refresh(self, last: Address | None = None) -> None:
        """Ask any server for the map, the one that just failed last of all."""
        problem: Exception | None = None
        for address in _ordered(self._nodes.slots.addresses(), last):
            try:
                reply = self._server(address)[0].converse("CLUSTER", "SLOTS")
                return self._nodes.slots.learn(reply, address)
            except (RedisError, OSError) as error:
                problem = error
        assert problem is not None
        raise problem

    def _server(self, address: Address) -> tuple[Wire, Ears]:
        if address not in self._servers:
            wire = Wire(self._nodes.pool(address), self._nodes.alias, index=self.index)
            self._servers.setdefault(address, (wire, Ears(wire, HEAR_BOTH)))
        return self._servers[address]

    def _translate(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except (RedisError, OSError) as error:
            raise translated(error, self._nodes.alias) from error

    def _quietly(self, request: Request) -> None:
        with contextlib.suppress(LockError):  # the watchdog tries again
            self.call(request)


def _ordered(addresses: Iterable[Address], last: Address | None) -> list[Address]:
    return sorted(addresses, key=lambda address: address == last)


def _bytes(part: str | bytes | int) -> bytes:
    return part if isinstance(part, bytes) else str(part).encode()


class ClusterRoom:
    """The sockets of one event loop to a cluster; the counterpart of `Room`."""

    recovers = True

    def __init__(self, nodes: Nodes, copies: Copies | None) -> None:
        self._nodes = nodes
        self.index = nodes.index
        self.copies = copies
        self._rooms: dict[Address, Room] = {}

    async def call(self, request: Request) -> Any:
        """See `Wire.call`."""
        return await self._follow(request)

    async def acquire(self, request: Request, undo: Callable[[], Request]) -> Any:
        """See `Wire.acquire`."""
        try:
            return await self._follow(request, self.copies)
        except TooFewCopies:
            with contextlib.suppress(LockError):  # the watchdog tries again
                await self.call(undo())
            raise

    async def command(self, *parts: str) -> Any:
        """See `Wire.command`; the second part is the key."""

        async def send(room: Room, asking: bool) -> Any:
            return await room.converse(*parts)

        return await self._travel(key_slot(parts[1].encode()), send)

    async def hub_of(self, key: str) -> Hub:
        """Return the hub on the server that owns `key`."""
        slot = key_slot(key.encode())
        owner = self._nodes.slots.owner(slot)
        if owner is None:
            await self._refresh()
            owner = self._nodes.slots.owner(slot)
        if owner is None:
            raise translated(self._nodes.uncovered(slot), self._nodes.alias)
        return self._room(owner).hub

    async def close(self) -> None:
        """Close every socket."""
        for room in list(self._rooms.values()):  # others may add one meanwhile
            await room.close()

    async def _follow(self, request: Request, copies: Copies | None = None) -> Any:
        sharded = request.in_cluster

        async def send(room: Room, asking: bool) -> Any:
            return await room.exchange(sharded, asking=asking, copies=copies)

        return await self._travel(key_slot(request.key), send)

    async def _travel(self, slot: int, send: Callable[[Room, bool], Any]) -> Any:
        """See `ClusterWire._travel`."""
        try:
            return await self._follow_route(Route(self._nodes.slots, slot), slot, send)
        except (RedisError, OSError) as error:
            raise translated(error, self._nodes.alias) from error

    async def _follow_route(self, route: Route, slot: int, send: Callable[[Room, bool], Any]) -> Any:
        while True:
            try:
                if route.address is None:
                    raise self._nodes.uncovered(slot)
                return await send(self._room(route.address), route.asking)
            except (RedisError, OSError) as error:
                pause = route.redirect(error)
                if pause is None:
                    await self._refresh(last=route.address)
                    pause = route.renewed(error)
            await asyncio.sleep(pause)

    async def _refresh(self, last: Address | None = None) -> None:
        problem: Exception | None = None
        for address in _ordered(self._nodes.slots.addresses(), last):
            try:
                reply = await self._room(address).converse("CLUSTER", "SLOTS")
                return self._nodes.slots.learn(reply, address)
            except (RedisError, OSError) as error:
                problem = error
        assert problem is not None
        raise problem

    def _room(self, address: Address) -> Room:
        if address not in self._rooms:
            connect = connections_like(self._nodes.pool(address))
            self._rooms[address] = Room(connect, self._nodes.alias, index=self.index, verbs=HEAR_BOTH)
        return self._rooms[address]
