"""How long locks are usually held: what a refusal estimates its `Retry-After` by."""

from __future__ import annotations

from typing import Final

from locking.utils.background import after_fork

WEIGHT: Final = 0.2
"""Share of the latest hold in the moving average: about the last ten holds count."""

MOST_GROUPS: Final = 1_000
"""Templates of which the usual time is kept; further ones count for their alias."""

_USUAL: Final[dict[tuple[str, str | None], float]] = {}
after_fork(_USUAL.clear)


def note_hold(alias: str, template: str | None, seconds: float) -> None:
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
