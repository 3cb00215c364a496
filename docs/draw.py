"""Draw the pictures of architecture.md from its own tables: `python docs/draw.py`."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
CALL = re.compile(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
FLOOR = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|:]+)", re.MULTILINE)
STYLE = (
    "<style>text{font:13px sans-serif;fill:#1f2933}.quiet{font-size:11px;fill:#52606d}"
    "rect{fill:#fff;stroke:#9aa5b1}.paper{fill:#f5f7fa;stroke:none}.head{font-weight:bold}</style>"
)
"""With a light paper of its own: readable on a dark page, too."""


def pictures() -> dict[str, str]:
    """Return the SVG of each picture by its file name."""
    page = (DOCS / "library" / "explanation" / "architecture.md").read_text()
    there, back = page.partition("## Back: release")[::2]
    return {
        "architecture-floors.svg": _floors(FLOOR.findall(there)),
        "architecture-way.svg": _way(CALL.findall(there), CALL.findall(back)),
    }


def _floors(floors: list[tuple[str, str]]) -> str:
    boxes = [
        _box(20, 20 + 46 * row, 660, names.replace("`", ""), question.strip())
        for row, (names, question) in enumerate(floors)
    ]
    return _svg(700, 32 + 46 * len(floors), boxes)


def _way(there: list[tuple[str, str]], back: list[tuple[str, str]]) -> str:
    depth = max(len(there), len(back))
    columns = ((20, "acquire ↓", there), (390, "release ↓ (after COMMIT)", back))
    shapes = [f'<text class="head" x="{x}" y="26">{title}</text>' for x, title, _ in columns]
    for x, _, calls in columns:
        shapes += [_box(x, 38 + 46 * row, 350, name, file) for row, (file, name) in enumerate(calls)]
    return _svg(
        760, 100 + 46 * depth, [*shapes, _box(20, 44 + 46 * depth, 720, "Redis", "acquire.lua, release.lua")]
    )


def _box(x: int, y: int, width: int, title: str, text: str) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="38" rx="4"/>'
        f'<text x="{x + 10}" y="{y + 16}">{escape(title)}</text>'
        f'<text class="quiet" x="{x + 10}" y="{y + 31}">{escape(text)}</text>'
    )


def _svg(width: int, height: int, shapes: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    return "\n".join(
        (f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', STYLE, paper, *shapes, "</svg>", "")
    )


if __name__ == "__main__":
    for name, picture in pictures().items():
        (DOCS / "images" / name).write_text(picture)
