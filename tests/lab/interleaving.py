"""Real buyers on real connections, led from checkpoint to checkpoint: a race that happens in every run.

A buyer stops where the test says, and goes on when the test says. That it *waits* is never assumed:
PostgreSQL is asked (`pg_stat_activity`), or the checkpoint and the lock's own key are looked at. Nothing
sleeps in order to be right: every wait ends when what it waits for is seen, and after `PATIENCE` seconds the
test fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from inventory import hooks
from locking.backends.base import PollingWaiter
from locking.backends.capabilities import Listing
from locking.backends.database.rows import RowWaiter
from locking.core.handler import locks
from orders.lab import redis_store
from orders.lab.checkpoints import installed

T = TypeVar("T")
PATIENCE = 30.0
BLOCKED = """
SELECT 1 FROM pg_stat_activity WHERE pid = ANY (pg_blocking_pids(%s)) AND backend_type = 'client backend'
"""
"""A buyer's blockers: other buyers, not an autovacuum that is gone in a moment."""

WAITING: set[threading.Thread] = set()

ADDRESS = ("dbname", "host", "port", "user", "options")
DEFAULTS = {"port": "5432"}  # an open connection doesn't say what is the default
IDLE: list[BaseDatabaseWrapper] = []
"""Connections for the next buyers: to make one takes PostgreSQL longer than a sale."""


def take_connection() -> None:
    """Give this thread a connection that no other thread uses."""
    with suppress(IndexError):
        idle = IDLE.pop()
        if server_of(idle) == server_of(connections[DEFAULT_DB_ALIAS]) and idle.is_usable():
            connections[DEFAULT_DB_ALIAS] = idle
        else:
            idle.close()
    connection.inc_thread_sharing()
    connection.ensure_connection()


def server_of(wrapper: BaseDatabaseWrapper) -> list[object]:
    """Return what says where a connection leads: as it was made, or as it would be made now."""
    opened = wrapper.connection
    address = wrapper.get_connection_params() if opened is None else opened.info.get_parameters()
    return [str(address.get(name) or DEFAULTS.get(name)) for name in ADDRESS]


def leave_connection(*, reusable: bool) -> None:
    """Keep this thread's connection for another thread, or close it; close those of the other databases."""
    mine = connections[DEFAULT_DB_ALIAS]
    if reusable and mine.connection is not None and mine.get_autocommit() and not mine.in_atomic_block:
        del connections[DEFAULT_DB_ALIAS]
        IDLE.append(mine)
    connections.close_all()


def close_idle_connections() -> None:
    """Close what no buyer uses: the database is about to go."""
    while IDLE:
        IDLE.pop().close()


class Killed(BaseException):
    """The buyer's process died here: no handler may catch this."""


@dataclass(frozen=True)
class Event:
    """A buyer came to a checkpoint."""

    buyer: str
    name: str
    facts: dict[str, object]


@dataclass
class Outcome:
    """How a buyer ended."""

    result: object = None
    error: BaseException | None = None


def eventually(condition: Callable[[], T], what: str) -> T:
    """Return what `condition` says as soon as it holds; fail when it doesn't within `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not (holds := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        threading.Event().wait(0.002)
    return holds


@dataclass
class Buyer:
    """One buyer in a thread of its own, with a database connection of its own."""

    name: str
    work: Callable[[], object]
    journal: list[Event]
    stops: list[str]
    outcome: Outcome = field(default_factory=Outcome)
    pid: int | None = None
    _stopped_at: str | None = None
    _doomed: bool = False
    _arrived: threading.Event = field(default_factory=threading.Event)
    _go: threading.Event = field(default_factory=threading.Event)
    _moving: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            take_connection()
            self.pid = connection.connection.info.backend_pid
            with installed(self._hook), hooks.installed(self._hook):
                self.outcome.result = self.work()
        except BaseException as error:
            self.outcome.error = error
        finally:
            leave_connection(reusable=not self._doomed)

    def _hook(self, name: str, /, **facts: object) -> None:
        self.journal.append(Event(self.name, name, facts))
        if self._stops_at(name):
            assert self._go.wait(PATIENCE * 2), f"{self.name} was left standing at {name}"
            if self._doomed:
                raise Killed(name)

    def _stops_at(self, name: str) -> bool:
        """Whether this is its next stop, where it then waits; `runs_on` comes before that or after it."""
        with self._moving:
            if not self.stops or self.stops[0] != name:
                return False
            self.stops.pop(0)
            self._go.clear()
            self._stopped_at = name
            self._arrived.set()
            return True

    def reaches(self, name: str) -> Buyer:
        """Wait until the buyer is at its next stop, which must be `name`."""
        eventually(lambda: self._arrived.is_set() or not self._thread.is_alive(), f"{self.name} at {name}")
        assert self._stopped_at == name, f"{self.name} ended with {self.outcome} before it came to {name}"
        return self

    def passes(self, stops: list[str]) -> Buyer:
        """Lead the buyer over all of its stops but the last, where it stays."""
        for name in stops[:-1]:
            self.reaches(name).goes_on()
        return self.reaches(stops[-1])

    def goes_as_far_as_it_can(self, stops: list[str]) -> str:
        """Lead the buyer to its last stop; return `stops`, or `waits` or `ended` if it doesn't come there."""
        for name in stops:
            where = self.ends_or_waits_or_stops()
            if where != "stops" or name is stops[-1]:
                return where
            self.reaches(name).goes_on()
        return "stops"

    def goes_on(self) -> Buyer:
        """Let the buyer leave its checkpoint."""
        self._stopped_at = None
        self._arrived.clear()
        self._go.set()
        return self

    def runs_on(self) -> Buyer:
        """Let the buyer go on past every stop, and don't wait for its end."""
        with self._moving:
            self.stops.clear()
            return self.goes_on()

    def dies(self) -> Outcome:
        """End the buyer at its checkpoint, as if its process had been killed there."""
        self._doomed = True
        return self.ends()

    def ends(self) -> Outcome:
        """Let the buyer run to its end, past every stop."""
        self.runs_on()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"{self.name} never ended; last seen at {self.last}"
        return self.outcome

    @property
    def last(self) -> str | None:
        """The checkpoint that the buyer came to last."""
        names = [event.name for event in self.journal if event.buyer == self.name]
        return names[-1] if names else None

    def ends_or_waits(self) -> str:
        """Return `ended` or `waits`, whichever is seen first."""
        return eventually(self._rests, f"{self.name} ends or waits")

    def ends_or_waits_or_stops(self) -> str:
        """Return `ended`, `waits` or `stops` (it is at one of its stops), whichever is seen first."""
        return eventually(lambda: "stops" if self._arrived.is_set() else self._rests(), f"{self.name} rests")

    def _rests(self) -> str:
        if not self._thread.is_alive():
            return "ended"
        return "waits" if self._waits() else ""

    def _waits(self) -> bool:
        return self._waits_for_a_row() or (self.last == "waiting" and self._was_refused())

    def _waits_for_a_row(self) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(BLOCKED, [self.pid])
            return cursor.fetchone() is not None

    def _was_refused(self) -> bool:
        """Whether its lock shows a waiter: a refusal reported at the checkpoint, or a queue."""
        reported = [
            event.facts for event in self.journal if event.buyer == self.name and event.name == "waiting"
        ]
        if "lock" in reported[-1]:
            return True
        if next(redis_store.client().scan_iter("*", _type="list"), None) is not None:
            return True
        if self._thread in WAITING:
            return True
        elsewhere = [locks[alias] for alias in locks if alias != "default"]
        lists = [backend for backend in elsewhere if isinstance(backend, Listing)]
        return any(held.waiters for backend in lists for held in backend.held())


@contextmanager
def _seen_waiting() -> Iterator[None]:
    """Note who waits at a lock whose engine keeps no list of waiters: a poller leaves no trace there."""

    def spied(wait: Callable[..., Any]) -> Callable[..., Any]:
        def spy(place: object, timeout: float) -> Any:
            WAITING.add(threading.current_thread())
            return wait(place, timeout)

        return spy

    with ExitStack() as stack:
        for place in (PollingWaiter, RowWaiter):
            stack.enter_context(mock.patch.object(place, "wait", spied(place.wait)))
        yield
    WAITING.clear()


@contextmanager
def buyers() -> Iterator[Callable[..., Buyer]]:
    """Give a function that starts buyers, all writing one journal; afterwards none of them is left.

    Example:
        with buyers() as start:
            a = start("A", buying("row_lock", {"mug": 1}), "read").reaches("read")
            b = start("B", buying("row_lock", {"mug": 1}))
            assert b.ends_or_waits() == "waits"
            a.ends()
            b.ends()
    """
    journal: list[Event] = []
    started: list[Buyer] = []

    def start(name: str, work: Callable[[], object], *stops: str) -> Buyer:
        started.append(Buyer(name, work, journal, list(stops)))
        return started[-1]

    try:
        with _seen_waiting():
            yield start
    finally:
        for buyer in started:
            buyer.ends()
