"""How many Python functions one uncontended acquisition and release calls: a figure that no load disturbs."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from types import FrameType
from typing import Any

from benchmarks.django_setup import configure_django
from benchmarks.peers import plain_client
from benchmarks.server import Server

PAIRS = 50
NUMBERS = count()


def counted(pair: Callable[[str], object]) -> float:
    """Return the Python calls of one pair, each on a key of its own, once everything is connected."""
    for name in _names():
        pair(name)
    with _counting() as calls:
        for name in _names():
            pair(name)
    return len(calls) / PAIRS - 1  # the pair's own


async def acounted(pair: Callable[[str], Awaitable[object]]) -> float:
    """`counted` for asyncio; the event loop's own calls count."""
    for name in _names():
        await pair(name)
    with _counting() as calls:
        for name in _names():
            await pair(name)
    return len(calls) / PAIRS - 1


def _names() -> list[str]:
    return [f"calls:{next(NUMBERS)}" for _ in range(PAIRS)]


@contextmanager
def _counting() -> Iterator[list[str]]:
    """Give a list with an item per Python call in this thread until the end of the block."""
    calls: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def measure(server: Server) -> dict[str, float]:
    """Return the calls of a pair, with and without the watchdog, and of redis-py's own lock beside them."""
    configure_django(server.url)
    get_lock, client = import_module("locking").get_lock, plain_client(server.url)

    def ours(name: str) -> None:
        with get_lock(name, ttl=30.0):
            pass

    def watched(name: str) -> None:
        with get_lock(name):
            pass

    def theirs(name: str) -> None:
        with client.lock(name, timeout=30.0):
            pass

    return {"holdfast": counted(ours), "holdfast, watchdog": counted(watched), "redis-py": counted(theirs)}
