"""The table of what was seen: `python -m histories.table` writes it from `seen.json` into the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from histories.systems import SYSTEMS

SEEN: Final = Path(__file__).parent / "seen.json"
PAGE: Final = Path(__file__).parent.parent / "docs/library/explanation/partitions.md"
BEGIN, END = "<!-- written by python -m histories.table -->", "<!-- end -->"
HEAD: Final = (
    "| fault | times | operations | seconds with a grant | longest wait for the next holder | two holders"
    " | `get_lock` | `locked_transaction` | `fenced=True` |\n|---|---:|---:|---:|---:|---|---|---|---|"
)
LOCKS: Final = ("lock", "renewed", "semaphore", "read_write")
LABELS: Final = {
    "bare": "`get_lock`",
    "confirmed": "`locked_transaction`",
    "fenced": "`fenced=True`",
    "read_write": "read-write",
    "renewed": "renewed lock",
}
NO_WAY: Final = {
    *(("advisory", mistake) for mistake in ("owner", "fence")),
    *(("rowlock", mistake) for mistake in ("owner", "lease", "fence")),
}
"""Mistakes that can't be made: the lock is one session's or transaction's, ends with it, and has no token."""

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
    found = [LABELS.get(kind, kind) for kind, verdict in verdicts.items() if verdict == "Illegal"]
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
        str(len(cell["faults"])),
        f"{figures['operations']:,}",
        f"{figures['availability']:.0%}",
        f"{figures['next_holder']:.1f} s",
        holders(cell),
        *registers,
    )
    return f"| {' | '.join(shown)} |"


def tables(cells: Iterable[Seen]) -> str:
    """Return a table for each system, and below it what its mixes were."""
    sound = [cell for cell in cells if not cell["wrong"]]
    parts = []
    for name, system in SYSTEMS.items():
        its = [cell for cell in sound if cell["system"] == name]
        if its:
            mixes = [mixed(cell) for cell in its if cell["nemesis"] == "mix"]
            parts += ["\n".join([f"### {system.name}\n", HEAD, *map(row, its)]), *mixes]
    return "\n\n".join(parts)


def mixed(cell: Seen) -> str:
    """Return what a mix was, without the hosts that it chose."""
    drawn = [re.sub(r" \(.*?\)", "", fault).replace("-", " ") for fault in cell["faults"]]
    return f"Mixed, in this order (seed {cell['seed']}): {'; '.join(drawn)}."


class Mistake(NamedTuple):
    """What a wrong lock does, where that has to be found, and under which nemesis it shows."""

    label: str
    kinds: tuple[str, ...]
    nemesis: str


MISTAKES: Final = {
    "lock": Mistake("no lock", ("bare", "confirmed"), "calm"),
    "lease": Mistake("an ended lease believed in", LOCKS, "frozen-holder"),
    "owner": Mistake("another holder released", LOCKS, "frozen-holder"),
    "fence": Mistake("no fence", ("fenced",), "frozen-client"),
}
"""A history that a frozen holder spoils without any mistake is not among those that must show it."""


def mistakes(cells: Iterable[Seen]) -> str:
    """Return the table of the wrong locks: by system, in which histories each mistake was found."""
    of = {(cell["system"], cell["wrong"]): cell for cell in cells if cell["wrong"]}
    labels = " | ".join(mistake.label for mistake in MISTAKES.values())
    lines = [f"| system | {labels} |\n|---|{'---|' * len(MISTAKES)}"]
    for system in SYSTEMS:
        if any(name == system for name, _ in of):
            shown = [found(system, wrong, of.get((system, wrong))) for wrong in MISTAKES]
            lines.append(f"| {SYSTEMS[system].name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def found(system: str, wrong: str, cell: Seen | None) -> str:
    """Return where a mistake was found, and how many seconds the clients had run."""
    if (system, wrong) in NO_WAY:
        return "can't be made"
    if cell is None:
        return "not run"
    kinds = [kind for kind in MISTAKES[wrong].kinds if cell["verdicts"].get(kind) == "Illegal"]
    where = ", ".join(LABELS.get(kind, kind) for kind in kinds)
    return f"{where} ({cell['seconds']:.0f} s)" if kinds else "not found"


def page(text: str, cells: Sequence[Seen]) -> str:
    """Return the page's text with the tables in their places: what was seen, and the mistakes found."""
    both = iter([tables(cells), mistakes(cells)])
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n\n{next(both)}\n\n{END}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), load()))
