"""How the verbs speak: tables, by rich where it is installed, trees of waiters, lines about one lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final, TextIO

from django.db import DatabaseError

from locking.core.handler import DEFAULT_ALIAS, locks
from locking.exceptions import LockNotSupported
from locking.inspection.columns import COLUMNS, Column, HeldLock, duration, facts, shortened, visible
from locking.inspection.held import Problem, holds_of
from locking.inspection.waiting import WaitNode
from locking.keys.names import check_name
from locking.models import Fence, LockEvent
from locking.utils.databases import fence_name

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

LAST_EVENTS: Final = 10

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
        parts.append(f"waits {duration(node.waiter.waited)} for {shortened(node.waiter.name)}")
    if node.behind:
        parts.append(f"blocks {node.blocked} for {duration(node.longest)}")
    if not node.waiter:
        parts.append(f"with {shortened(node.name)}")
    return ", ".join([" ".join(parts), *filter(None, (node.doing, node.site))])


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


@dataclass(slots=True)
class Picture:
    """Everything that is known of one lock."""

    name: str
    key: str
    backend: str
    holds: list[HeldLock] = field(default_factory=list)
    fence: Mapping[str, Any] | None = None  # its row
    events: list[dict[str, Any]] = field(default_factory=list)  # what operators did to it, the latest first
    unknown: list[str] = field(default_factory=list)  # what could not be asked for

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {**asdict(self), "holds": [hold.as_dict() for hold in self.holds]}


def picture_of(name: str, alias: str | None) -> Picture:
    """Ask for everything that is known of one lock; LockKeyError: the name can't be one."""
    backend = locks[alias or DEFAULT_ALIAS]
    picture = Picture(name, backend.key(check_name(name)), backend.alias)
    try:
        picture.holds = holds_of(name, backend=backend.alias)
    except LockNotSupported as error:
        picture.unknown.append(f"{error}: only its owner is known")
        if (holder := backend.holder(picture.key)) is not None:
            known: dict[str, Any] = {name: getattr(holder, name) for name in ("owner", "count", "remaining")}
            picture.holds = [HeldLock(backend=backend.alias, name=name, key=picture.key, **known)]
    try:
        names = {fence_name(picture.key, vendor) for vendor in ("postgresql", "mysql")}
        picture.fence = Fence.objects.filter(name__in=names).values("token", "owner", "updated_at").first()
        events = LockEvent.objects.filter(backend=backend.alias, key=picture.key)
        wanted = ("at", "action", "done", "actor", "reason", "owner")
        picture.events = list(events.values(*wanted)[:LAST_EVENTS])
    except DatabaseError as error:
        picture.unknown.append(f"the database could not be asked for the fence and events: {error}")
    return picture


def lines_of(picture: Picture) -> Iterator[str]:
    """Yield a lock as lines of text."""
    yield line("lock", picture.name)
    if not picture.holds:
        yield line("key", f"{picture.key} on backend {picture.backend}")
        yield line("state", "free")
    for hold in picture.holds:
        yield from lines_of_hold(hold)
    if fence := picture.fence:
        yield line("fence", f"token {fence['token']} of {fence['owner']}, {_moment(fence['updated_at'])}")
    for event in picture.events:
        done = "" if event["done"] else " (nothing was done)"
        who = f"{event['action']} by {event['actor']}{done}"
        yield line("event", f"{_moment(event['at'])} {who}: {event['reason']}")


def lines_of_hold(hold: HeldLock) -> Iterator[str]:
    """Yield a hold as lines of text; what isn't known is left out."""
    yield from (line(label, value) for label, value in facts(hold) if value is not None)
    for each in hold.waiting:
        where = "".join(f", {part}" for part in (each.doing, each.site) if part)
        yield line("waits", f"{each.who} for {duration(each.waited)}{where}")
    if hold.next_waiter is not None:
        behind = f"; waiters behind it: {hold.waiting_behind}" if hold.waiting_behind else ""
        yield line("release", f"lets {hold.next_waiter.who} go on{behind}")


def line(label: object, value: object) -> str:
    """Return a fact as a line, its values one below the other."""
    return f"{label!s:<20}{value}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"
