"""`manage.py draw_lesson`: the recorded race as ten seconds of animated SVG, for the README and the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand

from orders.management.commands.record_races import RECORDING

PICTURES = RECORDING.parents[1]
SECONDS = 10.0
PLAYED = 5.5  # seconds of them; the rest shows how it ended
WIDTH, HEIGHT = 720, 405
COLUMNS = 10
CELL = 45
LEFT, TOP = 40, 165
LINE = 42  # px between what is in stock and what isn't


@dataclass(frozen=True)
class Colors:
    """The colors of the pages, in light or in dark."""

    panel: str
    text: str
    soft: str
    good: str
    bad: str


SCHEMES = {
    "light": Colors("#ffffff", "#17211f", "#55625f", "#0f6b3d", "#b3261e"),
    "dark": Colors("#182120", "#e6edeb", "#a3b2ae", "#6fd69b", "#ff8a80"),
}


class Command(BaseCommand):
    """Draws `lesson-light.svg` and `lesson-dark.svg` from the recording."""

    help = "Draw the animated picture of the recorded race that the README opens with, in light and dark."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write both files."""
        race = json.loads(RECORDING.read_text())["races"][0]
        for scheme, colors in SCHEMES.items():
            (PICTURES / f"lesson-{scheme}.svg").write_text(lesson(race, colors))


def lesson(race: dict[str, Any], colors: Colors) -> str:
    """Return the picture of a race.

    Without animation it shows how the race ended, so that it is right in print and with reduced motion.
    """
    sales = sorted(buyer["to"] for buyer in race["buyers"] if buyer["answer"] == "sold")
    at = [moment / sales[-1] * PLAYED / SECONDS * 100 for moment in sales]  # percent of the ten seconds
    beyond = len(sales) - race["initial"]
    rules = [_frames(f"m{number}", percent, 100) for number, percent in enumerate(at)]
    rules += [_frames(f"s{number}", *span) for number, span in enumerate(_spans(at))]
    drawn = "\n".join([*_heading(race, beyond), *_counts(len(at)), *_mugs(len(at), race["initial"])])
    title = f"{beyond} people paid for a mug that doesn't exist"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{title}</title>\n<style>{_style(colors)}{''.join(rules)}</style>\n"
        f'<rect class="panel" width="{WIDTH}" height="{HEIGHT}" rx="14"/>\n'
        f'<rect class="bad" width="{WIDTH}" height="5"/>\n{_DEFINITIONS}\n{drawn}\n</svg>\n'
    )


_DEFINITIONS = (
    '<defs><g id="mug"><path d="M4 4h12v13a3 3 0 0 1-3 3H7a3 3 0 0 1-3-3z"/>'
    '<path d="M16 7h2.2a2.8 2.8 0 0 1 2.8 2.8v1.4a2.8 2.8 0 0 1-2.8 2.8H16" fill="none"/></g>'
    '<path id="cross" d="m7 9 6 6m0-6-6 6"/></defs>'
)


def _style(colors: Colors) -> str:
    return (
        f".panel{{fill:{colors.panel}}}text{{fill:{colors.text};font-family:system-ui,-apple-system,"
        "'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
        f".bad{{fill:{colors.bad}}}.soft{{fill:{colors.soft}}}"
        f".good{{fill:{colors.good};stroke:{colors.good}}}.sold{{fill:{colors.bad};stroke:{colors.bad}}}"
        f".free{{fill:none;stroke:{colors.soft}}}.cross{{stroke:{colors.panel};stroke-width:2.4}}"
        ".mug{stroke-width:1.4}"
        f"@media(prefers-reduced-motion:no-preference){{.a{{animation:{SECONDS:g}s step-end infinite}}}}"
    )


def _frames(name: str, begin: float, end: float) -> str:
    """The rule of what is seen from `begin` to `end`, in percent of the ten seconds."""
    hidden_again = "" if end >= 100 else f"{end:.2f}%{{opacity:0}}"
    return f"@keyframes {name}{{0%{{opacity:0}}{begin:.2f}%{{opacity:1}}{hidden_again}}}"


def _spans(at: Sequence[float]) -> list[tuple[float, float]]:
    """When each count of sold mugs is seen: until the next one is sold, and the last one to the end."""
    return list(zip(at, [*at[1:], 100.0], strict=True))


def _heading(race: dict[str, Any], beyond: int) -> Iterator[str]:
    name = f"m{len(race['buyers']) - 1}"
    yield (
        f'<text class="bad a" style="animation-name:{name}" x="{LEFT}" y="62" font-size="25" '
        f'font-weight="800">{beyond} people paid for a mug that doesn\'t exist</text>'
    )
    yield f'<text x="{LEFT + 92}" y="108" font-size="22">· in stock {race["initial"]}</text>'
    yield (
        f'<text class="a" style="animation-name:{name}" x="{LEFT + 238}" y="108" font-size="22">'
        f'· page says <tspan font-weight="700">{race["left"]}</tspan></text>'
    )
    y = TOP + CELL + 8
    yield f'<rect class="bad" x="{LEFT}" y="{y}" width="{COLUMNS * CELL - 8}" height="4"/>'
    yield (
        f'<text class="bad" x="{LEFT}" y="{y + 22}" font-size="15">'
        f"in stock: {race['initial']}; what is below doesn't exist</text>"
    )
    x = LEFT + COLUMNS * CELL + 20
    for row, text in enumerate(("40 people click “buy”", "at the same moment.", "10 mugs are left.")):
        yield f'<text class="soft" x="{x}" y="{TOP + 24 + row * 24}" font-size="17">{text}</text>'


def _counts(sales: int) -> Iterator[str]:
    """One text for each count; without animation only the last is seen."""
    for number in range(sales):
        hidden = "" if number == sales - 1 else ' opacity="0"'
        yield (
            f'<text class="a" style="animation-name:s{number}" x="{LEFT}" y="108" font-size="22"'
            f'{hidden}>sold <tspan font-weight="700">{number + 1}</tspan></text>'
        )


def _mugs(sales: int, initial: int) -> Iterator[str]:
    for number in range(max(sales, initial)):
        row, column = divmod(number, COLUMNS)
        x, y = LEFT + column * CELL, TOP + row * CELL + (LINE if number >= initial else 0)
        place = f'transform="translate({x} {y}) scale(1.75)"'
        if number < initial:
            yield f'<use href="#mug" class="mug free" {place}/>'
        if number < sales:
            kind = "good" if number < initial else "sold"
            cross = '<use href="#cross" class="cross"/>' if kind == "sold" else ""
            yield (
                f'<g class="mug {kind} a" style="animation-name:m{number}" {place}>'
                f'<use href="#mug"/>{cross}</g>'
            )
