"""The local clock that leases are counted by: it never jumps, and it goes on while the machine sleeps."""

from __future__ import annotations

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
    """Return seconds on the machine's boot clock; comparable between processes, meaningless as a date.

    CLOCK_MONOTONIC stands still while a laptop or a virtual machine is suspended, Redis' clock does not, so a
    lease counted by it could look alive after its end. CLOCK_BOOTTIME exists on Linux only; elsewhere
    CLOCK_MONOTONIC is the best there is.
    """
    return _read()
