"""How the cost of a checkout grows with the buyers, the products and the segments of a stock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from benchmarks.checkout.room import Room, open_room
from benchmarks.checkout.subjects import FOR_UPDATE, SEGMENTS, VIEWS, Subject, segmented, strategies
from tests.load.servers import Servers

BUYERS = (1, 4, 16, 64, 256)
PRODUCTS = (1, 10, 100, 1000)
CROWD = 32
BASE = next(view for view in VIEWS if view.name == FOR_UPDATE)


def measure(
    servers: Servers, seconds: float, only: Sequence[str] | None, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a record for each subject and size; `axis` says what grows, `size` how far.

    Args:
        servers: with the shop's tables.
        seconds: of each run.
        only: these strategies; None for every sound one.
        progress: told what is measured next.
    """
    wanted = [s for s in strategies() if only is None or s.name in only]
    with open_room(servers, 2, 16) as room:
        grown = [_grown(room, subject, seconds, progress) for subject in [BASE, *wanted]]
        return [*chain.from_iterable(grown), *_segments(room, only, seconds, progress)]


def _grown(
    room: Room, subject: Subject, seconds: float, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    for buyers in BUYERS:
        progress(f"{subject.name}, {buyers} buyers of one product")
        yield _record("buyers", buyers, subject, room.run(subject, buyers=buyers, seconds=seconds))
    for products in PRODUCTS:
        progress(f"{subject.name}, {CROWD} buyers of {products} products")
        figures = room.run(subject, buyers=CROWD, seconds=seconds, products=products)
        yield _record("products", products, subject, figures)


def _segments(
    room: Room, only: Sequence[str] | None, seconds: float, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    for name, variants in segmented().items():
        for segments in SEGMENTS if only is None or name in only else ():
            progress(f"{name} with {segments} segments")
            figures = room.run(variants[segments], buyers=CROWD, seconds=seconds)
            yield _record("segments", segments, variants[segments], figures) | {"peer": name}


def _record(axis: str, size: int, subject: Subject, figures: dict[str, Any]) -> dict[str, Any]:
    case = f"{size} {axis}"
    return figures | {"peer": subject.name, "exact": subject.exact, "axis": axis, "size": size, "case": case}
