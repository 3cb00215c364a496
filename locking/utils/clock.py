"""The local clock that leases are counted by, and the pauses between attempts.

The clock never jumps, and it goes on while the machine sleeps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial


def _clock() -> Callable[[], float]:
    if not hasattr(time, "clock_gettime"):
        return time.monotonic  # Windows: it goes on in standby
    return partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_read = _clock()
"""The clock itself. Replacing it turns the clock of all of `locking`, however `now` was imported."""


def now() -> float:
    """Return seconds on the machine's boot clock; comparable between processes, meaningless as a date."""
    # CLOCK_MONOTONIC stands still while a laptop or a virtual machine is suspended, Redis' clock does not: a
    # lease counted by it could look alive after its end. CLOCK_BOOTTIME exists on Linux only.
    return _read()


def exponential(attempt: int, *, first: float = 0.005, cap: float = 0.25) -> float:
    """Return the seconds before attempt number `attempt` (from 0): doubled each time, up to `cap`."""
    return float(min(cap, first * 2 ** min(attempt, 30)))


def jittered(attempt: int, *, first: float = 0.005, cap: float = 0.25) -> float:
    """Return an exponential pause with *equal jitter*: half of it fixed, half random."""
    # Without the random half, waiters that were refused together would come back together. Source: M.
    # Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    pause = exponential(attempt, first=first, cap=cap)
    return pause / 2 + random.uniform(0, pause / 2)  # noqa: S311 - spreads load, hides nothing
