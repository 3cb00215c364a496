"""From the records of all rounds to the figures of the tables: the ratio in each round, then its median.

A round's peers run within seconds of one another, so that what else the machine does hits all of them; a
ratio of two medians from different minutes would not have that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.stats import Spread, spread
from benchmarks.uncontended import Record


class Table:
    """The records of one kind of measurement.

    Args:
        records: one for each round, peer and case.
        case: the field that tells the cases apart ("key", "shape" or "kind").
    """

    def __init__(self, records: Sequence[Record], case: str) -> None:
        self._records = records
        self._case = case

    def peers(self) -> list[str]:
        """Return who was measured, in no order."""
        return list(dict.fromkeys(str(record["peer"]) for record in self._records))

    def values(self, peer: str, case: str, figure: str) -> list[float]:
        """Return a figure of every round that has it."""
        return list(self._by_round(peer, case, figure).values())

    def figure(self, peer: str, case: str, figure: str) -> Spread | None:
        """Return the median of a figure over the rounds, with its quartiles."""
        values = self.values(peer, case, figure)
        return spread(values) if values else None

    def ratio(
        self,
        peer: str,
        case: str,
        figure: str,
        base: str,
        *,
        more_is_better: bool = True,
        base_case: str | None = None,
    ) -> Spread | None:
        """Return the ratio to `base` in the same round, and case unless another is named; turned over where
        less is better.
        """
        ours, theirs = self._by_round(peer, case, figure), self._by_round(base, base_case or case, figure)
        pairs = ((ours[key], theirs[key]) for key in ours if key in theirs)
        ratios = list(_ratios(pairs if more_is_better else ((theirs_, ours_) for ours_, theirs_ in pairs)))
        return spread(ratios) if ratios else None

    def total(self, peer: str, case: str, figure: str) -> float:
        """Return the sum of a figure over the rounds."""
        return sum(self.values(peer, case, figure))

    def _by_round(self, peer: str, case: str, figure: str) -> dict[Any, float]:
        return {
            record["round"]: float(record[figure])
            for record in self._records
            if record["peer"] == peer and record[self._case] == case and figure in record
        }


def _ratios(pairs: Iterable[tuple[float, float]]) -> Iterator[float]:
    return (above / below for above, below in pairs if below)
