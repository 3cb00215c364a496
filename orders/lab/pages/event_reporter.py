"""What a race says to the page: JSON events, with times in milliseconds since the first buyer's start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.utils.translation import override

from orders.lab.pages.journal import Journal
from orders.lab.race.audit import Sample
from orders.lab.race.evidence import explain_fault, explain_order
from orders.lab.race.messages import Mark, Outcome
from orders.lab.race.plan import Variant
from orders.lab.race.result import Result

FIGURES = (
    "name", "strategy", "sound", "processes", "initial", "due", "sold", "left", "oversold", "unaccounted",
    "refused", "errors", "problems", "disagreements", "retries", "tries", "p50_ms", "p95_ms", "exact",
    "shown_broken", "kept", "deadlocks",
)  # fmt: skip


class EventReporter:
    """Watches a race and writes what happens into its journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._said = 0

    def round_(self, variant: Variant, attempt: int) -> None:
        """Report that a round begins."""
        self._said = 0
        self._journal.tell("round", name=variant.name, sound=variant.sound, attempt=attempt)

    def answered(self, variant: Variant, buyers: int) -> None:
        """More buyers have their answer."""
        if buyers > self._said:
            self._said = buyers
            self._journal.tell("answered", name=variant.name, buyers=buyers)

    def result(self, variant: Variant, result: Result) -> None:
        """Report that a variant is done."""
        self._journal.tell("result", **result_data(result))


def result_data(result: Result) -> dict[str, Any]:
    """Return a race for the page: figures, evidence in each language, every buyer's marks, the stock."""
    begin = min((o.started for o in result.outcomes if o.started), default=0.0)
    tokens = _numbered(result.outcomes)
    figures = result.as_dict()
    return {
        **{name: figures[name] for name in FIGURES},
        "evidence": _evidence(result),
        "waits": sum(_wait(outcome) > 0.001 for outcome in result.outcomes),
        "buyers": [_buyer(outcome, begin, tokens) for outcome in result.outcomes],
        "stock": _stock(result, begin),
    }


def _evidence(result: Result) -> dict[str, str]:
    explain = explain_order if result.sound else explain_fault
    said = {}
    for code, _ in settings.LANGUAGES:
        with override(code):
            said[code] = explain(result.outcomes)
    return said


def _wait(outcome: Outcome) -> float:
    """Return the longest time that a buyer waited for a lock, in seconds."""
    steps = zip(outcome.trace, outcome.trace[1:], strict=False)
    return max((after.at - mark.at for mark, after in steps if mark.name == "waiting"), default=0.0)


def _numbered(outcomes: Sequence[Outcome]) -> dict[int, int]:
    """Number the fencing tokens of a race from 1, in their order: in full they have sixteen digits."""
    tokens = {mark.token for outcome in outcomes for mark in outcome.trace if mark.token}
    return {token: number for number, token in enumerate(sorted(tokens), 1)}


def _buyer(outcome: Outcome, begin: float, tokens: Mapping[int, int]) -> dict[str, Any]:
    return {
        "number": outcome.buyer,
        "answer": outcome.answer,
        "problem": outcome.problem,
        "retries": outcome.retries,
        "from": _ms(outcome.started, begin),
        "to": _ms(outcome.ended, begin),
        "marks": [_mark(mark, begin, tokens) for mark in outcome.trace],
    }


def _mark(mark: Mark, begin: float, tokens: Mapping[int, int]) -> list[Any]:
    shown: list[Any] = [mark.name, _ms(mark.at, begin), mark.on_hand, mark.line]
    if mark.ttl is None:
        return shown
    return [*shown, {"token": tokens.get(mark.token or 0), "ends": _ms(mark.at + mark.ttl, begin)}]


def _stock(result: Result, begin: float) -> dict[str, list[float]]:
    """Return the stock that the page showed and that orders left, at each change."""
    end = max((outcome.ended for outcome in result.outcomes), default=0.0)
    first = sum(sample.at < begin for sample in result.samples)
    last = sum(sample.at <= end for sample in result.samples)
    shown = _changes(result.samples[max(0, first - 1) : last + 1])
    return {
        "ms": [min(max(0.0, _ms(sample.at, begin)), _ms(end, begin)) for sample in shown],
        "left": [sample.left for sample in shown],
        "sold": [sample.sold for sample in shown],
    }


def _changes(samples: Sequence[Sample]) -> list[Sample]:
    facts = [(sample.left, sample.sold) for sample in samples]
    return [s for n, s in enumerate(samples) if n in (0, len(samples) - 1) or facts[n] != facts[n - 1]]


def _ms(moment: float, begin: float) -> float:
    return round((moment - begin) * 1000, 2) if moment else 0.0
