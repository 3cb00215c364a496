"""Events of the core, each at the price of an append: statistics and heartbeats listen here.

The core imports none of its observers. `SAMPLES` is drained by `locking.inspection.stats`; what is registered
with `on_acquired` runs after each acquisition, so it must return at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from locking.utils.background import after_fork

What = Literal["acquired", "refused", "deadlock", "lost", "ended"]

MOST: Final = 100_000
"""Samples kept until they are taken away; when there are more, the oldest are missing in the statistics."""

SAMPLES: Final[deque[tuple[str, What, float]]] = deque(maxlen=MOST)
"""Alias, what happened, and its seconds: of waiting where a lock was acquired, of holding where it ended."""

after_fork(SAMPLES.clear)

_OBSERVERS: Final[list[Callable[[], object]]] = []


def on_acquired(observer: Callable[[], object]) -> None:
    """Call `observer` after each acquisition of this process."""
    _OBSERVERS.append(observer)


def acquired(alias: str, waited: float) -> None:
    """Note that a lock was acquired after `waited` seconds."""
    SAMPLES.append((alias, "acquired", waited))
    for observer in _OBSERVERS:
        observer()
