"""What a statement of SQL does, as far as a race needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_NAME: Final = r'[`"\[]?(?:\w+[`"\]]?\.[`"\[]?)?(\w+)[`"\]]?'
_WRITES: Final = (
    re.compile(
        rf"\bUPDATE\s+(?:ONLY\s+)?{_NAME}(?:\s+(?:AS\s+)?\w+)?\s+SET\s+(?P<set>.*)", re.IGNORECASE | re.DOTALL
    ),
    re.compile(rf"\bINSERT\s+(?:OR\s+\w+\s+|IGNORE\s+)?INTO\s+{_NAME}", re.IGNORECASE),
    re.compile(rf"\bDELETE\s+FROM\s+{_NAME}", re.IGNORECASE),
)
_READS: Final = re.compile(rf"\b(?:FROM|JOIN)\s+{_NAME}", re.IGNORECASE)
_WHERE: Final = re.compile(r"\bWHERE\b", re.IGNORECASE)


class Statement(NamedTuple):
    """What a statement does.

    Args:
        reads: the tables that a SELECT names.
        writes: the table that is written.
        sets: the columns that an UPDATE sets, each with its new value; None where the database computes it.
    """

    reads: frozenset[str] = frozenset()
    writes: str = ""
    sets: tuple[tuple[str, str | None], ...] = ()


def parse(sql: str, parameters: Any = None) -> Statement:
    """Return what `sql` does; what isn't understood does nothing."""
    for pattern in _WRITES:
        if found := pattern.search(sql):
            return Statement(writes=found[1], sets=_set(found.groupdict().get("set") or "", parameters))
    if sql.lstrip(" (\n").upper().startswith(("SELECT", "WITH")):
        return Statement(frozenset(_READS.findall(sql)))
    return Statement()


def _set(text: str, parameters: Any) -> tuple[tuple[str, str | None], ...]:
    """Return the assignments at the beginning of `text`, which has a WHERE and more behind them."""
    values = iter(parameters if isinstance(parameters, (list, tuple)) else ())
    pairs: list[tuple[str, str | None]] = []
    for assignment in _split(_WHERE.split(text, maxsplit=1)[0]):
        column, _, expression = assignment.partition("=")
        given = [next(values, None) for _ in range(expression.count("%s"))]
        pairs.append((column.strip(' \n`"[]'), str(given[0]) if expression.strip() == "%s" else None))
    return tuple(pairs)


def _split(text: str) -> Iterator[str]:
    """Yield what is between the commas that are in no parentheses."""
    depth, begin = 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]
