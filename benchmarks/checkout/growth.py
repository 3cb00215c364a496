"""How a checkout grows: with buyers, products, web processes, and orders per commit."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from benchmarks.checkout.subjects import FOR_UPDATE, VIEWS, Subject, strategies
from benchmarks.checkout.targets import FAULTS
from benchmarks.checkout.testbed import Testbed, open_testbed
from tests.load.servers import Servers

BUYERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PRODUCTS = (1, 10, 100, 1000)
WORKERS = (1, 2, 3, 4)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CROWD = 32
SHAPE = (2, 16)  # web processes and threads where they aren't what grows
PER_COMMIT = "orders per commit"
SIZES: dict[str, Sequence[int]] = {
    "buyers": BUYERS,
    "products": PRODUCTS,
    "workers": WORKERS,
    PER_COMMIT: BATCHES,
}
AXES = tuple(SIZES)
OF_EACH_STRATEGY = {"buyers": (1, 4, 16, 64, 256), "products": PRODUCTS}
"""What `make loadtest` measures of every strategy."""
BASE = next(view for view in VIEWS if view.name == FOR_UPDATE)
DRAWN = ("combined", "conditional_update", "write_first", "redis_lock")
"""The strategies that a plot has room for: the best, and the queues at the row and in Redis."""


class Step(NamedTuple):
    """One run: what is measured, under which name, and with how many buyers of how many products.

    Attributes:
        sizes: for which the figures count.
    """

    subject: Subject
    peer: str
    sizes: Sequence[int]
    buyers: int = CROWD
    products: int = 1


class Growth:
    """What to measure, and how to report it.

    Args:
        servers: with the shop's tables.
        seconds: of each run.
        only: these strategies; None for every sound one.
        say: called with a line about each run as soon as it is over.
        sizes: by axis; those of `SIZES`, or some of them.
    """

    def __init__(
        self,
        servers: Servers,
        seconds: float,
        only: Sequence[str] | None,
        say: Callable[[str], None],
        sizes: Mapping[str, Sequence[int]] = SIZES,
    ) -> None:
        self.servers, self.seconds, self.only, self.say, self.sizes = servers, seconds, only, say, sizes
        self.ends = math.inf

    def measure(self, rounds: int = 1, minutes: float = math.inf) -> list[dict[str, Any]]:
        """Return a record for each round, subject and size; `axis` says what grows, `size` how far.

        Args:
            rounds: how often all is measured, each time in a new random order.
            minutes: after which no further run is begun.
        """
        self.ends = time.monotonic() + minutes * 60
        with open_testbed(self.servers, *SHAPE) as testbed:
            return [record for number in range(rounds) for record in self._round(testbed, number)]

    def _round(self, testbed: Testbed, number: int) -> Iterator[dict[str, Any]]:
        for axis in random.sample(list(self.sizes), len(self.sizes)):
            for record in self._grown(testbed, axis):
                yield record | {"round": number}

    def _grown(self, testbed: Testbed, axis: str) -> Iterator[dict[str, Any]]:
        if axis == PER_COMMIT:
            yield from self._batches(testbed)
        elif axis == "workers":
            yield from self._workers(testbed)
        else:
            yield from self._runs(testbed, axis, list(_steps(axis, self.only, self.sizes[axis])))

    def _workers(self, testbed: Testbed) -> Iterator[dict[str, Any]]:
        for workers in self._in_time(self.sizes["workers"]):
            steps = list(_steps("workers", self.only, [workers]))
            served = (
                nullcontext(testbed) if workers == SHAPE[0] else open_testbed(self.servers, workers, SHAPE[1])
            )
            with served as shop:
                self._warm_up(shop, steps)
                yield from self._runs(shop, "workers", steps)

    def _warm_up(self, testbed: Testbed, steps: Sequence[Step]) -> None:
        """Let each thread open its connections; a run begins with a short one of its own everywhere else."""
        for step in steps:
            testbed.run(step.subject, buyers=CROWD, seconds=min(0.3, self.seconds))

    def _runs(self, testbed: Testbed, axis: str, steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
        for step in self._in_time(steps):
            figures = testbed.run(
                step.subject, buyers=step.buyers, seconds=self.seconds, products=step.products
            )
            figures |= {"peer": step.peer, "exact": step.subject.exact}
            yield from self._reported(figures, axis, step.sizes)

    def _batches(self, testbed: Testbed) -> Iterator[dict[str, Any]]:
        from benchmarks.checkout import batches

        for size in self._in_time(self.sizes[PER_COMMIT]):
            figures = batches.measure(testbed, size, self.seconds)
            yield from self._reported(figures | {"peer": "combined", "exact": True}, PER_COMMIT, [size])

    def _in_time(self, all_of_them: Sequence[Any]) -> Iterator[Any]:
        """Yield them in random order, until the time is over."""
        for each in random.sample(all_of_them, len(all_of_them)):
            if time.monotonic() >= self.ends:
                return
            yield each

    def _reported(self, figures: dict[str, Any], axis: str, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
        figures |= {"axis": axis, "load": os.getloadavg()[0], "errors": _errors(figures)}
        self.say(line_of(figures, sizes))
        for size in sizes:
            yield figures | {"size": size, "case": f"{size} {axis}", "run": sizes[0]}


def measure(
    servers: Servers, seconds: float, only: Sequence[str] | None, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return what `make loadtest` shows of the growth of each strategy; see `Growth`."""
    return Growth(servers, seconds, only, progress, OF_EACH_STRATEGY).measure()


def line_of(record: dict[str, Any], sizes: Sequence[int]) -> str:
    """Return a run's figures for the reader who waits for the last of them."""
    size = str(sizes[0]) if len(sizes) == 1 else "any"
    faults = "  ".join(f"{name} {record[name]}" for name in ("errors", *FAULTS))
    p99 = f"p99 {record['p99_ms']:>6.0f} ms  " if "p99_ms" in record else ""
    return (
        f"{record['axis']:<24}{size:>5}  {record['peer']:<24}{record['answers_per_second']:>7.0f}/s  {p99}"
        f"{faults}  load {record['load']:.1f}"
    )


def missing(records: Sequence[dict[str, Any]], sizes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the sizes of each axis of which nothing was measured, for want of time."""
    measured = {record["case"] for record in records}
    return [f"{n} {axis}" for axis, each in sizes.items() for n in each if f"{n} {axis}" not in measured]


def _errors(figures: dict[str, Any]) -> int:
    """Return how many answers weren't an order; nothing here is ever sold out."""
    answers: dict[str, int] = figures["statuses"]
    return int(figures["unanswered"]) + sum(n for status, n in answers.items() if status != "201")


def _steps(axis: str, only: Sequence[str] | None, sizes: Sequence[int]) -> Iterator[Step]:
    named = [subject for subject in strategies() if only is None or subject.name in only]
    for subject in (BASE, *named):
        for size in sizes:
            buyers = size if axis == "buyers" else CROWD
            yield Step(subject, subject.name, [size], buyers, size if axis == "products" else 1)
