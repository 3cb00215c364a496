"""From visits to the lines of plots: answers and latencies of each moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.load.buyers import UNKNOWN, Visit

KINDS = {"sold": (201,), "refused": (409,), "busy": (503,), "unknown": (UNKNOWN,)}
PERCENTS = (50, 95, 99)


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile.

    Example:
        >>> percentile([1.0, 2.0, 3.0, 4.0], 50)
        2.0
    """
    rank = -(-len(sorted_values) * percent // 100)
    return sorted_values[max(0, int(rank) - 1)]


def summary(visits: Sequence[Visit], seconds: float) -> dict[str, Any]:
    """Return counts by kind, the share of requests whose answer was definite (an order, or sold out), orders
    per second, and latencies in ms counted from the scheduled arrival.
    """
    latencies = sorted(visit.latency for visit in visits)
    counts = {kind: sum(visit.status in statuses for visit in visits) for kind, statuses in KINDS.items()}
    return {
        **counts,
        "definite_percent": round(100 * (counts["sold"] + counts["refused"]) / _requests(visits), 1),
        "orders_per_second": round(counts["sold"] / seconds, 1),
        **{f"p{percent}_ms": round(percentile(latencies, percent) * 1000, 1) for percent in PERCENTS},
        "slowest_ms": round(latencies[-1] * 1000, 1),
    }


def _requests(visits: Sequence[Visit]) -> int:
    return sum(visit.requests for visit in visits)


def over_time(visits: Sequence[Visit], seconds: float, step: float = 0.25) -> dict[str, list[float | None]]:
    """Return lines over time: answers per second by kind when they came, latencies by scheduled arrival.

    Args:
        visits: all of them.
        seconds: of the schedule; answers may come later.
        step: seconds of one point.
    """
    end = max([seconds, *(visit.at + visit.latency for visit in visits)])
    bins = int(end / step) + 1
    lines: dict[str, list[float | None]] = {"at": [round((number + 0.5) * step, 3) for number in range(bins)]}
    for kind, statuses in KINDS.items():
        counts = [0] * bins
        for visit in visits:
            if visit.status in statuses:
                counts[int((visit.at + visit.latency) / step)] += 1
        lines[kind] = [count / step for count in counts]
    waits: list[list[float]] = [[] for _ in range(bins)]
    for visit in visits:
        waits[int(visit.at / step)].append(visit.latency * 1000)
    for percent in PERCENTS:
        lines[f"p{percent}"] = [
            round(percentile(sorted(wait), percent), 2) if wait else None for wait in waits
        ]
    return lines
