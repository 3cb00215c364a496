"""`manage.py draw_lesson`: the recorded race as ten seconds of animated SVG, for the README and the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand

from orders.lab.management.commands.record_races import RECORDING

PICTURES = RECORDING.parent
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


@dataclass(frozen=True)
class Words:
    """The sentences of the picture, in one language; the names in them are figures of the race."""

    headline: str
    sold: str
    in_stock: str
    page_says: str
    below: str
    story: tuple[str, str, str]
    initial_at: int = LEFT + 92  # px; to the right of the count of sold mugs
    page_at: int = LEFT + 238


WORDS = {
    "en": Words(
        "{beyond} people paid for a mug that doesn't exist",
        "sold",
        "in stock {initial}",
        "page says",
        "in stock: {initial}; what is below doesn't exist",
        ("{buyers} people click “buy”", "at the same moment.", "{initial} mugs are left."),
    ),
    "zh-hans": Words(
        "{beyond} 个人为不存在的杯子付了钱",
        "卖出",
        "库存 {initial}",
        "页面显示",
        "库存 {initial} 个；线以下的并不存在",
        ("{buyers} 个人在同一刻", "点击“购买”，", "只剩 {initial} 个杯子。"),
        LEFT + 92,
        LEFT + 200,
    ),
}


class Command(BaseCommand):
    """Draws `lesson-light.svg`, `lesson-dark.svg` and their Chinese from the recording."""

    help = "Draw the animated picture of the recorded race that the README opens with, in light and dark."

    def handle(self, *args: Any, **options: Any) -> None:
        """Write a file for each language and color scheme."""
        race = json.loads(RECORDING.read_text())["races"][0]
        for language, words in WORDS.items():
            for scheme, colors in SCHEMES.items():
                (PICTURES / file_name(scheme, language)).write_text(lesson(race, colors, words))


def file_name(scheme: str, language: str) -> str:
    """Return the name of a picture: `lesson-dark.svg`, `lesson-dark.zh-hans.svg`."""
    return f"lesson-{scheme}{'' if language == 'en' else f'.{language}'}.svg"


def lesson(race: dict[str, Any], colors: Colors, words: Words) -> str:
    """Return the picture of a race.

    Without animation it shows how the race ended, so that it is right in print and with reduced motion.
    """
    sales = sorted(buyer["to"] for buyer in race["buyers"] if buyer["answer"] == "sold")
    at = [moment / sales[-1] * PLAYED / SECONDS * 100 for moment in sales]  # percent of the ten seconds
    beyond = len(sales) - race["initial"]
    figures = {"beyond": beyond, "initial": race["initial"], "buyers": len(race["buyers"])}
    rules = [_frames(f"m{number}", percent, 100) for number, percent in enumerate(at)]
    rules += [_frames(f"s{number}", *span) for number, span in enumerate(_spans(at))]
    heading = _heading(race, words, figures)
    drawn = "\n".join([*heading, *_counts(len(at), words.sold), *_mugs(len(at), race["initial"])])
    title = words.headline.format(**figures)
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
        "'Segoe UI',Roboto,'DejaVu Sans','PingFang SC','Microsoft YaHei','Noto Sans CJK SC',sans-serif}"
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
    """When each count of sold mugs is seen, from none on: until the next one is sold, the last to the end."""
    return list(zip([0.0, *at], [*at, 100.0], strict=True))


def _heading(race: dict[str, Any], words: Words, figures: dict[str, int]) -> Iterator[str]:
    name = f"m{len(race['buyers']) - 1}"
    yield (
        f'<text class="bad a" style="animation-name:{name}" x="{LEFT}" y="62" font-size="25" '
        f'font-weight="800">{words.headline.format(**figures)}</text>'
    )
    stock = words.in_stock.format(**figures)
    yield f'<text x="{words.initial_at}" y="108" font-size="22">· {stock}</text>'
    yield (
        f'<text class="a" style="animation-name:{name}" x="{words.page_at}" y="108" font-size="22">'
        f'· {words.page_says} <tspan font-weight="700">{race["left"]}</tspan></text>'
    )
    y = TOP + CELL + 8
    yield f'<rect class="bad" x="{LEFT}" y="{y}" width="{COLUMNS * CELL - 8}" height="4"/>'
    yield (f'<text class="bad" x="{LEFT}" y="{y + 22}" font-size="15">{words.below.format(**figures)}</text>')
    x = LEFT + COLUMNS * CELL + 20
    for row, text in enumerate(words.story):
        y = TOP + 24 + row * 24
        yield f'<text class="soft" x="{x}" y="{y}" font-size="17">{text.format(**figures)}</text>'


def _counts(sales: int, sold: str) -> Iterator[str]:
    """One text for each count, from none on; without animation only the last is seen."""
    for number in range(sales + 1):
        hidden = "" if number == sales else ' opacity="0"'
        yield (
            f'<text class="a" style="animation-name:s{number}" x="{LEFT}" y="108" font-size="22"'
            f'{hidden}>{sold} <tspan font-weight="700">{number}</tspan></text>'
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
