"""Medians with their spread, and fairness."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from typing import NamedTuple


class Spread(NamedTuple):
    """A median and the quartiles around it; half of all rounds lie between those."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}–{self.high:.2f}]"


def spread(figures: Sequence[float]) -> Spread:
    """Return median and quartiles of one figure or more."""
    if len(figures) == 1:
        return Spread(figures[0], figures[0], figures[0])
    low, _, high = quantiles(figures, n=4, method="inclusive")
    return Spread(low, median(figures), high)


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 when all got the same, 1/n when one of n got everything.

    Example:
        >>> jain([5, 5]), jain([10, 0])
        (1.0, 0.5)
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
