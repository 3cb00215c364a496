"""The pages and the code speak plain American English."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.pages import LIBRARY, SPOKEN, TUTORIAL, name_of

BRITISH = re.compile(
    r"\b(?:behaviour|colour|favour|honour|neighbour|catalogue|centre|datacentre|licence|grey|fulfil|artefact|whilst"
    r"|(?:seriali|organi|recogni|reali|initiali|normali|optimi|summari|synchroni)s(?:e[ds]?|ing|ation))\b",
    re.IGNORECASE,
)

PRIVATE = re.compile(
    r"\b(?:whoever|lest|for ever|goes home|(?:is|are) told of|nobody (?:knows|says)"
    r"|in earnest|ghosts?|burial|undertaker|exorcise|witness(?:es)?|lookout|whereabouts|farewell"
    r"|census|tally|crew|mischief|the books|cures?|cured)\b",
    re.IGNORECASE,
)
"""Words that a reader of other libraries' pages wouldn't know, or would find odd."""

VAGUE = re.compile(
    r"(?<![a-z])(?:nobody|somebody|everybody|anybody|told|anew|at[ _]hand|be[ _]had)(?![a-z])"
    r"|(?<![a-z_])(?:stands?|stood)(?![a-z_])(?![ -](?:for|out|up|in|still|alone|idle|ins?)\b)"
    r"|(?:orders|answers|requests|statements|buyers|pairs|sections|ms) a (?:second|order|lock|sale)\b",
    re.IGNORECASE,
)
"""Words of a translation, also in names: a plain sentence has a subject, a plain verb, and "per second"."""

LEFT = {"British": (BRITISH, 18), "private": (PRIVATE, 7), "vague": (VAGUE, 12)}
"""Lines of the repository that still have such words, such as the account `nobody`. They only come down."""

UNWRITTEN = {".csv", ".json", ".lock", ".mo", ".mod", ".png", ".po", ".sum", ".svg"}
GENERATED = {"__pycache__", "build", "dist", "node_modules", "staticfiles"}


def written() -> Iterator[Path]:
    """Yield every file that is written by hand: code, tests, measurements, pages, settings."""
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in GENERATED and not name.startswith(".")]
        yield from (
            Path(folder, name) for name in names if Path(name).suffix not in UNWRITTEN and ".min." not in name
        )


def lines_with(pattern: re.Pattern[str], page: Path) -> list[str]:
    """Return the lines of a page that have such a word."""
    return [line for line in page.read_text(errors="replace").splitlines() if pattern.search(line)]


@pytest.mark.parametrize("page", SPOKEN, ids=name_of)
def test_the_spelling_is_american(page: Path) -> None:
    """No page has a word in British spelling."""
    assert lines_with(BRITISH, page) == []


@pytest.mark.parametrize("page", SPOKEN, ids=name_of)
def test_the_words_are_the_field_s(page: Path) -> None:
    """No page has a word of this project's former dialect."""
    assert lines_with(PRIVATE, page) == []


@pytest.mark.parametrize("page", sorted({*LIBRARY.rglob("*.md")} - {*TUTORIAL.glob("*.md")}), ids=name_of)
def test_no_page_of_the_library_is_vague(page: Path) -> None:
    """No page of the library has a word that leaves open which process, person or moment it means."""
    assert lines_with(VAGUE, page) == []


@pytest.mark.parametrize(("pattern", "left"), LEFT.values(), ids=LEFT)
def test_the_repository_has_no_more_of_them(pattern: re.Pattern[str], left: int) -> None:
    """Code, tests, measurements and pages have no more such lines than were left."""
    found = [f"{name_of(path)}: {line}" for path in written() for line in lines_with(pattern, path)]
    assert len(found) <= left, "\n".join(found)
