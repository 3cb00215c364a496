"""Counts and times of the last hour, of all processes together, by alias.

An observer takes down each acquisition and each end; `locking.inspection.heartbeat` takes them away every two
seconds and adds them up in the backend, minute by minute. Times are sorted into buckets, four per octave, so
a percentile is right to about a tenth.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from locking.signals import Measure, Observer
from locking.utils.background import after_fork

PER_OCTAVE: Final = 4

SAMPLES: Final = deque[Measure](maxlen=100_000)
"""What has happened since the last count; when there is more, the oldest is missing in the statistics."""

after_fork(SAMPLES.clear)


class Sampler(Observer):
    """Takes every measure down, at the price of an append."""

    measured = SAMPLES.append  # type: ignore[assignment]


counter: Final = Sampler()


def bucket(seconds: float) -> int:
    """Return the number of the bucket that a time falls into."""
    return round(PER_OCTAVE * math.log2(max(seconds * 1_000_000, 1.0)))


def middle(number: int) -> float:
    """Return the time in the middle of a bucket, in seconds."""
    return float(2 ** (number / PER_OCTAVE)) / 1_000_000


def take_counters() -> dict[str, Counter[str]]:
    """Return the sums of all notes so far, by alias, and forget the notes."""
    sums: dict[str, Counter[str]] = {}
    with suppress(IndexError):  # another thread may take some, too
        for _ in range(len(SAMPLES)):
            alias, what, seconds = SAMPLES.popleft()
            counter = sums.setdefault(alias, Counter())
            counter[what] += 1
            if what in ("acquired", "ended"):
                counter[f"{what}:{bucket(seconds)}"] += 1
    return sums


@dataclass(frozen=True, slots=True)
class Stats:
    """The last hour of one alias, of all processes together.

    Attributes:
        acquired: how often a lock was granted.
        refused: how often it was not, in the time that the caller would wait.
        deadlocks: how many waiters gave up because locks waited for each other in a circle.
        lost: leases that ended before their holder was done.
        wait_p95: seconds within which 95 of 100 acquisitions were granted; None without any.
        hold_p95: seconds after which 95 of 100 holds had been released; None without any.
    """

    acquired: int
    refused: int
    deadlocks: int
    lost: int
    wait_p95: float | None
    hold_p95: float | None


def stats_of(sums: Mapping[str, int]) -> Stats:
    """Return the figures that these sums are."""
    return Stats(
        acquired=sums.get("acquired", 0),
        refused=sums.get("refused", 0),
        deadlocks=sums.get("deadlock", 0),
        lost=sums.get("lost", 0),
        wait_p95=_percentile(sums, "acquired", 0.95),
        hold_p95=_percentile(sums, "ended", 0.95),
    )


def _percentile(sums: Mapping[str, int], what: str, share: float) -> float | None:
    buckets = sorted((int(name.split(":")[1]), n) for name, n in sums.items() if name.startswith(f"{what}:"))
    left = share * sum(number for _, number in buckets)
    for number, times in buckets:
        left -= times
        if left <= 0:
            return middle(number)
    return None
