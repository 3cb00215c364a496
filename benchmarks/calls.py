"""How many Python functions one uncontended acquisition and release call: a figure that no load disturbs."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    calls = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    for _ in range(PAIRS):
        pair(f"calls:{next(NUMBERS)}")
    names = [f"calls:{next(NUMBERS)}" for _ in range(PAIRS)]
    sys.setprofile(profile)
    try:
        for name in names:
            pair(name)
    finally:
        sys.setprofile(None)
    return calls / PAIRS - 1  # the pair's own


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
