"""The plots of *How fast is it?*, drawn from the tables of the measurements."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from shapes import Bar, bars

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "benchmarks" / "notebook.md"
SHOP = ROOT / "docs" / "contributing" / "shop-figures.md"
ENGINES = ROOT / "docs" / "library" / "reference" / "backends" / "index.md"


def column(page: Path, header: str, number: int, unit: str) -> list[Bar]:
    """Return the numbers of a column of the table whose head contains `header`."""
    lines = page.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("|") and header in line) + 2
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return [bar for row in rows if (bar := _bar(row.strip("|").split("|"), number, unit))]


def _bar(cells: list[str], number: int, unit: str) -> Bar | None:
    """Return the bar of a row, or None where its cell has no number."""
    shown = re.match(r"(?:over )?([\d.,]+)", cells[number].strip())
    if shown is None:
        return None
    name = re.sub(r"[*`]| \(.*", "", cells[0].strip())
    words = shown[0] if unit in shown[0] else f"{shown[0]} {unit}"
    return Bar(name, float(shown[1].replace(",", "")), words.strip())


def uncontended() -> str:
    """A free lock, one thread."""
    title = "A free lock, one thread: speed, × plain SET NX"
    return bars(title, column(NOTEBOOK, "new key × floor", 1, ""), ours="holdfast")


def contended() -> str:
    """Many want one lock."""
    title = "Longest wait of 32 workers for one lock of 1 ms"
    return bars(title, column(NOTEBOOK, "2×16 threads × baton", 3, "ms"), ours="holdfast")


def killed() -> str:
    """The lock of a dead holder."""
    title = "Dead holder: its lock is free so long after its lease has ended"
    return bars(title, column(NOTEBOOK, "dead holder: free", 1, "ms"), ours="holdfast")


def engines() -> str:
    """The engines, uncontended."""
    title = "A free lock on each engine: acquire and release"
    return bars(title, column(ENGINES, "uncontended, µs", 1, "µs"), ours="redis")


def checkout() -> str:
    """One hot product."""
    title = "One hot product: orders per second, 32 buyers"
    return bars(title, column(NOTEBOOK, "one product /s", 1, ""), ours="combined")


def steps() -> str:
    """One order."""
    title = "An order by combined, alone in its batch: processor time of the web"
    return bars(title, column(SHOP, "step of an order", 1, "µs"), ours="the batch")


CHARTS = {
    "fast-uncontended.svg": uncontended,
    "fast-contended.svg": contended,
    "fast-killed.svg": killed,
    "fast-engines.svg": engines,
    "fast-checkout.svg": checkout,
    "fast-steps.svg": steps,
}
