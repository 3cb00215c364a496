"""The Chinese of the documentation: whole, of the present text, and with the same links and names."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.pages import name_of

CATALOGS = sorted((ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES").rglob("*.po"))
APPS = sorted(ROOT.glob("*/locale/zh_Hans/LC_MESSAGES/*.po"))
MESSAGE = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"(?:\n|\Z))+)', re.MULTILINE)
SAME = re.compile(r"`[^`]+`(?:, `[^`]+`)*|mysite/\w+\.py|Holdfast")
"""Names, which no language translates."""

AVOIDED = (
    *("下落不明", "打破修正", "医治", "根治", "有毛病", "答复", "栅栏", "件卖出 40 件"),
    *("续租", "流水账", "故意写错", "抢购", "令牌（fencing token）", "附加项"),
)
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


@pytest.mark.parametrize("path", [*CATALOGS, *APPS, ROOT / "README.zh-hans.md"], ids=name_of)
def test_the_words_are_those_of_the_pages(path: Path) -> None:
    """The wording is the one that readers of Chinese have asked for."""
    assert [word for word in AVOIDED if word in path.read_text()] == []


def sphinx(*arguments: str) -> tuple[int, str]:
    """Run Sphinx; return its exit status and what it complains of."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


needs_sphinx = pytest.mark.skipif(not importlib.util.find_spec("sphinx"), reason="make docs installs Sphinx")


@pytest.mark.whole
@needs_sphinx
@pytest.mark.timeout(300)
def test_the_catalogs_are_of_the_present_pages(tmp_path: Path) -> None:
    """A catalog has each sentence of its page as it is now, and no others: an old one would show English."""
    assert sphinx("-b", "gettext", str(ROOT / "docs"), str(tmp_path)) == (0, "")
    root = ROOT / "docs" / "locale" / "zh_CN" / "LC_MESSAGES"
    for catalog in CATALOGS:
        now = set(messages(tmp_path / catalog.relative_to(root).with_suffix(".pot")))
        assert now ^ set(messages(catalog)) == set(), catalog.name


@pytest.mark.whole
@needs_sphinx
@pytest.mark.timeout(300)
def test_the_chinese_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    """`make docs` builds the translation, and the translated pages have their Chinese titles."""
    assert sphinx("-b", "html", "-D", "language=zh_CN", str(ROOT / "docs"), str(tmp_path)) == (0, "")
    assert "<h1>保护你的第一个视图" in (tmp_path / "library/tutorial/first-view.html").read_text()


def test_no_entry_is_fuzzy() -> None:
    """gettext leaves out what is marked as fuzzy, so no entry of a catalog is."""
    marked = [
        path for path in (*CATALOGS, *APPS) if re.search(r"^#, .*fuzzy", path.read_text(), re.MULTILINE)
    ]
    assert marked == []
