"""`locks list`, `show` and `watch`: what is held, by whom, for how long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from locking.backends.base import BaseLockBackend
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.exceptions import LockNotSupported
from locking.inspection.facts import facts
from locking.inspection.formatting import duration
from locking.inspection.held import HeldLock, holds_of
from locking.keys.names import check_name
from locking.models import Fence, LockEvent
from locking.utils.databases import fence_name

LAST_EVENTS = 10


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is known of one lock: its holds, the row of its fence, what operators did to it (the
    latest first), and what could not be asked for.
    """

    name: str
    key: str
    backend: str
    holds: list[HeldLock]
    fence: dict[str, Any] | None
    events: list[dict[str, Any]]
    unknown: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        return {**asdict(self), "holds": [hold.as_dict() for hold in self.holds]}


def picture_of(name: str, alias: str | None) -> Picture:
    """Ask for everything that is known of one lock.

    Raises:
        LockKeyError: a name that can't be one. BackendUnavailable: the backend doesn't answer.
    """
    backend = locks[alias or DEFAULT_ALIAS]
    key, unknown = backend.key(check_name(name)), list[str]()
    holds = _holds(backend, name, key, unknown)
    fence, events = _from_database(key, backend.alias, unknown)
    return Picture(name, key, backend.alias, holds, fence, events, unknown)


def _holds(backend: BaseLockBackend, name: str, key: str, unknown: list[str]) -> list[HeldLock]:
    """Return the holds; a backend that can't list can still name a lock's holder."""
    try:
        return holds_of(name, backend=backend.alias)
    except LockNotSupported as error:
        unknown.append(f"{error}: only its owner is known")
    holder = backend.holder(key)
    if holder is None:
        return []
    known = {"count": holder.count, "remaining": holder.remaining}
    return [HeldLock(backend=backend.alias, name=name, key=key, kind="lock", owner=holder.owner, **known)]  # type: ignore[arg-type]


def _from_database(
    key: str, alias: str, unknown: list[str]
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the lock's fence and its last events; without a database note what is unknown."""
    try:
        names = {fence_name(key, vendor) for vendor in ("postgresql", "mysql")}
        fences = Fence.objects.filter(name__in=names).values("token", "owner", "updated_at")
        events = LockEvent.objects.filter(backend=alias, key=key).values(
            "at", "action", "done", "actor", "reason", "owner"
        )
        return next((dict(each) for each in fences), None), [dict(each) for each in events[:LAST_EVENTS]]
    except DatabaseError as error:
        unknown.append(f"the database could not be asked for the fence and events: {error}")
        return None, []


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
