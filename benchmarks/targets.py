"""What is to be reached, and whether it was; a statement about one run on one machine, never a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.contended import SHAPES
from benchmarks.figures import Table
from benchmarks.peers import BATON, FLOOR, JUDGED
from benchmarks.uncontended import KINDS, NEW_KEY, SAME_KEY

MEASURED_WITH_CRASHES = "holdfast"
SMALL, LARGE, THINKING = SHAPES


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        text: what is to be reached.
        wanted: the bound.
        at_least: whether more is better.
        measured: the median, or None when it wasn't measured.
    """

    text: str
    wanted: float
    at_least: bool
    measured: float | None

    @property
    def reached(self) -> bool | None:
        """True, False, or None when it wasn't measured."""
        if self.measured is None:
            return None
        return self.measured >= self.wanted if self.at_least else self.measured <= self.wanted

    @property
    def verdict(self) -> str:
        """The same in a word."""
        return {True: "reached", False: "missed", None: "not measured"}[self.reached]


def judge(results: dict[str, Any]) -> list[Target]:
    """Return every target with what was measured."""
    return [
        *_uncontended(results),
        *_asyncio(results),
        *_contended(results),
        *_crashes(results),
        *_renewal(results),
    ]


def _uncontended(results: dict[str, Any]) -> Iterator[Target]:
    calls = (results.get("calls") or {}).get(JUDGED)
    yield Target("uncontended: Python calls per pair", 95, False, calls)
    table = Table(results.get("uncontended", []), "key")
    for kind, wanted in ((NEW_KEY, 1.0), (SAME_KEY, 1.15)):
        ratio = table.ratio(JUDGED, kind, "wall_us", FLOOR, more_is_better=False)
        yield Target(f"uncontended, {kind}: × floor", wanted, True, ratio and ratio.median)


def _asyncio(results: dict[str, Any]) -> Iterator[Target]:
    table = Table(results.get("asyncio", []), "key")
    for kind in KINDS:
        ratio = table.ratio(JUDGED, kind, "wall_us", FLOOR, more_is_better=False)
        yield Target(f"asyncio, {kind}: × its floor", 1.0, True, ratio and ratio.median)


def _contended(results: dict[str, Any]) -> Iterator[Target]:
    table = Table(results.get("contended", []), "shape")
    for shape in (SMALL, LARGE):
        rate = table.ratio(JUDGED, shape, "sections_per_second", BATON)
        fair = table.figure(JUDGED, shape, "jain")
        wait = table.ratio(JUDGED, shape, "longest_wait_ms", BATON)
        requests = table.figure(JUDGED, shape, "requests")
        yield Target(f"contended, {shape}: × baton", 0.95, True, rate and rate.median)
        yield Target(f"contended, {shape}: Jain index", 0.99, True, fair and fair.median)
        yield Target(f"contended, {shape}: longest wait × baton's", 1.5, False, wait and wait.median)
        yield Target(f"contended, {shape}: requests per section", 3.1, False, requests and requests.median)
    rate = table.ratio(JUDGED, THINKING, "sections_per_second", FLOOR)
    yield Target(f"contended, {THINKING}: × floor", 1.12, True, rate and rate.median)


def _crashes(results: dict[str, Any]) -> Iterator[Target]:
    table = Table(results.get("crashes", []), "kind")
    for kind, what, wanted in (
        ("dead holder", "taken after its lease's end, ms", 50),
        ("dead waiter", "killed, delays the queue by, ms", 1000),
        ("frozen waiter", "alive to the network, delays the queue by, ms", 1000),
    ):
        delays = table.values(MEASURED_WITH_CRASHES, kind, "delay_ms")
        worst = max((float("inf") if delay < 0 else delay for delay in delays), default=None)
        yield Target(f"{kind}: {what} (worst)", wanted, False, worst)


def _renewal(results: dict[str, Any]) -> Iterator[Target]:
    renewal = results.get("renewal") or {}
    yield Target("10,000 leases renewed: % of a core", 5, False, renewal.get("cpu_percent"))
    yield Target("10,000 leases renewed: threads that renew", 1, False, renewal.get("threads"))
    yield Target("10,000 leases renewed: lost", 0, False, renewal.get("lost"))
