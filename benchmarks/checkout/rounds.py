"""Interleaved rounds: in each all subjects run within a minute or two, in a new random order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.checkout.subjects import EMPTY, FOR_UPDATE, SELECT, VIEWS, Subject, strategies
from benchmarks.checkout.testbed import Testbed, open_testbed
from tests.load.servers import Servers

BUYERS = 32
HOT, MANY, SOLD_OUT = "one product", "100 products", "sold out"
CASES = {HOT: (1, 1_000_000), MANY: (100, 1_000_000), SOLD_OUT: (1, 0)}
LIGHT = (EMPTY, SELECT)
SHAPES = ((2, 16), (4, 4))


@dataclass(frozen=True)
class Effort:
    """How much is measured: rounds of each shape, seconds of each run, and the shapes (workers, threads)."""

    rounds: int
    seconds: float
    shapes: Sequence[tuple[int, int]]


FULL = Effort(5, 1.5, SHAPES)


def name_of(shape: tuple[int, int]) -> str:
    """Return "2×16" for two workers of 16 threads."""
    return "×".join(map(str, shape))


def measure(
    servers: Servers, effort: Effort, only: Sequence[str] | None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Return the records of all rounds, and the SQL statements of a checkout by subject."""
    subjects = [*VIEWS, *(s for s in strategies() if only is None or s.name in only)]
    records: list[dict[str, Any]] = []
    statements: dict[str, float] = {}
    for shape in effort.shapes:
        with open_testbed(servers, *shape) as testbed:
            for record in _rounds(testbed, subjects, effort, progress):
                records.append(record | {"shape": name_of(shape)})
            if not statements:
                progress("statements of a checkout")
                statements = {subject.name: testbed.statements(subject) for subject in subjects}
    return {"records": records, "statements": statements}


def _warm_up(testbed: Testbed, subjects: Sequence[Subject], progress: Callable[[str], None]) -> None:
    """Let each thread open its connections, to Redis' wake-ups too: a shop is asked more than once."""
    for subject in subjects:
        progress(f"{subject.name}, warming up")
        testbed.run(subject, buyers=BUYERS, seconds=0.5)


def _rounds(
    testbed: Testbed,
    subjects: Sequence[Subject],
    effort: Effort,
    progress: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    _warm_up(testbed, subjects, progress)
    for number in range(effort.rounds):
        for record in _round(testbed, subjects, effort.seconds, progress):
            yield record | {"round": number}


def _round(
    testbed: Testbed,
    subjects: Sequence[Subject],
    seconds: float,
    progress: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for subject in random.sample(subjects, len(subjects)):
        light = subject.name in LIGHT
        for case in list(CASES)[:1] if light else CASES:
            progress(f"{subject.name}, {case}")
            products, stock = CASES[case]
            figures = testbed.run(subject, buyers=BUYERS, seconds=seconds, products=products, stock=stock)
            record = figures | {"peer": subject.name, "exact": subject.exact}
            # What a light view does doesn't depend on the stock: it is the base of every case of its round.
            yield from (record | {"case": each} for each in (CASES if light else [case]))


__all__ = ["FOR_UPDATE", "FULL", "HOT", "MANY", "SOLD_OUT", "measure", "name_of"]
