"""The strategies' own lines, colored on the server, each with its number in the file."""

from __future__ import annotations

import ast
import inspect
import io
import keyword
import tokenize
from collections.abc import Iterator
from functools import cache
from typing import Any

from django.utils.html import escape

from orders.lab.race.explain import explanation
from orders.lab.race.source_lines import home_of
from orders.lab.strategies import STRATEGIES, Strategy


def source(name: str) -> dict[str, Any]:
    """Return a strategy's source as the page shows it."""
    strategy = STRATEGIES[name]
    lines = _colored_lines(home_of(strategy))
    return {"name": name, "sound": strategy.sound, **explanation(strategy), "lines": lines}


@cache
def _colored_lines(strategy: type[Strategy]) -> list[tuple[int, str]]:
    return list(_lines(strategy))


def _lines(strategy: type[Strategy]) -> Iterator[tuple[int, str]]:
    lines, first = inspect.getsourcelines(strategy)
    doc = _docstring("".join(lines))
    for place, line in enumerate(colored("".join(lines))):
        if place not in doc and place < len(lines):
            yield first + place, line


def _docstring(text: str) -> range:
    """Return the lines of a class's docstring, counted from 0, with the empty one after it."""
    (definition,) = ast.parse(text).body
    assert isinstance(definition, ast.ClassDef)
    doc = definition.body[0]
    return range(doc.lineno - 1, (doc.end_lineno or doc.lineno) + 1)


def colored(text: str) -> list[str]:
    """Python as HTML, line by line, with a class for keywords, strings, comments, numbers and definitions."""
    rows = [list(line) for line in text.splitlines()]
    marked = [[str(escape(character)) for character in row] for row in rows]
    defining = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind = "definition" if defining and token.type == tokenize.NAME else _kind(token)
        defining = token.string in ("def", "class")
        if kind:
            _wrap(marked, token, kind)
    return ["".join(row) for row in marked]


def _kind(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME and keyword.iskeyword(token.string):
        return "keyword"
    return {tokenize.STRING: "string", tokenize.COMMENT: "comment", tokenize.NUMBER: "number"}.get(
        token.type, ""
    )


def _wrap(marked: list[list[str]], token: tokenize.TokenInfo, kind: str) -> None:
    (top, left), (bottom, right) = token.start, token.end
    for row in range(top - 1, bottom):
        begin = left if row == top - 1 else 0
        end = right if row == bottom - 1 else len(marked[row])
        if begin < end:
            marked[row][begin] = f'<i class="{kind}">{marked[row][begin]}'
            marked[row][end - 1] += "</i>"
