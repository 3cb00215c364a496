"""The tables of what was seen: `python -m histories.table` writes page and file from `seen.json`."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from histories.nemeses import NEMESES
from histories.systems import SYSTEMS

SEEN: Final = Path(__file__).parent / "seen.json"
PAGE: Final = Path(__file__).parent.parent / "docs/library/explanation/partitions.md"
CELLS: Final = PAGE.with_suffix(".csv")
BEGIN, END = "<!-- written by python -m histories.table -->", "<!-- end -->"
LOCKS: Final = ("lock", "renewed", "semaphore", "read_write")
UNFENCED: Final = ("bare", "confirmed")
LABELS: Final = {
    "bare": "get_lock",
    "confirmed": "locked_transaction",
    "fenced": "fenced=True",
    "read_write": "read-write",
    "renewed": "renewed lock",
}
COLUMNS: Final = (
    *("system", "fault", "mistake", "seed", "seconds", "times", "operations", "without an answer"),
    *("seconds with a grant", "longest wait for the next holder (s)", "two holders"),
    *(f"lost: {LABELS[kind]}" for kind in (*UNFENCED, "fenced")),
    *("mistake found in", "what was drawn"),
)
"""Of the file beside the page, which has a line for each cell."""

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


def lost(cell: Seen, *kinds: str) -> str:
    """Return how many writes were lost: of these registers, those that were judged."""
    verdicts = [cell["verdicts"][kind] for kind in kinds if kind in cell["verdicts"]]
    if not verdicts:
        return "–"
    if not {"Ok", "Illegal"}.issuperset(verdicts):
        return "?"
    found = sum(cell["figures"]["lost"].get(kind, 0) for kind in kinds)
    return str(found) if found or "Illegal" not in verdicts else "order"


def holders(cell: Seen) -> list[str] | None:
    """Return which locks had two holders at a time; None = not every one was judged."""
    verdicts = {kind: cell["verdicts"][kind] for kind in LOCKS if kind in cell["verdicts"]}
    found = [LABELS.get(kind, kind) for kind, verdict in verdicts.items() if verdict == "Illegal"]
    return found if found or {"Ok"}.issuperset(verdicts.values()) else None


def entry(cell: Seen | None) -> str:
    """Return a cell of the page: lost without and with a fence, two holders, the longest wait."""
    if cell is None:
        return ""
    without, behind, held = lost(cell, *UNFENCED), lost(cell, "fenced"), holders(cell)
    mark = "?" if held is None else "†" if held else ""
    figures = f"{without}{mark}/{behind}"
    shown = figures if without in "0–" and behind in "0–" and not mark else f"**{figures}**"
    return f"{shown}, {cell['figures']['next_holder']:.1f} s"


def tables(cells: Iterable[Seen]) -> str:
    """Return the page's table: a line for each fault, a column for each system."""
    of = {(cell["system"], cell["nemesis"]): cell for cell in cells if not cell["wrong"]}
    systems = [name for name in SYSTEMS if any(name == system for system, _ in of)]
    lines = [
        f"| fault | {' | '.join(SYSTEMS[name].name for name in systems)} |\n|---|{'---|' * len(systems)}"
    ]
    for nemesis in NEMESES:
        if any(nemesis == ran for _, ran in of):
            shown = (entry(of.get((system, nemesis))) for system in systems)
            lines.append(f"| {nemesis.replace('-', ' ')} | {' | '.join(shown)} |")
    return "\n".join(lines)


def listed(cells: Iterable[Seen]) -> str:
    """Return every cell with everything that is known of it, as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        figures, held = cell["figures"], holders(cell)
        mistake = MISTAKES.get(cell["wrong"])
        writer.writerow([
            *(SYSTEMS[cell["system"]].name, cell["nemesis"], mistake.label if mistake else ""),
            *(cell["seed"], cell["seconds"], len(cell["faults"]), figures["operations"], figures["unknown"]),
            *(f"{figures['availability']:.0%}", figures["next_holder"]),
            "not judged" if held is None else ", ".join(held),
            *(lost(cell, kind) for kind in (*UNFENCED, "fenced")),
            ", ".join(found_in(cell)) if mistake else "",
            "; ".join(cell["faults"]),
        ])  # fmt: skip
    return text.getvalue()


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
    """Return the table of the wrong locks: by system, after how many seconds each mistake was found."""
    of = {(cell["system"], cell["wrong"]): cell for cell in cells if cell["wrong"]}
    labels = " | ".join(mistake.label for mistake in MISTAKES.values())
    lines = [f"| system | {labels} |\n|---|{'---|' * len(MISTAKES)}"]
    for system in SYSTEMS:
        if any(name == system for name, _ in of):
            shown = [found(system, wrong, of.get((system, wrong))) for wrong in MISTAKES]
            lines.append(f"| {SYSTEMS[system].name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def found_in(cell: Seen) -> list[str]:
    """Return the histories that its mistake had to make impossible, and has."""
    kinds = MISTAKES[cell["wrong"]].kinds
    return [LABELS.get(kind, kind) for kind in kinds if cell["verdicts"].get(kind) == "Illegal"]


def found(system: str, wrong: str, cell: Seen | None) -> str:
    """Return how many seconds the clients had run when a mistake was found."""
    if (system, wrong) in NO_WAY:
        return "can't be made"
    if cell is None:
        return "not run"
    return f"{cell['seconds']:.0f} s" if found_in(cell) else "not found"


def page(text: str, cells: Sequence[Seen]) -> str:
    """Return the page's text with the tables in their places: what was seen, and the mistakes found."""
    both = iter([tables(cells), mistakes(cells)])
    between = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: f"{BEGIN}\n\n{next(both)}\n\n{END}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), load()))
    CELLS.write_text(listed(load()))
