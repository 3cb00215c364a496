"""Ten thousand leases held and kept alive: what the watchdog costs.

They are taken evenly over one renewal period, as in a process that has been at work for a while. Leases taken
all at once fall due all at once, which is the easy case.
"""

from __future__ import annotations

import threading
import time
from importlib import import_module
from typing import Any

from benchmarks.contended import SPAWN
from benchmarks.django_setup import configure_django
from benchmarks.server import Server
from benchmarks.uncontended import Record

LEASES = 10_000
WATCHDOG = "locking-renew"  # so the names of its threads begin

PERIOD = 3.0
"""Seconds between two renewals of a lease of the watchdog's 10."""


def measure(server: Server, seconds: float, leases: int = LEASES) -> Record:
    """Return what a process of its own spends while it only holds the leases, for `seconds`."""
    server.clear()
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_hold, args=(server.url, leases, seconds, there), daemon=True)
    process.start()
    try:
        here.recv()  # all are taken
        before = server.work()
        figures: Record = here.recv()
        work = server.work().since(before)
    finally:
        process.kill()
        process.join()
    return {
        **figures,
        "redis_cpu_percent": work.cpu / seconds * 100,
        "requests_per_second": work.requests / seconds,
    }


def _plan(leases: int) -> list[tuple[int, float]]:
    begun = time.monotonic()
    return [(number, begun + number * PERIOD / leases) for number in range(leases)]


def _take(lock: Any, start: float) -> Any:
    time.sleep(max(0.0, start - time.monotonic()))
    return lock.acquire()


def _hold(url: str, leases: int, seconds: float, pipe: Any) -> None:
    configure_django(url)
    get_lock = import_module("locking").get_lock
    lost: list[object] = []
    held = [_take(get_lock(f"held:{number}", on_lost=lost.append), start) for number, start in _plan(leases)]
    pipe.send("held")
    cpu, begun = time.process_time(), time.monotonic()
    time.sleep(seconds)
    spent, passed = time.process_time() - cpu, time.monotonic() - begun
    names = [thread.name for thread in threading.enumerate()]
    pipe.send(
        {
            "leases": leases,
            "seconds": passed,
            "cpu_percent": spent / passed * 100,
            "threads": sum(name.startswith(WATCHDOG) for name in names),
            "others": ", ".join(name for name in names if not name.startswith(("MainThread", WATCHDOG))),
            "lost": len(lost) + sum(lease.remaining() == 0.0 for lease in held),
            "shortest_left_s": min(lease.remaining() for lease in held),
        }
    )
