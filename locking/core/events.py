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


# --- how long locks are usually held ---------------------------------------------------------------------

WEIGHT: Final = 0.2
"""Share of the latest hold in the moving average: about the last ten holds count."""

MOST_GROUPS: Final = 1_000
"""Templates of which the usual time is kept; further ones count for their alias."""

_USUAL: Final[dict[tuple[str, str | None], float]] = {}
after_fork(_USUAL.clear)


def held(alias: str, template: str | None, seconds: float) -> None:
    """Note that a lock was held for so long: from its grant until others could have it."""
    group = (alias, template)
    before = _USUAL.get(group)
    if before is None:
        group = group if len(_USUAL) < MOST_GROUPS else (alias, None)
        before = _USUAL.get(group, seconds)
    _USUAL[group] = before + WEIGHT * (seconds - before)


def usual_hold(alias: str, template: str | None) -> float | None:
    """Return the seconds for which locks of this template were held lately in this process, if any were."""
    return _USUAL.get((alias, template))
