"""`python -m benchmarks.killed`: how long the next one waits for the lock of a process that was killed.

Private servers as the shop has them, and a lock that is guarded as its are. Printed: milliseconds from
SIGKILL to the waiter's grant.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Final

import django

from benchmarks.checkout.testbed import open_servers
from tests.load.figures import percentile

LEASE: Final = 30.0
QUEUEING: Final = 0.2
"""Seconds in which a waiter surely stands in the queue."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every engine and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.killed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="kills of each engine (default 30)")
    parser.add_argument("--only", nargs="+", default=["default", "database"], help="aliases of LOCKING")
    options = parser.parse_args(arguments)
    with open_servers() as servers:
        os.environ.update(servers.environment)
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        django.setup()
        for alias in options.only:
            delays = sorted(_kill_one(alias) for _ in range(options.rounds))
            delay = ", ".join(f"p{percent} {percentile(delays, percent):.0f}" for percent in (50, 95))
            print(f"{alias}: {delay}, slowest {delays[-1]:.0f} ms of {options.rounds} kills", flush=True)


def _kill_one(alias: str) -> float:
    """Return the milliseconds from the death of a holder to the next holder, who stood in the queue."""
    from locking import get_lock
    from locking.testing.contract.processes import child

    def hold(pipe: Connection) -> None:
        lease = get_lock("killed", ttl=LEASE, backend=alias, guarded=True).acquire()
        pipe.send("held")
        pipe.recv()
        lease.release()

    def take() -> float:
        with get_lock("killed", ttl=LEASE, wait=2 * LEASE, backend=alias):
            return time.monotonic()

    with child(hold) as victim, ThreadPoolExecutor(1) as waiter:
        victim.report()
        taken = waiter.submit(take)
        time.sleep(QUEUEING)
        killed_at = time.monotonic()
        victim.process.kill()
        return (taken.result() - killed_at) * 1000


if __name__ == "__main__":
    main()
