"""Buyers that really die: forked from one warm parent, they end themselves by SIGKILL at a checkpoint.

The parent (`python -m tests.orders.mortal`) loads Django once and then only forks: a death costs some
twenty milliseconds, not the second of a fresh interpreter. It never opens a connection itself, so that no
child inherits one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LEASE = 3.0
"""Seconds after which a dead holder's lock ends: longer than a busy machine lets a living one pause."""


class Mortals:
    """The warm parent as a test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.orders.mortal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        )

    def buy(self, strategy: str, sku: str, quantity: int, stop: str, nth: int = 1) -> str:
        """Let a new process buy and kill itself when it comes to `stop` for the `nth` time.

        Returns:
            `killed`, or how the sale ended if it never came there.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        alarm = threading.Timer(30, self._process.kill)
        alarm.start()
        try:
            print(json.dumps([strategy, sku, quantity, stop, nth]), file=self._process.stdin, flush=True)
            return self._process.stdout.readline().strip()
        finally:
            alarm.cancel()

    def close(self) -> None:
        """End the parent; it has no child left."""
        self._process.communicate(timeout=60)


@contextmanager
def mortals() -> Iterator[Mortals]:
    """Give a warm parent for the block."""
    parent = Mortals()
    try:
        yield parent
    finally:
        parent.close()


def buy_and_die(strategy: str, sku: str, quantity: int, stop: str, nth: int) -> str:
    """Buy in this process, and end it without a word at the checkpoint."""
    from inventory.hooks import installed
    from orders.selling.checkout import checkout

    seen = []

    def hook(name: str, /, **facts: object) -> None:
        seen.append(name)
        if name == stop and seen.count(stop) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    with installed(hook):
        try:
            checkout([(sku, quantity)], strategy)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "sold"


def shorten_leases() -> None:
    """Let what a dead holder leaves end soon: it is the lease that frees it, and 30 s of it prove no more."""
    from django.conf import settings

    settings.LOCKING = {alias: {**entry, "TTL": LEASE} for alias, entry in settings.LOCKING.items()}


def serve() -> None:
    """Fork a buyer for each line that comes in, and say how it ended."""
    import django

    django.setup()
    shorten_leases()

    for line in sys.stdin:
        child = os.fork()
        if not child:
            print(buy_and_die(*json.loads(line)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            print("killed", flush=True)


def database_is_idle() -> bool:
    """Whether PostgreSQL has noticed every death and rolled it back."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
        return bool(cursor.fetchone() == (0,))


if __name__ == "__main__":
    serve()
