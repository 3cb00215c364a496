"""`locks show`: everything that is known of one lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from locking.core.handler import DEFAULT_ALIAS, locks
from locking.exceptions import LockNotSupported
from locking.inspection.columns import HeldLock, facts
from locking.inspection.formatting import duration
from locking.inspection.held import holds_of
from locking.keys.names import check_name
from locking.models import Fence, LockEvent
from locking.utils.databases import fence_name

LAST_EVENTS = 10


@dataclass(slots=True)
class Picture:
    """Everything that is known of one lock: its holds, the row of its fence, what operators did to it (the
    latest first), and what could not be asked for.
    """

    name: str
    key: str
    backend: str
    holds: list[HeldLock] = field(default_factory=list)
    fence: dict[str, Any] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {**asdict(self), "holds": [hold.as_dict() for hold in self.holds]}


def picture_of(name: str, alias: str | None) -> Picture:
    """Ask for everything that is known of one lock.

    Raises:
        LockKeyError: a name that can't be one. BackendUnavailable: the backend doesn't answer.
    """
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
