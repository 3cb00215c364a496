"""How the verbs speak: tables on a terminal, plain columns where rich isn't installed, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TextIO

from locking.inspection.columns import COLUMNS, Column, HeldLock
from locking.inspection.formatting import LONGEST_NAME, cut, duration, shortened, visible
from locking.inspection.held import Problem
from locking.inspection.waiting import WaitNode

try:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    HAS_RICH = True
except ImportError:  # a project that uses the app alone may not have it
    HAS_RICH = False

Cells = tuple[Sequence[str], list[Sequence[str]]]

COLOURS: Final = {
    "held": "green",
    "expiring": "yellow",
    "over-age": "yellow",
    "gone": "red",
    "unknown": "cyan",
}

LISTED: Final = [column for column in COLUMNS if column.heading]


def cells_of(holds: Iterable[HeldLock], problems: Iterable[Problem] = ()) -> Cells:
    """Return holds as a table, and below them the backends whose holds are not known."""
    rows: list[Sequence[str]] = [[_cell(column, hold) for column in LISTED] for hold in holds]
    for problem in problems:
        known = {"state": "unknown", "name": visible(problem.message), "backend": problem.backend}
        rows.append([known.get(column.name, "") for column in LISTED])
    return [column.heading for column in LISTED], rows


def _cell(column: Column, hold: HeldLock) -> str:
    if column.name in ("state", "kind"):  # the words that the options of these names take
        return str(getattr(hold, column.name))
    text = column.text(hold)
    return "-" if text is None else shortened(str(text))


def lines_of_trees(trees: Iterable[WaitNode], depth: int = 0) -> Iterator[str]:
    """Yield who waits for whom, each waiter indented below the one that it waits for."""
    for node in trees:
        yield "  " * depth + visible(_line_of(node))
        yield from lines_of_trees(node.behind, depth + 1)


def _line_of(node: WaitNode) -> str:
    if node.again:
        return f"{node.who} (the circle closes here)"
    parts = [f"{node.who}{' DEADLOCK' if node.deadlocked else ''}"]
    if node.waiter:
        parts.append(f"waits {duration(node.waiter.waited)} for {cut(node.waiter.name, LONGEST_NAME)}")
    if node.behind:
        parts.append(f"blocks {node.blocked} for {duration(node.longest)}")
    if not node.waiter:
        parts.append(f"with {cut(node.name, LONGEST_NAME)}")
    return ", ".join([" ".join(parts), *filter(None, (node.doing, node.site))])


def dumps(value: Any) -> str:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def print_table(out: TextIO, cells: Cells) -> None:
    """Print a table: with rich on a terminal, as plain columns into a file, which has no edge to fold at."""
    if HAS_RICH and out.isatty():
        Console(file=out, highlight=False).print(rich_table(cells))
        return
    lines = [cells[0], *cells[1]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        out.write("  ".join(padded).rstrip() + "\n")


def rich_table(cells: Cells) -> Any:
    """Return a table for rich. Names are data, never markup."""
    headings, rows = cells
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("STATE", "HELD", "LEFT"))
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    return table


@contextmanager
def screen(out: TextIO) -> Iterator[Callable[[Cells], None]]:
    """Yield a function that redraws a table in place, or prints each below the last where it can't."""
    if not (HAS_RICH and out.isatty()):
        yield partial(print_table, out)
        return
    with Live(console=Console(file=out, highlight=False), auto_refresh=False, screen=True) as live:
        yield lambda cells: live.update(rich_table(cells), refresh=True)
