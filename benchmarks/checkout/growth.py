"""How the cost of a checkout grows with the buyers, the products and the segments of a stock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.checkout.room import Room, open_room
from benchmarks.checkout.subjects import SEGMENTS, VIEWS, Subject, segmented, strategies
from tests.load.servers import Servers

BUYERS = (1, 4, 16, 64, 256)
PRODUCTS = (1, 10, 100, 1000)
CROWD = 32


def measure(
    servers: Servers, quick: bool, only: Sequence[str] | None, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a record for each subject and size; `axis` says what grows, `size` how far."""
    wanted = [s for s in strategies() if only is None or s.name in only]
    seconds = 0.6 if quick else 1.5
    with open_room(servers, 2, 16) as room:
        return [
            record for subject in [VIEWS[3], *wanted] for record in _grown(room, subject, seconds, progress)
        ] + [record for record in _segments(room, only, seconds, progress)]


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
