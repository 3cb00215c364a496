"""Cores that don't fall asleep between a request and its reply.

On an idle virtual machine a core that waits for 10 µs is halted, and waking it takes 50 µs: more than what is
compared here, and only sometimes. Loops of the lowest scheduling class keep the cores awake; they give way to
everything else at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LOOP = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile os.getppid() == {}: pass"


@contextmanager
def cores_awake() -> Iterator[None]:
    """Keep every core awake within the block, where the system has such a scheduling class."""
    count = (os.cpu_count() or 1) if hasattr(os, "SCHED_IDLE") else 0
    loops = [subprocess.Popen([sys.executable, "-c", LOOP.format(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
