"""What the pictures are made of: boxes, arrows, timelines and bars as SVG, readable in light and in dark.

A picture takes its colors from variables. By itself it follows the reader's system; on the site it is put
into the page, where `_static/site.css` gives the variables the colors of the chosen mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

STYLE = (
    "<style>.drawn{--ink:#1f2933;--quiet:#52606d;--line:#7b8794;--box:#fff;--paper:#f5f7fa;--good:#0b6e4f;"
    "--bad:#b3261e;--work:#1d4ed8;font-family:sans-serif}"
    "@media(prefers-color-scheme:dark){.drawn{--ink:#e6edeb;--quiet:#a3b2ae;--line:#8a9995;--box:#1b2523;"
    "--paper:#121918;--good:#6fd69b;--bad:#ff8a80;--work:#8ab4ff}}"
    ".drawn text{font-size:13px;fill:var(--ink)}.drawn .quiet{font-size:11px;fill:var(--quiet)}"
    ".drawn .head{font-weight:bold}.drawn rect{fill:var(--box);stroke:var(--line)}"
    ".drawn .paper{fill:var(--paper);stroke:none}.drawn path{stroke:var(--line);fill:none}"
    ".drawn .tip{fill:var(--line);stroke:none}"
    ".drawn .good{stroke:var(--good);stroke-width:2}.drawn .bad{stroke:var(--bad);stroke-width:2}"
    ".drawn .work{stroke:var(--work);stroke-width:2}.drawn .wait{stroke-dasharray:4 3;fill:none}"
    ".drawn text.good{fill:var(--good);stroke:none}.drawn text.bad{fill:var(--bad);stroke:none}</style>"
)


def svg(width: int, height: int, label: str, shapes: Iterable[str]) -> str:
    """Return a picture, with a sentence for those who can't see it."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    paper = f'<rect class="paper" width="{width}" height="{height}"/>'
    accessible = f'role="img" aria-label="{escape(label)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawn" {accessible} {size}>'
    return "\n".join((head, STYLE, paper, *shapes, "</svg>", ""))


def words(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def box(x: float, y: float, width: float, title: str, text: str = "", kind: str = "") -> str:
    """Return a box with a title, and a quiet line below it."""
    style = f' class="{kind}"' if kind else ""
    rect = f'<rect{style} x="{x:g}" y="{y:g}" width="{width:g}" height="38" rx="4"/>'
    return (
        rect
        + words(x + 10, y + (16 if text else 24), title)
        + (words(x + 10, y + 31, text, "quiet") if text else "")
    )


def arrow(
    start: tuple[float, float], end: tuple[float, float], label: str = "", dx: float = 6, dy: float = -4
) -> str:
    """Return a straight arrow, with a word beside its middle."""
    (x1, y1), (x2, y2) = start, end
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    left, right = (x2 - 8 * ux + 4 * uy, y2 - 8 * uy - 4 * ux), (x2 - 8 * ux - 4 * uy, y2 - 8 * uy + 4 * ux)
    tip = " ".join(f"{x:.1f},{y:.1f}" for x, y in ((x2, y2), left, right))
    line = f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/><polygon class="tip" points="{tip}"/>'
    return line + (words((x1 + x2) / 2 + dx, (y1 + y2) / 2 + dy, label, "quiet") if label else "")


class Span(NamedTuple):
    """A stretch of a timeline, from one moment to another."""

    begin: float
    end: float
    text: str
    kind: str = ""


class Row(NamedTuple):
    """A line of a timeline: who, what goes on, and remarks at moments below it."""

    who: str
    spans: Sequence[Span]
    remarks: Sequence[tuple[float, str, str]] = ()


UNIT, LEFT = 58, 110


def timeline(top: float, title: str, rows: Sequence[Row]) -> list[str]:
    """Return rows of spans over one axis of time."""
    shapes = [words(16, top + 16, title, "head")]
    for number, row in enumerate(rows):
        y = top + 30 + 66 * number
        shapes.append(words(16, y + 20, row.who))
        for span in row.spans:
            x, width = LEFT + UNIT * span.begin, UNIT * (span.end - span.begin)
            shapes.append(
                f'<rect class="{span.kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="30" rx="3"/>'
            )
            shapes.append(words(x + 6, y + 19, span.text, "quiet"))
        shapes += [words(LEFT + UNIT * at, y + 46, text, kind) for at, text, kind in row.remarks]
    return shapes


class Bar(NamedTuple):
    """One bar: its name, its length, and the value as the table has it."""

    name: str
    value: float
    shown: str


def bars(title: str, values: Sequence[Bar], *, ours: str, wide: int = 300) -> str:
    """Return a bar for each value, those whose name has `ours` in their own color; longer is more."""
    most = max(bar.value for bar in values)
    shapes = [words(16, 24, title, "head")]
    for number, bar in enumerate(values):
        y, width = 40 + 30 * number, max(2.0, wide * bar.value / most)
        kind = "work" if ours in bar.name else ""
        shapes.append(words(16, y + 15, bar.name))
        shapes.append(f'<rect class="{kind}" x="300" y="{y}" width="{width:.1f}" height="20" rx="2"/>')
        shapes.append(words(300 + width + 8, y + 15, bar.shown, "quiet"))
    label = "; ".join(f"{bar.name}: {bar.shown}" for bar in values)
    return svg(700, 50 + 30 * len(values), f"{title}. {label}", shapes)
