"""What is held, by whom, and who waits for whom: the admin, the command and the live checks ask here.

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
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Final

from locking.backends.base import BaseLockBackend, Heartbeat, Held
from locking.backends.capabilities import Heartbeats, Listing, backend_of, listing
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.kinds import LABELS
from locking.exceptions import LockError, LockNotSupported
from locking.inspection.columns import PUBLISHED, SILENT, STATES, HeldLock, Waiter
from locking.keys.names import check_name
from locking.utils.ownership import process_of

__all__ = ["HeldLock", "Page", "Waiter", "held_locks", "holds_of", "known_waiters", "waiters"]

logger = logging.getLogger(__name__)

ORDERS: Final = ("age", "contention", "waiters")

MOST_CONTENDED: Final = 20  # locks that a list in the order of contention begins with
MOST_SEARCHED: Final = 5000  # rows that a search looks at, the oldest first


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a backend's locks are missing from a list."""

    backend: str  #: its alias
    unsupported: bool  #: it can't list at all; otherwise it didn't answer, or answered with an error
    message: str  #: what it said


@dataclass(frozen=True, slots=True)
class Page:
    """A page of what is held, the oldest first."""

    rows: list[HeldLock]  #: the holds
    #: how many there are in all, as far as they were looked at; without filters an estimate, for what ended
    #: by itself is counted until it is met
    total: int
    searched_all: bool = True  #: False when a search ended before it had looked at everything
    problems: list[Problem] = field(default_factory=list)  #: the backends that couldn't tell

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


@dataclass(frozen=True, slots=True)
class Filter:
    """What a list is narrowed to; see `held_locks`."""

    prefix: str = ""
    without: str = ""
    search: str = ""
    state: str = ""
    kind: str = ""
    host: str = ""
    older_than: float = 0.0

    def is_too_young(self, hold: HeldLock) -> bool:
        """Whether it hasn't been held for long enough, or for an unknown time."""
        return bool(self.older_than) and (hold.held_for or 0.0) < self.older_than

    def matches(self, hold: HeldLock) -> bool:
        """Whether the list shows this hold."""
        if self.is_too_young(hold) or (self.without and hold.name.startswith(self.without)):
            return False
        wanted = ((self.state, hold.state), (self.kind, hold.kind), (self.host, hold.host or ""))
        texts = (hold.name, hold.owner, hold.holder, hold.doing or "", hold.site or "")
        is_found = any(self.search in text for text in texts)
        return is_found and all(value in ("", fact) for value, fact in wanted)


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
        kind: `lock`, `read`, `write`, `semaphore` or `fair`.
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
    for what, value, known in (("state", state, STATES), ("kind", kind, LABELS), ("order", order, ORDERS)):
        if value and value not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, not {value!r}")
    if offset < 0 or limit < 0 or older_than < 0:
        raise ValueError(f"offset, limit and older_than can't be negative: {offset}, {limit}, {older_than}")
    wanted = Filter(prefix, without, search, state, kind, host, older_than)
    looks = [Look(backend) for backend in ([locks[alias]] if alias is not None else locks.all())]
    if order == "waiters":
        page = _searched(looks, wanted, 0, MOST_SEARCHED)
        rows = sorted(page.rows, key=lambda hold: -(hold.waiter_count or 0))
        return dataclasses.replace(page, rows=rows[offset : offset + limit])
    if len(looks) == 1 and wanted == Filter(prefix):  # which the backend finds; else row by row
        page = looks[0].page(prefix, offset, limit)
    else:
        page = _searched(looks, wanted, offset, limit)
    if order == "contention" and not offset:
        page = dataclasses.replace(page, rows=_contended_first(page.rows, looks, wanted))
    return page


def holds_of(name: str, *, backend: str = DEFAULT_ALIAS) -> list[HeldLock]:
    """Return the holds of one name: none, one, or several of a read lock or a semaphore.

    Raises:
        LockNotSupported: the backend can't list. BackendUnavailable: it didn't answer.
    """
    engine = locks[backend]
    return Look(engine).holds_of(engine.key(check_name(name)))


def find_hold(backend: str, key: str, owner: str, kind: str = "lock") -> HeldLock | None:
    """Return one hold as it is now, or None when it has ended; errors as for `holds_of`."""
    engine = locks[backend]
    hold = listing(engine).find_held(key, owner, kind)
    return None if hold is None else Look(engine).row(hold)


def waiters() -> list[Waiter]:
    """Return who waits, on all backends whose processes can tell, the longest waiting first."""
    return known_waiters()[0]


def known_waiters(without: str = "") -> tuple[list[Waiter], list[Problem]]:
    """Return who waits, the longest waiting first, and the backends that couldn't tell.

    Args:
        without: leave out waiters for locks whose names begin so.
    """
    looks = [Look(backend) for backend in locks.all()]
    known = {each.id: each for look in looks for each in look.waiters}
    shown = [each for each in known.values() if not (without and each.name.startswith(without))]
    return sorted(shown, key=lambda each: -each.waited), [look.problem for look in looks if look.problem]


# --- one backend ------------------------------------------------------------------------------------------


class Look:
    """One look at one backend: its holds, joined with what processes tell, which is asked for once."""

    def __init__(self, backend: BaseLockBackend) -> None:
        self.backend = backend
        self.problem: Problem | None = None  # why it couldn't tell everything
        self.lists_by_age = isinstance(backend, Listing) and backend.lists_by_age

    def _note(self, error: LockError) -> None:
        unsupported = isinstance(error, LockNotSupported)
        self.problem = Problem(self.backend.alias, unsupported, str(error))

    @cached_property
    def _processes(self) -> dict[str, tuple[Heartbeat, dict[str, Any]]]:
        """By client, what its process tells. Without an answer nothing: the rows are worth showing so."""
        try:
            found = self.backend.heartbeats() if isinstance(self.backend, Heartbeats) else {}
        except LockError as error:
            self._note(error)
            return {}
        return {client: (heartbeat, json.loads(heartbeat.text)) for client, heartbeat in found.items()}

    @cached_property
    def waiters(self) -> list[Waiter]:
        """The waiters that processes name, the longest waiting first, without those of silent processes."""
        found: dict[str, Waiter] = {}
        for heartbeat, record in self._processes.values():
            if (silent := heartbeat.silent or 0.0) <= SILENT:
                found |= {each.id: each for each in waiters_of(record, silent)}
        return sorted(found.values(), key=lambda each: -each.waited)

    @cached_property
    def waiting(self) -> Mapping[str, Sequence[Waiter]]:
        """By key, the waiters for the locks of this backend."""
        grouped = defaultdict[str, list[Waiter]](list)
        for waiter in self.waiters:
            if waiter.backend == self.backend.alias:
                grouped[waiter.key].append(waiter)
        return grouped

    def row(self, hold: Held) -> HeldLock:
        """Return a hold with what its process tells: under its own client, or at first its process's."""
        clients = hold.owner.split(":", 1)[0], process_of(hold.owner)
        known = (self._processes[client] for client in clients if client in self._processes)
        heartbeat, record = next(known, (None, dict[str, Any]()))
        details = record.get("holds", {}).get(hold.owner, {})
        since = hold.since if self.lists_by_age else details.get("since", hold.since)
        return HeldLock(
            backend=self.backend.alias,
            name=hold.key.removeprefix(self.backend.settings.key_prefix),
            held_for=None if since is None else max(0.0, time.time() - since),  # noqa: TID251 shown
            silent=None if heartbeat is None else heartbeat.silent,
            waiting=tuple(self.waiting.get(hold.key, ())),
            **{**dataclasses.asdict(hold), "since": since},
            **_known({**record, **details}, PUBLISHED),
        )

    def holds_of(self, key: str) -> list[HeldLock]:
        """Return the holds of one key."""
        return [self.row(hold) for hold in listing(self.backend).held_as(key)]

    def awaited(self, key: str) -> list[HeldLock]:
        """Return the holds of a key with waiters. An ordinary lock is asked for its one holder."""
        kind = self.waiting[key][0].kind
        if kind not in ("lock", "fair"):
            return self.holds_of(key)
        holder = backend_of(self.backend, kind).holder(key)
        held = None if holder is None else listing(self.backend).find_held(key, holder.owner, kind)
        return [] if held is None else [self.row(held)]

    def page(self, prefix: str, offset: int, limit: int) -> Page:
        """Return a page as the backend itself has it."""
        keys, rows, total = self.backend.key(prefix), list[HeldLock](), 0
        try:
            engine = listing(self.backend)
            rows = [self.row(hold) for hold in engine.held(prefix=keys, offset=offset, limit=limit)]
            total = max(engine.count_held(prefix=keys), offset + len(rows) if rows else 0)
        except LockError as error:
            self._note(error)
        return Page(rows, total, problems=[self.problem] if self.problem else [])

    def oldest_first(self, wanted: Filter) -> Iterator[HeldLock]:
        """Yield the holds, the oldest first, until they are too young."""
        try:
            rows = map(self.row, listing(self.backend).all_held(self.backend.key(wanted.prefix)))
            if self.lists_by_age:
                yield from takewhile(lambda hold: not wanted.is_too_young(hold), rows)
            else:
                yield from sorted(islice(rows, MOST_SEARCHED + 1), key=_age)
        except LockError as error:
            self._note(error)


def _age(hold: HeldLock) -> float:
    return hold.since or 0.0


def _which(hold: HeldLock) -> tuple[str, str, str]:
    return hold.backend, hold.key, hold.owner


def _searched(looks: Sequence[Look], wanted: Filter, offset: int, limit: int) -> Page:
    """Look at row after row of all backends, the oldest first."""
    exact = [hold for look in looks for hold in _named_exactly(look, wanted)]
    known = set(map(_which, exact))
    oldest = heapq.merge(*(look.oldest_first(wanted) for look in looks), key=_age)
    looked_at = list(islice(oldest, MOST_SEARCHED + 1))
    rest = [hold for hold in looked_at[:MOST_SEARCHED] if wanted.matches(hold)]
    rows = [*exact, *(hold for hold in rest if _which(hold) not in known)]
    problems = [look.problem for look in looks if look.problem]
    return Page(rows[offset : offset + limit], len(rows), len(looked_at) <= MOST_SEARCHED, problems)


def _named_exactly(look: Look, wanted: Filter) -> list[HeldLock]:
    """Return the holds of the very name that is searched, however many others there are."""
    if wanted.search.startswith(wanted.prefix):
        with suppress(LockError, ValueError):  # a text that no name can be, or a backend that can't tell
            key = look.backend.key(check_name(wanted.search))
            return [hold for hold in look.holds_of(key) if wanted.matches(hold)]
    return []


def _contended_first(rows: Sequence[HeldLock], looks: Sequence[Look], wanted: Filter) -> list[HeldLock]:
    """Put the holds of the most contended locks first; only they are asked for, however long the list is."""
    awaited = [
        (look, key)
        for look in looks
        for key in look.waiting
        if key.startswith(look.backend.key(wanted.prefix))
    ]
    first: list[HeldLock] = []
    for look, key in sorted(awaited, key=lambda each: -len(each[0].waiting[each[1]]))[:MOST_CONTENDED]:
        with suppress(LockError):
            first += [hold for hold in look.awaited(key) if wanted.matches(hold)]
    shown = set(map(_which, first))
    return [*first, *(row for row in rows if _which(row) not in shown)]


# --- what processes tell ----------------------------------------------------------------------------------


def _known(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: record.get(name) for name in names}


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


# --- who waits for whom -------------------------------------------------------------------------------------

Holds = Mapping[tuple[str, str], Sequence[HeldLock]]  # by alias and key


@dataclass(slots=True)
class WaitNode:
    """One waiter, or a holder that waits for nothing, and those who wait for what it holds."""

    waiter: Waiter | None
    holds: tuple[HeldLock, ...] = ()  # of a holder that waits for nothing
    deadlocked: bool = False  # it is part of a circle
    again: bool = False  # it is further up already, for a circle has no end
    behind: list[WaitNode] = field(default_factory=list)  # those who wait for it

    @property
    def blocked(self) -> int:
        """How many wait for it, directly or behind another waiter."""
        return sum(1 + each.blocked for each in self.behind if not each.again)

    @property
    def longest(self) -> float:
        """The longest time that any of those has waited, in seconds."""
        waited = (max(each.waiter.waited if each.waiter else 0.0, each.longest) for each in self.behind)
        return max(waited, default=0.0)

    @property
    def name(self) -> str:
        """The lock that the first of those waits for."""
        first = next((each.waiter for each in self.behind if each.waiter), self.waiter)
        return first.name if first else ""

    @property
    def doing(self) -> str:
        """The path of the request or the id of the task, where it is known."""
        return next((each.doing for each in (self.waiter, *self.holds) if each and each.doing), "")

    @property
    def site(self) -> str:
        """Where in the code the lock was taken or is wanted."""
        return next((each.site for each in (self.waiter, *self.holds) if each and each.site), "")

    @property
    def who(self) -> str:
        """Host, process and thread; several holders of one lock are separated by commas."""
        return self.waiter.who if self.waiter else ", ".join(hold.holder for hold in self.holds)


def wait_trees(waiting: Sequence[Waiter]) -> list[WaitNode]:
    """Return the trees of waiters: each circle first, opened at its longest waiting member, and then the
    holders, those that block most first.
    """
    holds, edges = waits_for(waiting)
    circles = in_circles(edges)
    behind = defaultdict[str, list[Waiter]](list)
    for each in waiting:
        for holder in edges[each.id]:
            behind[holder].append(each)
    shown: set[str] = set()

    def tree(waiter: Waiter) -> WaitNode:
        node = WaitNode(waiter, deadlocked=waiter.id in circles, again=waiter.id in shown)
        if not node.again:
            shown.add(waiter.id)
            node.behind = [tree(each) for each in behind[waiter.id]]
        return node

    trees = [tree(each) for each in waiting if each.id in circles and each.id not in shown]
    below = defaultdict[tuple[str, str], list[WaitNode]](list)  # a holder that waits for nothing
    for each in waiting:
        if not edges[each.id]:
            below[each.backend, each.key].append(tree(each))
    roots: list[WaitNode] = []
    for lock, nodes in below.items():
        roots += [WaitNode(None, tuple(holds[lock]), behind=nodes)] if holds[lock] else nodes
    return trees + sorted(roots, key=lambda root: (-root.blocked, -root.longest))


def waits_for(waiting: Sequence[Waiter]) -> tuple[Holds, dict[str, list[str]]]:
    """Return the holds of each lock that is waited for, none where its backend doesn't answer; and by the id
    of a waiter, the ids of those waiters that hold what it wants.
    """
    looks = {alias: Look(locks[alias]) for alias in {each.backend for each in waiting}}
    holds = defaultdict[tuple[str, str], Sequence[HeldLock]](tuple)
    for alias, key in {(each.backend, each.key) for each in waiting}:
        with suppress(LockError):
            holds[alias, key] = looks[alias].holds_of(key)
    holding = {held: each.id for each in waiting for held in each.owners}
    edges: dict[str, list[str]] = {}
    for each in waiting:
        owners = [(each.backend, hold.owner) for hold in holds[each.backend, each.key]]
        edges[each.id] = [holding[held] for held in owners if held in holding]
    return holds, edges


def in_circles(edges: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return those who wait for themselves in the end."""

    def reached(start: str) -> set[str]:
        found, ahead = set[str](), [*edges[start]]
        while ahead:
            if (one := ahead.pop()) not in found:
                found.add(one)
                ahead += edges[one]
        return found

    return frozenset(each for each in edges if each in reached(each))
