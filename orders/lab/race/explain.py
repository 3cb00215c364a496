"""Why it went as it did: the strategy's own docstring, and what the traces of this race show."""

from __future__ import annotations

import inspect
import re

from django.utils.translation import gettext

from orders.lab.race.result import Result

_HEADING = re.compile(r"^(Idea|Interleaving|Verdict|Cost):\s*$", re.MULTILINE)
_SHORT = 40
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


def headings(strategy: type) -> dict[str, str]:
    """Split the docstring of a strategy into its fixed headings.

    Example:
        >>> headings(RowLock)["Verdict"]
        'Exact: reading and writing are one step to everyone else. …'
    """
    _, *parts = _HEADING.split(inspect.getdoc(strategy) or "")
    return {heading: " ".join(text.split()) for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def explanation(strategy: type) -> dict[str, str]:
    """Return `headings` in the reader's language, by their names in lower case."""
    return {heading.lower(): gettext(text) for heading, text in headings(strategy).items()}


def opening(text: str) -> str:
    """Return a text's first sentence, and the next if the first has one or two words.

    Example:
        >>> opening("Oversells. The lock ends too early. It costs a lot.")
        'Oversells. The lock ends too early.'
    """
    first, *others = _SENTENCE_END.split(text)
    return " ".join([first, *others[:1]]) if len(first) < _SHORT else first


def explain(result: Result, strategy: type) -> str:
    """Say what went wrong or why the fix holds, and what was seen of it."""
    verdict = opening(headings(strategy).get("Verdict", ""))
    seen = result.evidence if result.kept else f"This race: {'; '.join(result.faults()) or 'nothing to see'}."
    return " ".join(part for part in (verdict, _capital(seen)) if part)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
