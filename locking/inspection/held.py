"""What is held, by whom, and what an operator may do about it: the admin, the command and the metrics ask
here.

A list joins what the backends say (the locks) with the heartbeats of processes
(`locking.inspection.heartbeat`). It is a picture of a moment: an action on a row names the owner that
the row showed, so that a newer holder is never hit.

    page = held_locks("default", prefix="order:", older_than=60)
    for hold in page.rows:
        print(hold.name, hold.state, hold.holder, hold.held_for)
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Final

from django.utils.translation import gettext_lazy as _

from locking.backends.base import BaseLockBackend, Heartbeat, Held
from locking.backends.capabilities import Heartbeats, Listing, backend_of, listing
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.kinds import LABELS
from locking.exceptions import LockError, LockNotSupported
from locking.keys.names import check_name
from locking.utils.ownership import process_of

__all__ = [
    "HeldLock",
    "Page",
    "Waiter",
    "held_locks",
    "holds_of",
    "known_waiters",
    "waiters",
]

logger = logging.getLogger(__name__)

HELD: Final = "held"
EXPIRING: Final = "expiring"
OVER_AGE: Final = "over-age"
GONE: Final = "gone"
STATES: Final = {HELD: _("held"), EXPIRING: _("expiring"), OVER_AGE: _("over-age"), GONE: _("holder gone")}
"""Held; about to end; held for suspiciously long; its process shows no sign of life. Each with its name."""

KINDS: Final = tuple(LABELS)

ORDERS: Final = ("age", "contention", "waiters")

EXPIRING_WITHIN: Final = 3.0
"""Seconds left of a lease that count as *expiring*, or half of a shorter lease. A renewed one has more: it is
renewed when a third is over, and may be as short as 5 s."""

OLD: Final = 600.0
"""Seconds held that count as *over-age*."""

SILENT: Final = 10.0
"""Seconds without a sign of life after which a process counts as gone; it gives one every two."""

MOST_CONTENDED: Final = 20
"""Locks that a list in the order of contention begins with."""

STEP: Final = 200
"""Rows asked of a backend at a time where they must be searched."""

MOST_SEARCHED: Final = 5000
"""Rows that a search looks at, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """One who has waited for a lock for a while, as its process published it.

    Attributes:
        id: unique to this wait.
        backend: alias in `LOCKING` of the lock that is waited for.
        kind, key, name: that lock.
        permits: how many the semaphore has; None for the other kinds, and where its process doesn't tell.
        since: Unix time at which it began, by its process's clock; only compared with others.
        waited: seconds since it began, whatever its clock says: as its process measured them, and the time
            since that was published, by the backend's clock. ZooKeeper and etcd don't tell the latter, up to
            2 s.
        host, pid, thread: machine, process, and thread or task.
        doing: the request's path or the task's id.
        site: file, line and function where the lock is wanted.
        holds: alias and owner of what it holds meanwhile, and the name.
    """

    id: str
    backend: str
    kind: str
    key: str
    name: str
    since: float
    waited: float
    permits: int | None = None
    host: str | None = None
    pid: int | None = None
    thread: str | None = None
    doing: str | None = None
    site: str | None = None
    holds: tuple[tuple[str, str, str], ...] = ()

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

    Attributes:
        backend: alias in `LOCKING`.
        name: what is locked, as its user named it.
        since: Unix time of the grant, by the backend's clock; where that doesn't know it, by the holder's, or
            when its place in the queue was taken.
        held_for: seconds since then.
        ttl: seconds of the lease when it was taken or last extended.
        renewals: how often the watchdog has prolonged it.
        host, pid, thread: the holder's machine, its process there, and its thread or task.
        program, started: what the process was started as, and the Unix time at which it began to lock.
        doing: the request's path or the task's id.
        site: file, line and function where the lock was taken.
        silent: seconds since the process's last sign of life; None too where the engine ends what a dead
            process holds.
        waiting: the waiters that their processes have named, the longest waiting first.
    """

    backend: str
    name: str
    held_for: float | None = None
    ttl: float | None = None
    renewals: int | None = None
    host: str | None = None
    pid: int | None = None
    thread: str | None = None
    program: str | None = None
    started: float | None = None
    doing: str | None = None
    site: str | None = None
    silent: float | None = None
    waiting: tuple[Waiter, ...] = ()

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
        return {**dataclasses.asdict(self), "state": self.state, "holder": self.holder}


def _joined_by_colons(*parts: object) -> str:
    return ":".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a backend's locks are missing from a list.

    Attributes:
        backend: its alias.
        unsupported: it can't list at all; otherwise it didn't answer, or answered with an error.
        message: what it said.
    """

    backend: str
    unsupported: bool
    message: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page of what is held, the oldest first.

    Attributes:
        rows: the holds.
        total: how many there are in all, as far as they were looked at; without filters an estimate, for what
            ended by itself is counted until it is met.
        searched_all: False when a search ended before it had looked at everything.
        problems: the backends that couldn't tell.
    """

    rows: list[HeldLock]
    total: int
    searched_all: bool = True
    problems: list[Problem] = dataclasses.field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every hold that matches is known."""
        return self.searched_all and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return the page as plain values, for JSON."""
        return {
            "total": self.total,
            "complete": self.complete,
            "rows": [hold.as_dict() for hold in self.rows],
            "problems": [{"backend": each.backend, "message": each.message} for each in self.problems],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What a list is narrowed to; see `held_locks`."""

    prefix: str = ""
    without: str = ""
    search: str = ""
    state: str = ""
    kind: str = ""
    host: str = ""
    older_than: float = 0.0

    @property
    def needs_search(self) -> bool:
        """Whether rows must be looked at one by one; a prefix is found by the backend."""
        return self != Filter(prefix=self.prefix)

    def leaves_out(self, name: str) -> bool:
        """Whether the name begins with what isn't wanted."""
        return bool(self.without) and name.startswith(self.without)

    def is_too_young(self, hold: HeldLock) -> bool:
        """Whether it hasn't been held for long enough, or for an unknown time."""
        return bool(self.older_than) and (hold.held_for or 0.0) < self.older_than

    def matches(self, hold: HeldLock) -> bool:
        """Whether the list shows this hold."""
        wanted = ((self.state, hold.state), (self.kind, hold.kind), (self.host, hold.host or ""))
        texts = (hold.name, hold.owner, hold.holder, hold.doing or "", hold.site or "")
        if self.is_too_young(hold) or self.leaves_out(hold.name):
            return False
        if not all(value in ("", fact) for value, fact in wanted):
            return False
        return not self.search or any(self.search in text for text in texts)


def held_locks(
    alias: str | None = None,
    *,
    prefix: str = "",
    without: str = "",
    search: str = "",
    state: str = "",
    kind: str = "",
    host: str = "",
    older_than: float = 0.0,
    offset: int = 0,
    limit: int = 50,
    order: str = "age",
) -> Page:
    """Return a page of what is held, the oldest first. Backends that can't tell are named in `problems`.

    Args:
        alias: of one backend in `LOCKING`; None = all of them.
        prefix: only names that begin with it.
        without: no names that begin with it.
        search: only holds with this text in their name, owner, holder, path, task or place in the code.
        state: one of `STATES`.
        kind: one of `KINDS`.
        host: only holders on this machine.
        older_than: only holds of at least so many seconds.
        offset: rows to pass over.
        limit: the most rows to return.
        order: `age` = the oldest first; `contention` = the same, but its first page begins with the locks
            that processes wait for; `waiters` = those with most waiters first, which looks at every row.

    Raises:
        ValueError: a state, kind or number that there isn't. InvalidLockBackend: `LOCKING` has no such alias.

    Example:
        >>> held_locks("default", state="gone").rows  # doctest: +SKIP
        []
    """
    for what, value, known in (("state", state, STATES), ("kind", kind, KINDS), ("order", order, ORDERS)):
        if value and value not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, not {value!r}")
    if offset < 0 or limit < 0 or older_than < 0:
        raise ValueError(f"offset, limit and older_than can't be negative: {offset}, {limit}, {older_than}")
    wanted = Filter(
        prefix=prefix,
        without=without,
        search=search,
        state=state,
        kind=kind,
        host=host,
        older_than=older_than,
    )
    backends = [locks[alias]] if alias is not None else locks.all()
    if order == "waiters":
        page = _searched(backends, wanted, 0, MOST_SEARCHED)
        rows = sorted(_with_waiters(page.rows), key=lambda hold: -(hold.waiter_count or 0))
        return dataclasses.replace(page, rows=rows[offset : offset + limit])
    if len(backends) == 1 and not wanted.needs_search:
        page = _direct(backends[0], wanted, offset, limit)
    else:
        page = _searched(backends, wanted, offset, limit)
    if order == "contention" and not offset:
        return _contended_first(page, backends, wanted)
    return dataclasses.replace(page, rows=_with_waiters(page.rows))


def _contended_first(page: Page, backends: Iterable[BaseLockBackend], wanted: Filter) -> Page:
    """Put the holds of the most contended locks first; the rest stays in order of age.

    Only those locks are asked for, so that a list of many costs no more than without.
    """
    waiting = _by_lock(_waiters_on(backends, []))
    most = sorted(waiting, key=lambda lock: -len(waiting[lock]))[:MOST_CONTENDED]
    first = [hold for lock in most for hold in _holds(*lock, waiting[lock][0].kind, wanted)]
    shown = {(hold.backend, hold.key, hold.owner) for hold in first}
    rest = [row for row in page.rows if (row.backend, row.key, row.owner) not in shown]
    return dataclasses.replace(page, rows=_named([*first, *rest], waiting))


def _holds(alias: str, key: str, kind: str, wanted: Filter) -> list[HeldLock]:
    """Return those holds of one lock that the list shows. An ordinary lock is asked for its one holder."""
    engine = locks[alias]
    if not key.startswith(engine.key(wanted.prefix)):
        return []
    with suppress(LockError):
        if kind not in ("lock", "fair"):
            found = list(listing(engine).held_as(key))
        else:
            holder = backend_of(engine, kind).holder(key)
            held = None if holder is None else listing(engine).find_held(key, holder.owner, kind)
            found = [] if held is None else [held]
        return [hold for hold in _joined(engine, found) if wanted.matches(hold)]
    return []


def _direct(backend: BaseLockBackend, wanted: Filter, offset: int, limit: int) -> Page:
    """The backend pages by itself."""
    keys = backend.key(wanted.prefix)
    try:
        engine = listing(backend)
        rows = _joined(engine, engine.held(prefix=keys, offset=offset, limit=limit))
        return Page(rows, max(engine.count_held(prefix=keys), offset + len(rows) if rows else 0))
    except LockError as error:
        return Page([], 0, problems=[_problem(backend, error)])


def _searched(backends: Sequence[BaseLockBackend], wanted: Filter, offset: int, limit: int) -> Page:
    """Look at row after row of all backends, the oldest first."""
    problems: list[Problem] = []
    exact = _named_exactly(backends, wanted)
    known = {(hold.backend, hold.key, hold.owner) for hold in exact}
    streams = [_stream(backend, wanted, problems) for backend in backends]
    looked_at = list(islice(heapq.merge(*streams, key=_age), MOST_SEARCHED + 1))
    rest = [hold for hold in looked_at[:MOST_SEARCHED] if wanted.matches(hold)]
    rows = [*exact, *(hold for hold in rest if (hold.backend, hold.key, hold.owner) not in known)]
    return Page(rows[offset : offset + limit], len(rows), len(looked_at) <= MOST_SEARCHED, problems)


def _named_exactly(backends: Iterable[BaseLockBackend], wanted: Filter) -> list[HeldLock]:
    """Return the holds of the very name that is searched, however many others there are."""
    holds: list[HeldLock] = []
    for backend in backends if wanted.search else ():
        with suppress(LockError, ValueError):  # a text that no name can be, or a backend that can't tell
            key = backend.key(check_name(wanted.search))
            holds += _joined(backend, list(listing(backend).held_as(key)))
    return [hold for hold in holds if hold.name.startswith(wanted.prefix) and wanted.matches(hold)]


def _stream(backend: BaseLockBackend, wanted: Filter, problems: list[Problem]) -> Iterator[HeldLock]:
    """Yield the holds of one backend, the oldest first, until they are too young."""
    try:
        if _lists_by_age(backend):
            yield from takewhile(lambda hold: not wanted.is_too_young(hold), _all_of(backend, wanted))
        else:
            yield from sorted(islice(_all_of(backend, wanted), MOST_SEARCHED + 1), key=_age)
    except LockError as error:
        problems.append(_problem(backend, error))


def _lists_by_age(backend: BaseLockBackend) -> bool:
    return isinstance(backend, Listing) and backend.lists_by_age


def _age(hold: HeldLock) -> float:
    return hold.since or 0.0


def _all_of(backend: BaseLockBackend, wanted: Filter) -> Iterator[HeldLock]:
    engine, offset = listing(backend), 0
    while holds := engine.held(prefix=backend.key(wanted.prefix), offset=offset, limit=STEP):
        yield from _joined(backend, holds)
        offset += len(holds)


def _problem(backend: BaseLockBackend, error: LockError) -> Problem:
    return Problem(backend.alias, isinstance(error, LockNotSupported), str(error))


def holds_of(name: str, *, backend: str = DEFAULT_ALIAS) -> list[HeldLock]:
    """Return the holds of one name: none, one, or several of a read lock or a semaphore.

    Raises:
        LockNotSupported: the backend can't list. BackendUnavailable: it didn't answer.
    """
    engine = locks[backend]
    key = engine.key(check_name(name))
    return _with_waiters(_joined(engine, list(listing(engine).held_as(key))))


def find_hold(backend: str, key: str, owner: str, kind: str = "lock") -> HeldLock | None:
    """Return one hold as it is now, or None when it has ended; errors as for `holds_of`."""
    engine = locks[backend]
    hold = listing(engine).find_held(key, owner, kind)
    return None if hold is None else _with_waiters(_joined(engine, [hold]))[0]


# joining the locks with what processes tell


def _joined(backend: BaseLockBackend, holds: Sequence[Held]) -> list[HeldLock]:
    clients = list(dict.fromkeys(client for hold in holds for client in _clients(hold.owner)))
    known = backend.heartbeats(clients) if clients and isinstance(backend, Heartbeats) else {}
    records = {client: (presence, read(presence)) for client, presence in known.items()}
    return [
        _row(backend, hold, *next((records[c] for c in _clients(hold.owner) if c in records), (None, {})))
        for hold in holds
    ]


def _clients(owner: str) -> tuple[str, str]:
    """Return under which clients a hold may be published: its own, or at first only its process's."""
    return owner.split(":", 1)[0], process_of(owner)


def read(presence: Heartbeat) -> dict[str, Any]:
    """Return what a process has published about itself."""
    record = json.loads(presence.text)
    return record if isinstance(record, dict) else {}


LISTED: Final = [each.name for each in dataclasses.fields(Held)]
PUBLISHED: Final = ("ttl", "renewals", "host", "pid", "thread", "program", "started", "doing", "site")


def _row(
    backend: BaseLockBackend, hold: Held, presence: Heartbeat | None, record: dict[str, Any]
) -> HeldLock:
    details = record.get("holds", {}).get(hold.owner, {})
    since = hold.since if _lists_by_age(backend) else details.get("since", hold.since)
    listed = {name: getattr(hold, name) for name in LISTED}
    return HeldLock(
        backend=backend.alias,
        name=hold.key.removeprefix(backend.settings.key_prefix),
        held_for=None if since is None else max(0.0, time.time() - since),  # noqa: TID251 shown
        silent=None if presence is None else presence.silent,
        **{**listed, "since": since},
        **_known({**record, **details}, PUBLISHED),
    )


def _known(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: record.get(name) for name in names}


# who waits


Waiting = dict[tuple[str, str], tuple[Waiter, ...]]
"""By alias and key."""


def waiters() -> list[Waiter]:
    """Return who waits, on all backends whose processes can tell, the longest waiting first."""
    return known_waiters()[0]


def known_waiters(without: str = "") -> tuple[list[Waiter], list[Problem]]:
    """Return who waits, the longest waiting first, and the backends that couldn't tell.

    Args:
        without: leave out waiters for locks whose names begin so.
    """
    problems: list[Problem] = []
    wanted = Filter(without=without)
    return [each for each in _waiters_on(locks.all(), problems) if not wanted.leaves_out(each.name)], problems


def _waiters_on(backends: Iterable[BaseLockBackend], problems: list[Problem]) -> list[Waiter]:
    """Return the waiters that processes name; those of a process that has fallen silent are left out.

    A backend that can't tell is added to `problems`: the rows are worth showing without.
    """
    found: dict[str, Waiter] = {}
    for backend in backends:
        try:
            for presence in backend.heartbeats().values() if isinstance(backend, Heartbeats) else ():
                if (silent := presence.silent or 0.0) <= SILENT:
                    found |= {each.id: each for each in waiters_of(read(presence), silent)}
        except LockError as error:
            problems.append(_problem(backend, error))
    return sorted(found.values(), key=lambda each: -each.waited)


def waiters_of(record: dict[str, Any], silent: float = 0.0) -> Iterator[Waiter]:
    """Yield the waits in a process's record. Left out is what another version wrote and can't be read, and a
    wait on an alias of another program on the same server: its lock can't be asked for here.
    """
    for wait_id, entry in record.get("waits", {}).items():
        try:
            if entry["alias"] not in locks:
                continue
            yield Waiter(
                id=wait_id,
                backend=entry["alias"],
                waited=entry["waited"] + silent,
                holds=tuple((alias, owner, name) for alias, owner, name in entry["holds"]),
                **{name: entry[name] for name in ("kind", "key", "name", "since")},
                **_known(record, ("host", "pid")),
                **_known(entry, ("permits", "thread", "doing", "site")),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            logger.debug("the wait %r can't be read: %r", wait_id, entry)


def _with_waiters(rows: Sequence[HeldLock]) -> list[HeldLock]:
    """Return the rows with the waiters of each lock, as far as their processes have named them."""
    return _named(rows, _by_lock(_waiters_on((locks[alias] for alias in {row.backend for row in rows}), [])))


def _named(rows: Sequence[HeldLock], waiting: Waiting) -> list[HeldLock]:
    return [
        dataclasses.replace(row, waiting=those) if (those := waiting.get((row.backend, row.key))) else row
        for row in rows
    ]


def _by_lock(waiters: Iterable[Waiter]) -> Waiting:
    grouped: dict[tuple[str, str], list[Waiter]] = {}
    for waiter in waiters:
        grouped.setdefault((waiter.backend, waiter.key), []).append(waiter)
    return {lock: tuple(those) for lock, those in grouped.items()}


def waits_for(waiting: Sequence[Waiter]) -> dict[str, list[str]]:
    """Return who waits for whom: by the id of a waiter, the ids of those waiters that hold what it wants."""
    holding = {(alias, owner): each.id for each in waiting for alias, owner, _ in each.holds}
    owners = {lock: _owners(*lock) for lock in {(each.backend, each.key) for each in waiting}}
    return {
        each.id: [
            holding[each.backend, owner]
            for owner in owners[each.backend, each.key]
            if (each.backend, owner) in holding
        ]
        for each in waiting
    }


def _owners(alias: str, key: str) -> list[str]:
    with suppress(LockError):
        return [hold.owner for hold in listing(locks[alias]).held_as(key)]
    return []


def in_circles(edges: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return those who wait for themselves in the end.

    Example:
        >>> sorted(in_circles({"a": ["b"], "b": ["a"], "c": ["a"]}))
        ['a', 'b']
    """
    return frozenset(each for each in edges if each in _reached(each, edges))


def _reached(start: str, edges: Mapping[str, Sequence[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = list(edges.get(start, ()))
    while ahead:
        one = ahead.pop()
        if one not in reached:
            reached.add(one)
            ahead += edges.get(one, ())
    return reached
