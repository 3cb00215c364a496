"""How the verbs speak: tables on a terminal, plain columns where rich isn't installed, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Final, TextIO

from locking.inspection.formatting import LONGEST_NAME, cut, duration
from locking.inspection.held import HeldLock, Problem
from locking.inspection.waiting import WaitNode

try:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    HAS_RICH = True
except ImportError:  # a project that uses the app alone may not have it
    HAS_RICH = False

Row = Sequence[str]
Cells = tuple[Sequence[str], list[Row]]

COLOURS: Final = {
    "held": "green",
    "expiring": "yellow",
    "over-age": "yellow",
    "gone": "red",
    "unknown": "cyan",
}

COLUMNS: Final[dict[str, Callable[[HeldLock], str]]] = {
    "STATE": attrgetter("state"),
    "NAME": attrgetter("name"),
    "KIND": attrgetter("kind"),
    "BACKEND": attrgetter("backend"),
    "HOLDER": attrgetter("holder"),
    "HELD": lambda hold: duration(hold.held_for),
    "LEFT": lambda hold: "no end" if hold.remaining is None else duration(hold.remaining),
    "WAITERS": lambda hold: "-" if hold.waiter_count is None else str(hold.waiter_count),
    "TOKEN": lambda hold: str(hold.token or "-"),
}


def cells_of(holds: Iterable[HeldLock], problems: Iterable[Problem] = ()) -> Cells:
    """Return holds as a table, and below them the backends whose holds are not known."""
    rows: list[Row] = [[cut(cell(hold), LONGEST_NAME) for cell in COLUMNS.values()] for hold in holds]
    rest = [""] * (len(COLUMNS) - 4)
    rows += [["unknown", each.message, "", each.backend, *rest] for each in problems]
    return list(COLUMNS), rows


def lines_of_trees(trees: Iterable[WaitNode], depth: int = 0) -> Iterator[str]:
    """Yield who waits for whom, each waiter indented below the one that it waits for."""
    for node in trees:
        yield printable("  " * depth + _line_of(node))
        yield from lines_of_trees(node.behind, depth + 1)


def _line_of(node: WaitNode) -> str:
    if node.again:
        return f"{node.who} (the circle closes here)"
    what = (
        f" waits {duration(node.waiter.waited)} for {cut(node.waiter.name, LONGEST_NAME)}"
        if node.waiter
        else ""
    )
    blocks = f" blocks {node.blocked} for {duration(node.longest)}" if node.behind else ""
    names = "" if node.waiter or not node.holds else f" with {cut(node.name, LONGEST_NAME)}"
    where = "".join(f", {part}" for part in (node.doing, node.site) if part)
    return f"{node.who}{' DEADLOCK' if node.deadlocked else ''}{what}{blocks}{names}{where}"


def dumps(value: Any) -> str:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def print_table(out: TextIO, cells: Cells) -> None:
    """Print a table: with rich on a terminal, as plain columns into a file, which has no edge to fold at."""
    if HAS_RICH and out.isatty():
        Console(file=out, highlight=False).print(rich_table(cells))
    else:
        out.write(plain(cells) + "\n")


def rich_table(cells: Cells) -> Any:
    """Return a table for rich. Names are data, never markup."""
    columns, rows = cells
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("STATE", "HELD", "LEFT"))
    for row in rows:
        table.add_row(*(Text(printable(cell), style=COLOURS.get(cell, "")) for cell in row))
    return table


def plain(cells: Cells) -> str:
    """Return the columns padded to their widest."""
    columns, rows = cells
    lines = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return `text` without what a terminal would obey: a lock may have any name."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


@contextmanager
def screen(out: TextIO) -> Iterator[Callable[[Cells], None]]:
    """Yield a function that redraws a table in place, or prints each below the last where it can't."""
    if not (HAS_RICH and out.isatty()):
        yield partial(print_table, out)
        return
    with Live(console=Console(file=out, highlight=False), auto_refresh=False, screen=True) as live:
        yield lambda cells: live.update(rich_table(cells), refresh=True)
