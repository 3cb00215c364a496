"""The local clock that leases are counted by: it never jumps, and it goes on while the machine sleeps."""

from __future__ import annotations

import time
from functools import partial

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_read = partial(time.clock_gettime, _CLOCK)
"""The clock itself. Who replaces it turns the clock of all of `locking`, however `now` was imported."""


def now() -> float:
    """Return seconds on the machine's boot clock; comparable between processes, meaningless as a date.

    CLOCK_MONOTONIC stands still while a laptop or a virtual machine is suspended, Redis' clock does not, so a
    lease counted by it could look alive after its end. CLOCK_BOOTTIME exists on Linux only; elsewhere
    CLOCK_MONOTONIC is the best there is.
    """
    return _read()
