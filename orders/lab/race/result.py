"""The figures of one race and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orders.lab.race.audit import Sample, Totals, disagreements
from orders.lab.race.messages import Outcome
from orders.lab.race.plan import Plan, Variant


@dataclass(frozen=True)
class Result:
    """One line of the table: what was there, what was sold, what buyers waited."""

    name: str
    strategy: str
    sound: bool  # what the strategy promises there
    processes: int
    initial: int
    due: int  # min(initial, demand)
    sold: int
    left: int  # on the product page at the end
    refused: int
    errors: int  # buyers without an answer
    problems: tuple[str, ...]  # why, the commonest first
    disagreements: tuple[str, ...]  # rows that contradict one another or the answers
    retries: int
    queries: int  # SQL statements of one sale, the median
    tries: int
    seconds: float  # from the start to the last sale, or to the last answer when nothing was sold
    p50_ms: float  # what buyers waited for their order, retries included; without refusals
    p95_ms: float
    p99_ms: float
    evidence: str = ""
    samples: tuple[Sample, ...] = field(default=(), repr=False)
    deadlocks: int = 0
    outcomes: tuple[Outcome, ...] = field(default=(), repr=False)

    @property
    def oversold(self) -> int:
        """Pieces sold beyond those that there were."""
        return max(0, self.sold - self.initial)

    @property
    def unaccounted(self) -> int:
        """initial - sold - left: zero when the stock and the orders tell the same story."""
        return self.initial - self.sold - self.left

    @property
    def exact(self) -> bool:
        """Sold what was due, all pieces accounted for, all rows agreed, every buyer had an answer."""
        amiss = self.unaccounted or self.errors or self.disagreements or self.deadlocks
        return self.sold == self.due and not amiss

    @property
    def shown_broken(self) -> bool:
        """More was sold than there was, pieces are unaccounted for, or buyers waited in a circle.

        Errors alone prove nothing.
        """
        return bool(self.oversold or self.unaccounted or self.deadlocks)

    @property
    def kept(self) -> bool:
        """It did as its label says: a sound one was exact, a broken one was seen to be broken."""
        return self.exact if self.sound else self.shown_broken

    @property
    def orders_per_second(self) -> float:
        """Pieces sold a second, from the start to the last sale."""
        return self.sold / self.seconds if self.sold and self.seconds else 0.0

    @property
    def verdict(self) -> str:
        """The last column of the table."""
        if self.sound:
            return "exact" if self.exact else "NOT EXACT: " + "; ".join(self.faults())
        if not self.shown_broken:
            return f"NOT SHOWN broken in {self.tries} {'try' if self.tries == 1 else 'tries'}"
        return "broken: " + ", ".join(self.faults()[:2])

    def faults(self) -> list[str]:
        """Everything that keeps the race from being exact, in words."""
        found = [f"{self.oversold} oversold"] if self.oversold else []
        if self.sold < self.due:
            found.append(f"{self.due - self.sold} undersold")
        if self.unaccounted:
            found.append(f"{self.unaccounted} unaccounted for")
        if self.deadlocks:
            found.append(f"{self.deadlocks} {'deadlock' if self.deadlocks == 1 else 'deadlocks'}")
        found += self.disagreements
        if self.errors:
            found.append(f"{self.errors} errors ({self.problems[0]})")
        return found

    def as_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON; the samples and the outcomes are left out."""
        figures = asdict(replace(self, samples=(), outcomes=()))
        del figures["samples"], figures["outcomes"]
        names = ("oversold", "unaccounted", "exact", "shown_broken", "kept", "orders_per_second", "verdict")
        return figures | {name: _rounded(getattr(self, name)) for name in names}


def judge(
    plan: Plan,
    variant: Variant,
    totals: Totals,
    outcomes: Sequence[Outcome],
    *,
    tries: int,
    evidence: str,
    samples: Sequence[Sample] = (),
) -> Result:
    """Turn the rows and the outcomes of one race into its figures."""
    sold = [outcome for outcome in outcomes if outcome.answer == "sold"]
    waits = sorted((outcome.ended - outcome.started) * 1000 for outcome in sold)
    return Result(
        name=variant.name,
        strategy=variant.strategy,
        sound=variant.sound,
        processes=variant.processes,
        initial=plan.stock,
        due=plan.due,
        sold=totals.sold,
        left=totals.left,
        refused=_count(outcomes, "refused"),
        errors=_count(outcomes, "error"),
        problems=_by_frequency([outcome.problem for outcome in outcomes if outcome.answer == "error"]),
        disagreements=disagreements(totals, outcomes),
        retries=sum(outcome.retries for outcome in outcomes),
        queries=int(percentile(sorted(outcome.queries for outcome in sold), 50)),
        tries=tries,
        seconds=round(_seconds(sold or outcomes), 4),
        p50_ms=_rounded(percentile(waits, 50)),
        p95_ms=_rounded(percentile(waits, 95)),
        p99_ms=_rounded(percentile(waits, 99)),
        evidence=evidence,
        samples=tuple(samples),
        deadlocks=sum(mark.name == "deadlocked" for outcome in outcomes for mark in outcome.trace),
        outcomes=tuple(outcomes),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of ordered values; 0 of none.

    Example:
        >>> percentile([1, 2, 3, 4], 50)
        2
    """
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else 0.0


def _count(outcomes: Sequence[Outcome], answer: str) -> int:
    return sum(outcome.answer == answer for outcome in outcomes)


def _by_frequency(problems: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(set(problems), key=problems.count, reverse=True))


def _seconds(outcomes: Sequence[Outcome]) -> float:
    ran = [outcome for outcome in outcomes if outcome.started]
    return max(o.ended for o in ran) - min(o.started for o in ran) if ran else 0.0


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value
