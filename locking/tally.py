"""What this process has done, noted at the cost of one append: counts and times for the last hour's figures.

`locking.presence` takes the notes away every two seconds and adds them up in the backend, minute by minute.
Times are sorted into buckets, four to an octave, so a percentile of all processes together is right to about
a tenth.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from locking.background import after_fork

What = Literal["acquired", "refused", "lost", "ended"]

MOST: Final = 100_000
"""Notes kept until they are taken away; the oldest go when there are more, and are missing in the figures."""

NOTES: Final[deque[tuple[str, What, float]]] = deque(maxlen=MOST)
"""Alias, what happened, and its seconds: of waiting where a lock was acquired, of holding where it ended."""

after_fork(NOTES.clear)

PER_OCTAVE: Final = 4


def bucket(seconds: float) -> int:
    """Return the number of the bucket that a time falls into."""
    return round(PER_OCTAVE * math.log2(max(seconds * 1_000_000, 1.0)))


def middle(number: int) -> float:
    """Return the time in the middle of a bucket, in seconds."""
    return float(2 ** (number / PER_OCTAVE)) / 1_000_000


def take_away() -> dict[str, Counter[str]]:
    """Return the sums of all notes so far, by alias, and forget the notes."""
    sums: dict[str, Counter[str]] = {}
    for _ in range(len(NOTES)):
        alias, what, seconds = NOTES.popleft()
        counter = sums.setdefault(alias, Counter())
        counter[what] += 1
        if what in ("acquired", "ended"):
            counter[f"{what}:{bucket(seconds)}"] += 1
    return sums


@dataclass(frozen=True, slots=True)
class Figures:
    """The last hour of one alias, of all processes together.

    Attributes:
        acquired: how often a lock was granted.
        refused: how often it was not, in the time that the caller would wait.
        lost: leases that ended before their holder was done.
        wait_p95: seconds within which 95 of 100 acquisitions were granted; None without any.
        hold_p95: seconds after which 95 of 100 holds had been released; None without any.
    """

    acquired: int
    refused: int
    lost: int
    wait_p95: float | None
    hold_p95: float | None


def read(sums: Mapping[str, int]) -> Figures:
    """Return the figures that these sums are."""
    return Figures(
        acquired=sums.get("acquired", 0),
        refused=sums.get("refused", 0),
        lost=sums.get("lost", 0),
        wait_p95=_percentile(sums, "acquired", 0.95),
        hold_p95=_percentile(sums, "ended", 0.95),
    )


def _percentile(sums: Mapping[str, int], what: What, share: float) -> float | None:
    buckets = sorted((int(name.split(":")[1]), n) for name, n in sums.items() if name.startswith(f"{what}:"))
    left = share * sum(number for _, number in buckets)
    for number, times in buckets:
        left -= times
        if left <= 0:
            return middle(number)
    return None
