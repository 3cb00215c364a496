"""The process of one run: `python -m orders.lab.pages.runner ID`, whose input is a pipe from the web server.

It ends when it is done, when its time is up, when a visitor stops it, and when its server is gone.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orders.lab.pages.journal import Journal

LOOK_EVERY = 0.2
LEAVE_WITHIN = 25.0


class Guard:
    """A thread that ends this process in order when it has no reason to go on."""

    def __init__(self, seconds: float, journal: Journal | None) -> None:
        self.why = "stopped"
        self._deadline = time.monotonic() + seconds
        self._journal = journal
        self._over = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch inside the block."""
        thread = threading.Thread(target=self._watch, daemon=True, name="guard")
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        from django.db import connection

        while not self._over.wait(LOOK_EVERY):
            reason = self._reason()
            if reason:
                self.why = reason
                os.kill(os.getpid(), signal.SIGTERM)
                self._insist()
                break
        connection.close()

    def _reason(self) -> str:
        if _ended(sys.stdin.fileno()):
            return "left"
        if time.monotonic() > self._deadline:
            return "late"
        return "stopped" if self._journal and "stop" in self._journal.hear() else ""

    def _insist(self) -> None:
        """Kill what doesn't stop by itself; the next race cleans up."""
        if not self._over.wait(LEAVE_WITHIN):
            os._exit(1)


def _ended(pipe: int) -> bool:
    """Return whether the other end of our input is closed; nothing is ever written to it."""
    return bool(select.select([pipe], [], [], 0)[0])


def main() -> None:
    """Load Django, run, and say how it ended."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    import django

    django.setup()
    from locking.inspection.heartbeat import reporter

    reporter.counts = False
    from orders.lab.pages.run_process import run

    run(sys.argv[1])


if __name__ == "__main__":
    main()
