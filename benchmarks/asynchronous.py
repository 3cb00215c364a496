"""The same pairs as `uncontended`, in one asyncio task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib import import_module

from redis.asyncio import Redis

from benchmarks.django_setup import configure_django
from benchmarks.peers import COMPARE_AND_DELETE, FLOOR, new_owner
from benchmarks.server import Server, Work
from benchmarks.uncontended import KINDS, LEASE, WARM_UP, Record, names_of, record, slices

Pair = Callable[[str], Awaitable[None]]


async def floor(url: str) -> Pair:
    """SET NX PX and a compare-and-delete in plain redis-py."""
    client = Redis.from_url(url)
    digest = str(await client.script_load(COMPARE_AND_DELETE))

    async def pair(name: str) -> None:
        owner = new_owner()
        await client.set(name, owner, nx=True, px=int(LEASE * 1000))
        await client.evalsha(digest, 1, name, owner)

    return pair


async def redis_py(url: str) -> Pair:
    """`redis.asyncio.lock.Lock`."""
    client = Redis.from_url(url)

    async def pair(name: str) -> None:
        async with client.lock(name, timeout=LEASE):
            pass

    return pair


def _holdfast(url: str, ttl: float | None) -> Pair:
    configure_django(url)
    get_lock = import_module("locking").get_lock

    async def pair(name: str) -> None:
        async with get_lock(name, ttl=ttl):
            pass

    return pair


async def holdfast(url: str) -> Pair:
    """`async with get_lock(ttl=…)`."""
    return _holdfast(url, LEASE)


async def holdfast_watched(url: str) -> Pair:
    """`async with get_lock()`."""
    return _holdfast(url, None)


PAIRS: dict[str, Callable[[str], Awaitable[Pair]]] = {
    FLOOR: floor,
    "redis-py": redis_py,
    "holdfast": holdfast,
    "holdfast, watchdog": holdfast_watched,
}


def measure(server: Server, rounds: int, pairs: int, progress: Callable[[str], None]) -> list[Record]:
    """Return one record for each round, peer and kind of key."""
    return asyncio.run(_measure(server, rounds, pairs, progress))


async def _measure(server: Server, rounds: int, pairs: int, progress: Callable[[str], None]) -> list[Record]:
    opened = {name: await open_pair(server.url) for name, open_pair in PAIRS.items()}
    for pair in opened.values():
        await _time_pairs(pair, [f"warm:{number}" for number in range(WARM_UP)])
    records: list[Record] = []
    for number in range(rounds):
        progress(f"asyncio, round {number + 1} of {rounds}")
        counted = {
            (name, kind): await _count(server, opened[name], kind, pairs) for name in opened for kind in KINDS
        }
        timed: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in counted}
        for name, kind, names in slices(server, list(opened), number, pairs):
            timed[name, kind].append(await _time_pairs(opened[name], names))
        records += [record(number, key, timed[key], counted[key], pairs) for key in counted]
    return records


async def _count(server: Server, pair: Pair, kind: str, pairs: int) -> Work:
    server.clear()
    before = server.work()
    await _time_pairs(pair, names_of(kind, pairs, "counted"))
    return server.work().since(before)


async def _time_pairs(pair: Pair, names: list[str]) -> tuple[float, float]:
    cpu, begun = time.process_time(), time.perf_counter()
    for name in names:
        await pair(name)
    return time.perf_counter() - begun, time.process_time() - cpu
