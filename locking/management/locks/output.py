"""How the verbs speak: tables, trees of waiters, lines about one lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from shutil import get_terminal_size
from typing import Any, Final
from unicodedata import east_asian_width

from django.core.management.base import OutputWrapper
from django.core.management.color import Style
from django.db import DatabaseError

from locking.core.handler import DEFAULT_ALIAS, locks
from locking.exceptions import LockNotSupported
from locking.inspection.columns import COLUMNS, Column, HeldLock, duration, facts, shortened, visible
from locking.inspection.held import Problem, WaitNode, holds_of
from locking.keys.names import check_name
from locking.models import Fence, LockEvent
from locking.utils.databases import fence_name

Cells = tuple[Sequence[str], Sequence[Sequence[str]]]

CLEAR: Final = "\x1b[H\x1b[J"  # to the upper left corner, and nothing from there on

# Django's name for the color of each state.
COLORS: Final = {
    "held": "SUCCESS",
    "expiring": "WARNING",
    "over-age": "WARNING",
    "gone": "ERROR",
    "unknown": "NOTICE",
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


def print_table(out: OutputWrapper, cells: Cells, style: Style, *, redraw: bool = False) -> None:
    """Print a table in columns, the first with Django's colors on a terminal, which `redraw` clears before.

    What doesn't fit there is cut off then: the list begins with what matters most.
    """
    lines, is_terminal = [cells[0], *cells[1]], out.isatty()
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    pairs = (zip(line, widths, strict=True) for line in lines)
    texts = [
        "  ".join(text + " " * (width - _width(text)) for text, width in pair).rstrip() for pair in pairs
    ]
    if is_terminal and redraw:
        columns, rows = get_terminal_size()
        out.write(CLEAR, str, ending="")
        texts = [text[:columns] for text in texts[: rows - 1]]
    for (first, *_), text in zip(lines, texts, strict=False):
        color = getattr(style, COLORS.get(first, ""), str) if is_terminal else str
        out.write(f"{color(text[: len(first)])}{text[len(first) :]}", str)  # stderr's own color is an error's


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese letters are two wide."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)


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
