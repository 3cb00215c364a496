"""The Chinese of the documentation: whole, of the present text, and with the same links and names."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

CATALOGS = sorted((ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES").rglob("*.po"))
MESSAGE = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"(?:\n|\Z))+)', re.MULTILINE)
SAME = re.compile(r"`[^`]+`(?:, `[^`]+`)*|mysite/\w+\.py|Holdfast")
"""Names, which no language translates."""

AVOIDED = ("下落不明", "打破修正", "医治", "根治", "有毛病", "答复", "栅栏", "件卖出 40 件")
"""Words that readers of Chinese stumbled over."""


def text_of(quoted: str) -> str:
    return "".join(re.findall(r'"(.*)"', quoted)).replace(r"\"", '"').replace(r"\\\\", "\\")


def messages(catalog: Path) -> dict[str, str]:
    """Return what a catalog translates, by the English text."""
    found = {text_of(english): text_of(chinese) for english, chinese in MESSAGE.findall(catalog.read_text())}
    return {english: chinese for english, chinese in found.items() if english}


@pytest.mark.parametrize("catalog", CATALOGS, ids=lambda path: path.stem)
def test_a_page_is_translated_whole(catalog: Path) -> None:
    """Each sentence of a catalog has its Chinese."""
    missing = [english for english, chinese in messages(catalog).items() if not chinese]
    assert [english for english in missing if not SAME.fullmatch(english)] == []


@pytest.mark.parametrize("catalog", CATALOGS, ids=lambda path: path.stem)
def test_links_and_code_are_kept(catalog: Path) -> None:
    """A translation has the links and the code of its original."""
    for english, chinese in messages(catalog).items():
        for kept in (r"\]\(([^)]+)\)", r"`([^`]+)`"):
            assert not chinese or sorted(re.findall(kept, english)) == sorted(re.findall(kept, chinese)), (
                english
            )


@pytest.mark.parametrize("path", [*CATALOGS, ROOT / "README.zh-hans.md"], ids=lambda path: path.stem)
def test_the_words_are_those_of_the_pages(path: Path) -> None:
    """The wording is the one that readers of Chinese have asked for."""
    assert [word for word in AVOIDED if word in path.read_text()] == []


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="make docs installs Sphinx")
def test_the_catalogs_are_of_the_present_pages(tmp_path: Path) -> None:
    """At least nine in ten sentences of a translated page are in its catalog: a few may be new."""
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "gettext", str(ROOT / "docs"), str(tmp_path)]
    subprocess.run(command, check=True)
    root = ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES"
    for catalog in CATALOGS:
        now = set(messages(tmp_path / catalog.relative_to(root).with_suffix(".pot")))
        assert len(now & set(messages(catalog))) >= 0.9 * len(now), catalog.name
