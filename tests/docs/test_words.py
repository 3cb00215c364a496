"""The pages and the code speak plain American English."""

import re
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
    r"(?<![a-z])(?:nobody|somebody|everybody|anybody|told|anew|at[ _]hand|be[ _]had)(?![a-z])", re.IGNORECASE
)
"""Words of a translation, names in code included: a plain sentence names its subject, and a plain verb."""

LINES = {"locking": 13, "tests": 64, "orders": 5, "inventory": 2}
"""Lines of code, by folder, that still have one of those words. These numbers may only become smaller."""


def lines_with(pattern: re.Pattern[str], page: Path) -> list[str]:
    """Return the lines of a page in which a word stands that should not."""
    return [line for line in page.read_text().splitlines() if pattern.search(line)]


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


@pytest.mark.parametrize("folder", LINES)
def test_the_code_becomes_no_vaguer(folder: str) -> None:
    """Docstrings, comments and names of a folder have no more such lines than were left."""
    found = [line for path in (ROOT / folder).rglob("*.py") for line in lines_with(VAGUE, path)]
    assert len(found) <= LINES[folder], found[-10:]
