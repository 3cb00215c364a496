"""The lab speaks Chinese: its pages, its scripts, and what the strategies say of themselves."""

from __future__ import annotations

import gettext
import re
from pathlib import Path

import pytest

import orders.lab
from orders.lab.race.explain import headings
from orders.lab.strategies import STRATEGIES

APP = Path(orders.lab.__file__).parent
CATALOGS = APP / "locale" / "zh_Hans" / "LC_MESSAGES"


def known(name: str) -> set[str]:
    """Return the texts of a compiled catalog; of one with a plural the singular."""
    with (CATALOGS / name).open("rb") as file:
        texts = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {text[0] if isinstance(text, tuple) else text for text in texts}


@pytest.mark.parametrize(
    ("files", "name"), [("templates/**/*.html", "django.mo"), ("static/**/*.js", "djangojs.mo")]
)
def test_every_text_of_the_pages_is_translated(files, name):
    """No text of the templates or of the scripts is missing from the catalog that their page loads."""
    found = re.compile(r"""(?:translate |n?gettext\()(["'])(.+?)\1""")
    texts = {match[2] for path in APP.glob(files) for match in found.finditer(path.read_text())}
    assert len(texts) > 50
    assert texts <= known(name)


def test_every_explanation_of_a_strategy_is_translated():
    """Idea, interleaving and verdict of each strategy are there in Chinese."""
    explained = [headings(strategy) for strategy in STRATEGIES.values()]
    texts = {parts[name] for parts in explained for name in ("Idea", "Interleaving", "Verdict")}
    assert sorted(texts - known("django.mo")) == []


def test_the_explanations_are_in_the_readers_language(client, settings):
    """The lab's lines of a strategy come with its explanation in Chinese, and in English."""
    settings.DEBUG = True
    chinese = client.get("/lab/sources/lost_update/", headers={"Accept-Language": "zh-CN"}).json()
    assert chinese["verdict"].startswith("超卖")
    assert client.get("/lab/sources/lost_update/").json()["verdict"].startswith("Oversells")
