"""What happened to the locks of each alias, minute by minute, over all processes together.

For the line of the last hour in the admin; Prometheus has times and names. `locking.inspection.heartbeat`
takes down what happens, and adds it up in the backend every two seconds.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from contextlib import suppress
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import Counters
from locking.signals import Count
from locking.utils.background import after_fork

SAMPLES: Final = deque[tuple[str, Count]](maxlen=100_000)
"""What has happened since the last count; when there is more, the oldest is missing in the statistics."""

after_fork(SAMPLES.clear)


def take_counters() -> dict[str, Counter[str]]:
    """Return what happened how often, by alias, and clear the samples."""
    sums: dict[str, Counter[str]] = {}
    with suppress(IndexError):  # another thread may take some, too
        for _ in range(len(SAMPLES)):
            alias, what = SAMPLES.popleft()
            sums.setdefault(alias, Counter())[what] += 1
    return sums


def last_hour(backend: BaseLockBackend) -> list[dict[str, int]]:
    """Return what happened in each minute of the last hour (acquired, refused, deadlock, lost, ended), the
    oldest first; empty where the backend keeps no statistics.
    """
    if not isinstance(backend, Counters):
        return []
    minute = int(time.time() // 60)  # noqa: TID251 shown
    return backend.figures_by_minute(range(minute - 59, minute + 1))
