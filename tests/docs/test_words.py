"""The pages speak plain American English."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import SPOKEN, name_of

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
