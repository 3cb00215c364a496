"""How the cost of a checkout grows with the buyers, the products and the segments of a stock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from benchmarks.checkout.room import Room, open_room
from benchmarks.checkout.subjects import FOR_UPDATE, SEGMENTS, VIEWS, Subject, segmented, strategies
from tests.load.servers import Servers

BUYERS = (1, 4, 16, 64, 256)
PRODUCTS = (1, 10, 100, 1000)
CROWD = 32
FLUSH_MS = 50
SLOW_DISK = f"segments, {FLUSH_MS} ms a flush"
SIZES = {"buyers": BUYERS, "products": PRODUCTS, "segments": SEGMENTS, SLOW_DISK: SEGMENTS}
AXES = tuple(SIZES)
BASE = next(view for view in VIEWS if view.name == FOR_UPDATE)
PLAIN = ("row_lock", "conditional_update", "redis_lock")
"""What segments are compared with: one row, with a queue at the row, or in Redis."""


class Step(NamedTuple):
    """One run: what is measured, under which name, and with how many buyers of how many products.

    Attributes:
        sizes: for which the figures count; a stock without segments is the same for each number of them.
    """

    subject: Subject
    peer: str
    sizes: Sequence[int]
    buyers: int = CROWD
    products: int = 1


def measure(
    servers: Servers,
    seconds: float,
    only: Sequence[str] | None,
    progress: Callable[[str], None],
    *,
    axes: Sequence[str] = AXES,
    rounds: int = 1,
) -> list[dict[str, Any]]:
    """Return a record for each round, subject and size; `axis` says what grows, `size` how far.

    Args:
        servers: with the shop's tables.
        seconds: of each run.
        only: these strategies; None for every sound one.
        progress: told what is measured next.
        axes: what is to grow, of `AXES`.
        rounds: how often all is measured, each time in a new random order.
    """
    with open_room(servers, 2, 16) as room:
        return [
            record | {"round": number}
            for number in range(rounds)
            for axis in axes
            for record in _grown(room, axis, seconds, only, progress)
        ]


def _grown(
    room: Room, axis: str, seconds: float, only: Sequence[str] | None, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    steps = list(_steps(axis, only))
    with room.slow_flushes(FLUSH_MS) if axis == SLOW_DISK else nullcontext():
        for step in random.sample(steps, len(steps)):
            progress(f"{step.subject.name}, {step.buyers} buyers, {step.products} products ({axis})")
            figures = room.run(step.subject, buyers=step.buyers, seconds=seconds, products=step.products)
            for size in step.sizes:
                yield figures | {
                    "peer": step.peer,
                    "exact": step.subject.exact,
                    "axis": axis,
                    "size": size,
                    "case": f"{size} {axis}",
                }


def _steps(axis: str, only: Sequence[str] | None) -> Iterator[Step]:
    named = {subject.name: subject for subject in strategies() if only is None or subject.name in only}
    if axis in ("buyers", "products"):
        for subject in (BASE, *named.values()):
            for size in SIZES[axis]:
                buyers, products = (size, 1) if axis == "buyers" else (CROWD, size)
                yield Step(subject, subject.name, [size], buyers, products)
        return
    for name in PLAIN:
        if name in named:
            yield Step(named[name], name, SEGMENTS)
    for name, variants in segmented().items():
        if name in named:
            yield from (Step(variants[segments], name, [segments]) for segments in SEGMENTS)
