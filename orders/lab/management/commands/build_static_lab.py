"""`manage.py build_static_lab FOLDER`: the lab for plain web hosting, which needs no server of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.contrib.staticfiles import finders
from django.core.management.base import BaseCommand
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils import translation
from django.views.i18n import JavaScriptCatalog

from orders.lab.management.commands.record_races import RECORDING
from orders.lab.management.commands.record_steps import STEPS
from orders.lab.pages.sources import source
from orders.lab.pages.texts import strategies

SHARED: Final = ("orders/holdfast.css", "orders/icon.svg")


class Command(BaseCommand):
    """Writes a page per language, its texts, the recorded races and the strategies' lines."""

    help = "Write the lab as static files: recorded races, puzzles, and your own strategy."

    def add_arguments(self, parser: Any) -> None:
        """Declare where the files go."""
        parser.add_argument("folder", type=Path, help="a folder, which is made if it is missing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Copy what is the same in all languages, then write what is not."""
        folder: Path = options["folder"]
        shutil.copytree(
            RECORDING.parent,
            folder / "lab",
            ignore=shutil.ignore_patterns("vendor", "*.svg", "report.*"),
            dirs_exist_ok=True,
        )
        for name in SHARED:
            shutil.copy(str(finders.find(name)), folder)
        for language, _ in settings.LANGUAGES:
            with translation.override(language):
                _write(folder, language)
        self.stdout.write(f"{folder}/index.html")


def _write(folder: Path, language: str) -> None:
    """Write what is in one language."""
    request = HttpRequest()
    request.method = "GET"
    catalog = JavaScriptCatalog.as_view(packages=["orders.lab"])(request)
    assert isinstance(catalog, HttpResponse)
    (folder / f"texts-{language}.js").write_bytes(catalog.content)
    pages = [(code, name, _page(code)) for code, name in settings.LANGUAGES]
    shown = strategies()
    context = {
        "language": language,
        "pages": pages,
        "strategies": shown,
        "recorded": [one for one in shown if (STEPS / f"{one.name}.json").exists()],
        "static_lab": True,
    }
    (folder / _page(language)).write_text(render_to_string("lab/static.html", context))
    sources = folder / "sources" / language
    sources.mkdir(parents=True, exist_ok=True)
    for one in {each.strategy for each in shown}:
        (sources / f"{one}.json").write_text(json.dumps(source(one), ensure_ascii=False))


def _page(language: str) -> str:
    """Return the name of a language's page; English is the one that a folder opens with."""
    return "index.html" if language == "en" else f"{language}.html"
