"""The table of what was seen: `python -m histories.table` writes it from `seen.json` into the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from histories.systems import SYSTEMS

SEEN: Final = Path(__file__).parent / "seen.json"
PAGE: Final = Path(__file__).parent.parent / "docs/library/explanation/partitions.md"
BEGIN, END = "<!-- written by python -m histories.table -->", "<!-- end -->"
HEAD: Final = (
    "| fault | operations | seconds with a grant | longest wait for the next holder | two holders"
    " | `get_lock` | `locked_transaction` | `fenced=True` |\n|---|---:|---:|---:|---|---|---|---|"
)
LOCKS: Final = ("lock", "semaphore", "read_write")
LABELS: Final = {"bare": "`get_lock`", "confirmed": "`locked_transaction`", "read_write": "read-write"}
NO_WAY: Final = {("advisory", "owner"), ("rowlock", "owner"), ("rowlock", "lease")}
"""Mistakes that can't be made: the lock is one session's or transaction's, and ends with it."""

Seen = dict[str, Any]


def load(path: Path = SEEN) -> list[Seen]:
    """Return the cells that a run has written."""
    cells: list[Seen] = json.loads(path.read_text())
    return cells


def said(cell: Seen, kind: str) -> str:
    """Return what is known of one register: lost writes, none, or that it wasn't judged."""
    verdict = cell["verdicts"].get(kind)
    if verdict is None:
        return "—"
    if verdict == "Illegal":
        return f"**{cell['figures']['lost'].get(kind, 0) or 'order'} lost**".replace(
            "order lost", "out of order"
        )
    return "none lost" if verdict == "Ok" else "not judged"


def holders(cell: Seen) -> str:
    """Return which locks had two holders at a time."""
    verdicts = {kind: cell["verdicts"][kind] for kind in LOCKS if kind in cell["verdicts"]}
    found = [kind.replace("_", "-") for kind, verdict in verdicts.items() if verdict == "Illegal"]
    if found:
        return f"**{', '.join(found)}**"
    if not verdicts:
        return "—"
    return "none" if set(verdicts.values()) == {"Ok"} else "not judged"


def row(cell: Seen) -> str:
    """Return a row of a system's table."""
    figures = cell["figures"]
    registers = (said(cell, kind) for kind in ("bare", "confirmed", "fenced"))
    shown = (
        cell["nemesis"].replace("-", " "),
        f"{figures['operations']:,}",
        f"{figures['availability']:.0%}",
        f"{figures['next_holder']:.1f} s",
        holders(cell),
        *registers,
    )
    return f"| {' | '.join(shown)} |"


def tables(cells: Iterable[Seen]) -> str:
    """Return a table for each system."""
    sound = [cell for cell in cells if not cell["wrong"]]
    parts = []
    for name, system in SYSTEMS.items():
        rows = [row(cell) for cell in sound if cell["system"] == name]
        if rows:
            parts.append("\n".join([f"### {system.name}\n", HEAD, *rows]))
    return "\n\n".join(parts)


MISTAKES: Final = {
    "lock": ("no lock", ("bare", "confirmed")),
    "lease": ("an ended lease believed in", LOCKS),
    "owner": ("another holder released", LOCKS),
}
"""What a wrong lock does, and where that has to be found: a frozen holder spoils the others anyway."""


def mistakes(cells: Iterable[Seen]) -> str:
    """Return the table of the wrong locks: by system, in which histories each mistake was found."""
    found: dict[tuple[str, str], set[str]] = {}
    for cell in cells:
        if cell["wrong"]:
            kinds = MISTAKES[cell["wrong"]][1]
            impossible = {kind for kind in kinds if cell["verdicts"].get(kind) == "Illegal"}
            found.setdefault((cell["system"], cell["wrong"]), set()).update(impossible)
    names = [name for name, _ in MISTAKES.values()]
    lines = [f"| system | {' | '.join(names)} |\n|---|---|---|---|"]
    for system in dict.fromkeys(system for system, _ in found):
        shown = [_found(found.get((system, wrong)), (system, wrong) in NO_WAY) for wrong in MISTAKES]
        lines.append(f"| {SYSTEMS[system].name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _found(impossible: set[str] | None, no_way: bool) -> str:
    if no_way:
        return "can't be made"
    if impossible is None:
        return "not run"
    return ", ".join(sorted(LABELS.get(kind, kind) for kind in impossible)) or "not found"


def page(text: str, cells: Sequence[Seen]) -> str:
    """Return the page's text with the tables in their places: what was seen, and the mistakes found."""
    both = iter([tables(cells), mistakes(cells)])
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n\n{next(both)}\n\n{END}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), load()))
