"""What a statement of SQL does, as far as a race needs it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_NAME: Final = r'[`"\[]?(?:\w+[`"\]]?\.[`"\[]?)?(\w+)[`"\]]?'
_WRITES: Final = (
    re.compile(
        rf"\bUPDATE\s+(?:ONLY\s+)?{_NAME}(?:\s+(?:AS\s+)?\w+)?\s+SET\s+(?P<set>.*)", re.IGNORECASE | re.DOTALL
    ),
    re.compile(rf"\bINSERT\s+(?:OR\s+\w+\s+|IGNORE\s+)?INTO\s+{_NAME}", re.IGNORECASE),
    re.compile(rf"\bDELETE\s+FROM\s+{_NAME}", re.IGNORECASE),
)
_READS: Final = re.compile(rf"\b(?:FROM|JOIN)\s+{_NAME}", re.IGNORECASE)
_COLUMN: Final = re.compile(r'[`"\[]?(\w+)[`"\]]?\s*=')


class Statement(NamedTuple):
    """The tables that a statement reads, the one that it writes, and the columns that it sets."""

    reads: frozenset[str]
    writes: str = ""
    sets: frozenset[str] = frozenset()


def parse(sql: str) -> Statement:
    """Return what `sql` does; what isn't understood does nothing."""
    for pattern in _WRITES:
        if found := pattern.search(sql):
            return Statement(frozenset(), found[1], _columns(found.groupdict().get("set") or ""))
    if sql.lstrip(" (\n").upper().startswith(("SELECT", "WITH")):
        return Statement(frozenset(_READS.findall(sql)))
    return Statement(frozenset())


def _columns(assignments: str) -> frozenset[str]:
    assigned = re.split(r"\bWHERE\b", assignments, maxsplit=1, flags=re.IGNORECASE)[0]
    return frozenset(_COLUMN.findall(assigned))
