"""Draw the pictures of the pages: `python docs/draw.py`. Some are made from tables of the pages."""

from __future__ import annotations

import re
from pathlib import Path

from charts import CHARTS
from diagrams import DIAGRAMS
from growth_plots import pictures as plots
from history_plot import HISTORIES
from shapes import box, svg, words

DOCS = Path(__file__).parent
CALL = re.compile(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
FLOOR = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|:]+)", re.MULTILINE)


def pictures() -> dict[str, str]:
    """Return the SVG of each picture by its file name."""
    page = (DOCS / "contributing" / "architecture.md").read_text()
    there, back = page.partition("## Back: release")[::2]
    return {
        "architecture-floors.svg": _floors(FLOOR.findall(there)),
        "architecture-way.svg": _way(CALL.findall(there), CALL.findall(back)),
        **{name: draw() for name, draw in (DIAGRAMS | CHARTS | HISTORIES).items()},
    }


def drawings() -> dict[Path, str]:
    """Return the SVG of each picture and plot by its file."""
    return {DOCS / "images" / name: drawing for name, drawing in pictures().items()} | {
        DOCS / "plots" / name: drawing for name, drawing in plots().items()
    }


def _floors(floors: list[tuple[str, str]]) -> str:
    boxes = [
        box(20, 20 + 46 * row, 660, names.replace("`", ""), question.strip())
        for row, (names, question) in enumerate(floors)
    ]
    return svg(700, 32 + 46 * len(floors), "The floors of locking: each imports only those below it.", boxes)


def _way(there: list[tuple[str, str]], back: list[tuple[str, str]]) -> str:
    depth = max(len(there), len(back))
    columns = ((20, "acquire ↓", there), (390, "release ↓ (after COMMIT)", back))
    shapes = [words(x, 26, title, "head") for x, title, _ in columns]
    for x, _, calls in columns:
        shapes += [box(x, 38 + 46 * row, 350, name, file) for row, (file, name) in enumerate(calls)]
    redis = box(20, 44 + 46 * depth, 720, "Redis", "acquire.lua, release.lua")
    return svg(
        760, 100 + 46 * depth, "One decorated call: from the wrapper to Redis and back.", [*shapes, redis]
    )


if __name__ == "__main__":
    for path, drawing in drawings().items():
        path.write_text(drawing)
