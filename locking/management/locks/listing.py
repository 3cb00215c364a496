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
from locking.inspection.held import HeldLock, holds_of
from locking.keys.names import check_name
from locking.management.locks.output import seconds
from locking.models import Fence, LockEvent
from locking.utils.databases import fence_name

LAST_EVENTS = 10


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is known of one lock.

    Attributes:
        name: the lock's name.
        key: where the backend keeps it.
        backend: alias in `LOCKING`.
        holds: its holders: none, one, or several.
        fence: the row of `locking_fence`, if it was ever fenced.
        events: what operators did to it, the latest first.
        unknown: what could not be asked for, and why.
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
    """A backend that can't list can still name a lock's holder."""
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
    yield f"lock      {picture.name}"
    yield f"key       {picture.key} on backend {picture.backend}"
    if not picture.holds:
        yield "state     free"
    for hold in picture.holds:
        yield from lines_of_hold(hold)
    if fence := picture.fence:
        yield f"fence     token {fence['token']} of {fence['owner']}, {_moment(fence['updated_at'])}"
    for event in picture.events:
        done = "" if event["done"] else " (nothing was done)"
        who = f"{event['action']} by {event['actor']}{done}"
        yield f"event     {_moment(event['at'])} {who}: {event['reason']}"


def lines_of_hold(hold: HeldLock) -> Iterator[str]:
    """Yield a hold as lines of text, omitting unknown fields."""
    count = f", held {hold.count} times" if hold.count > 1 else ""
    yield f"state     {hold.state}, {hold.kind}{count}"
    yield f"holder    {hold.holder}"
    yield f"owner     {hold.owner}"
    left, length = seconds(hold.remaining, missing="no end"), seconds(hold.ttl)
    yield f"time      held for {seconds(hold.held_for)}, {left} left of {length}"
    fields = {
        "renewed": None if hold.renewals is None else f"{hold.renewals} times",
        "waiters": hold.waiters,
        "token": hold.token or None,
        "doing": hold.doing,
        "taken at": hold.site,
    }
    for what, value in fields.items():
        if value is not None:
            yield f"{what:<9} {value}"
    for each in hold.waiting:
        where = "".join(f", {part}" for part in (each.doing, each.site) if part)
        yield f"waits     {each.who} for {seconds(each.waited)}{where}"
    if hold.next_waiter is not None:
        behind = f"; {hold.waiting_behind} more wait behind it" if hold.waiting_behind else ""
        yield f"release   lets {hold.next_waiter.who} go on{behind}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}"
