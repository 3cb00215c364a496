"""A row of the held list: what is known of one hold and its waiters, and the one table of how it is shown.

The admin's list and page of a lock, `manage.py locks` and the JSON of both read `COLUMNS`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from locking.backends.base import Held
from locking.core.kinds import LABELS

HELD: Final = "held"
EXPIRING: Final = "expiring"
OVER_AGE: Final = "over-age"
GONE: Final = "gone"
STATES: Final = {HELD: _("held"), EXPIRING: _("expiring"), OVER_AGE: _("over-age"), GONE: _("holder gone")}
"""Held; about to end; held for suspiciously long; its process shows no sign of life. Each with its name."""

EXPIRING_WITHIN: Final = 3.0
"""Seconds left of a lease that count as *expiring*, or half of a shorter lease. A renewed one has more: it is
renewed when a third is over, and may be as short as 5 s."""

OLD: Final = 600.0  # seconds held that count as *over-age*

SILENT: Final = 10.0
"""Seconds without a sign of life after which a process counts as gone; it gives one every two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One who has waited for a lock for a while, as its process published it."""

    id: str  #: unique to this wait
    backend: str  #: alias in `LOCKING` of the lock that is waited for
    kind: str  #: of that lock
    key: str  #: of that lock
    name: str  #: of that lock
    since: float  #: Unix time at which it began, by its process's clock; only compared with others
    #: seconds since it began, whatever its clock says, as its process measured them, and the time since that
    #: was published, by the backend's clock. ZooKeeper and etcd don't tell the latter, up to 2 s
    waited: float
    permits: int | None = None  #: of the semaphore; None for other kinds, and where its process doesn't tell
    host: str | None = None  #: its machine
    pid: int | None = None  #: its process
    thread: str | None = None  #: its thread or task
    doing: str | None = None  #: the request's path or the task's id
    site: str | None = None  #: file, line and function where the lock is wanted
    holds: tuple[tuple[str, str, str], ...] = ()  #: alias and owner of what it holds meanwhile, and the name

    @property
    def who(self) -> str:
        """Host, pid and thread of the waiter, joined by colons, as far as known."""
        return _joined_by_colons(self.host, self.pid, self.thread)

    @property
    def owners(self) -> set[tuple[str, str]]:
        """Alias and owner of what it holds."""
        return {(alias, owner) for alias, owner, _ in self.holds}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLock(Held):
    """One hold and its holder: what its backend and its process tell; what is unknown is None.

    Its `since` is by the backend's clock; where that doesn't know it, by the holder's, or when its place in
    the queue was taken.
    """

    backend: str  #: alias in `LOCKING`
    name: str  #: what is locked, as its user named it
    held_for: float | None = None  #: seconds since the grant
    ttl: float | None = None  #: seconds of the lease when it was taken or last extended
    renewals: int | None = None  #: how often the watchdog has prolonged it
    host: str | None = None  #: the holder's machine
    pid: int | None = None  #: its process there
    thread: str | None = None  #: its thread or task
    program: str | None = None  #: what the process was started as
    started: float | None = None  #: the Unix time at which the process began to lock
    doing: str | None = None  #: the request's path or the task's id
    site: str | None = None  #: file, line and function where the lock was taken
    #: seconds since the process's last sign of life; None too where the engine ends what a dead process holds
    silent: float | None = None
    waiting: tuple[Waiter, ...] = ()  #: the waiters that processes have named, the longest waiting first

    @property
    def state(self) -> str:
        """One of `STATES`: the most alarming that is true."""
        if self.silent is not None and self.silent > SILENT:
            return GONE
        if self.held_for is not None and self.held_for >= OLD:
            return OVER_AGE
        if self.remaining is not None and self.remaining <= min(EXPIRING_WITHIN, (self.ttl or math.inf) / 2):
            return EXPIRING
        return HELD

    @property
    def waiter_count(self) -> int | None:
        """How many wait: as the engine counts them, or at least as many as their processes have named; None
        where neither says so.
        """
        return max(self.waiters or 0, len(self.waiting)) if self.waiting else self.waiters

    @property
    def next_waiter(self) -> Waiter | None:
        """The waiter that a release lets go on, as far as processes have named themselves."""
        return self.waiting[0] if self.waiting else None

    @property
    def waiting_behind(self) -> int:
        """How many wait on when the next one goes on."""
        return max(0, (self.waiter_count or 0) - 1)

    @property
    def holder(self) -> str:
        """Host, pid and thread, joined by colons, where the process has published them; else the owner."""
        return self.owner if self.host is None else _joined_by_colons(self.host, self.pid, self.thread)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        plain = dataclasses.asdict(self)
        return {each.name: plain.get(each.name, getattr(self, each.name)) for each in COLUMNS}


def _joined_by_colons(*parts: object) -> str:
    return ":".join(str(part) for part in parts if part is not None)


LONGEST_NAME: Final = 80  # characters of a lock's name that a list shows; its own page shows all of it


def visible(text: str) -> str:
    """Return a text in which control and format characters are seen: one could turn it round, or be obeyed
    by a terminal.

    Example:
        >>> visible("a\u202eb")
        'a⟨U+202E⟩b'
    """
    return "".join(letter if letter.isprintable() else f"⟨U+{ord(letter):04X}⟩" for letter in text)


def shortened(text: str) -> str:
    """Return a text as a list shows it: visible, and cut in the middle, for its end tells names apart."""
    shown = visible(text)
    if len(shown) <= LONGEST_NAME:
        return shown
    half = (LONGEST_NAME - 1) // 2
    return f"{shown[: LONGEST_NAME - 1 - half]}…{shown[-half:]}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: 12.3 s, 4 min 10 s, 2 h 5 min, 3 d 1 h."""
    if seconds < 0.1:
        return gettext("%.1f ms") % (seconds * 1000)
    if seconds < 60:
        return gettext("%.1f s") % seconds
    minutes, whole = divmod(int(seconds), 60)
    if seconds < 3600:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": whole}
    hours, minutes = divmod(minutes, 60)
    if seconds < 86400:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes}
    return gettext("%(days)d d %(hours)d h") % {"days": hours // 24, "hours": hours % 24}


def age(moment: float) -> str:
    """Return how long ago a Unix time was."""
    return gettext("%s ago") % duration(max(0.0, time.time() - moment))  # noqa: TID251 shown


PUBLISHED: Final = ("ttl", "renewals", "host", "pid", "thread", "program", "started", "doing", "site")
"""What the holder's process tells of it."""


class Column(NamedTuple):
    """One thing that is known of a hold, and how it is shown."""

    name: str  # the attribute of `HeldLock`, and the key in JSON
    label: Any = ""  # what people call it; without one only programs are shown it
    as_text: Callable[[Any], Any] = str  # makes of its value what people read
    unknown: Any = None  # what they read where the value is None
    heading: str = ""  # above it in `manage.py locks list`; without one that leaves it out
    small: bool = False  # the admin's list shows it in small print, below the column before it

    def text(self, hold: HeldLock) -> Any:
        """Return what people read of this hold."""
        value = getattr(hold, self.name)
        return self.unknown if value is None else self.as_text(value)


COLUMNS: Final = (
    Column("state", _("state"), STATES.__getitem__, heading="STATE"),
    Column("name", _("name"), visible, heading="NAME"),
    Column("kind", _("kind"), LABELS.__getitem__, heading="KIND", small=True),
    Column("backend", _("backend"), heading="BACKEND", small=True),
    Column("waiter_count", _("waiters"), heading="WAITERS"),
    Column("holder", _("holder"), visible, heading="HOLDER"),
    Column("doing", _("at work on"), visible, small=True),
    Column("held_for", _("held for"), duration, heading="HELD"),
    Column("remaining", _("left of the lease"), duration, unknown=_("no end"), heading="LEFT"),
    Column("ttl", _("length of the lease"), duration),
    Column("renewals", _("renewals")),
    Column("token", _("fencing token"), lambda token: str(token) if token else None, heading="TOKEN"),
    Column("key", _("key"), visible),
    Column("site", _("taken at"), visible),
    Column("program", _("program"), visible),
    Column("started", _("process began"), age),
    Column("silent", _("last sign of life"), lambda seconds: _("%s ago") % duration(seconds)),
    Column("owner", _("owner")),
    Column("count", _("hold count")),
    *map(Column, ("since", "host", "pid", "thread", "waiters", "waiting")),
)


def facts(hold: HeldLock) -> list[tuple[Any, Any]]:
    """Return the labels and values of one hold, below its name; what isn't known is None."""
    return [(each.label, each.text(hold)) for each in COLUMNS if each.label and each.name != "name"]
