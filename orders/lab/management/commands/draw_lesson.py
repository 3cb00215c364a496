"""`manage.py draw_lesson`: the recorded race as ten seconds of animated SVG, for the README and the pages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from django.core.management.base import BaseCommand
from django.template.loader import render_to_string

from orders.lab.management.commands.record_races import RECORDING

PICTURES = RECORDING.parent
SECONDS = 10.0
PLAYED = 5.5  # seconds of them; the rest shows how it ended
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
    initial, buyers = race["initial"], len(race["buyers"])
    numbers = {"beyond": len(sales) - initial, "initial": initial, "buyers": buyers}
    context = {
        "colors": colors,
        "words": words,
        "said": {name: getattr(words, name).format(**numbers) for name in ("headline", "in_stock", "below")},
        "story": [(TOP + 24 + row * 24, text.format(**numbers)) for row, text in enumerate(words.story)],
        "left": race["left"],
        "last": len(sales) - 1,
        "appearing": [f"{percent:.2f}" for percent in at],
        # Each count of sold mugs is seen until the next one is sold, the last to the end.
        "counts": [(f"{begin:.2f}", f"{end:.2f}") for begin, end in pairwise((0.0, *at, 100.0))],
        "mugs": [_mug(number, initial) for number in range(len(sales))],
    }
    return render_to_string("lab/lesson.svg", context)


def _mug(number: int, initial: int) -> dict[str, Any]:
    row, column = divmod(number, COLUMNS)
    y = TOP + row * CELL + (LINE if number >= initial else 0)
    return {"x": LEFT + column * CELL, "y": y, "there": number < initial}
