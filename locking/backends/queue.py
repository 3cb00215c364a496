"""Engines that keep contenders in a queue: ZooKeeper, etcd.

Each contender creates a numbered entry, the lowest has the lock, and each waiter is woken by the end of the
one before it, so that a release wakes one. Source: P. Hunt et al., "ZooKeeper: Wait-free coordination for
Internet-scale systems", USENIX ATC 2010, section 2.4 (simple locks without herd effect, read/write locks).

ZooKeeper binds a hold to a session and etcd counts whole seconds; the ttl that was asked for is kept here, by
the holder's process: a thread ends each hold at its deadline. If the process is killed or frozen, the engine
ends the hold by its own means.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from locking.backends.base import AsyncWaiter, BaseLockBackend, Busy, Grant, Held, Holder, Outcome, Waiter
from locking.backends.capabilities import ForceRelease, Heartbeats, Kinds, Listing
from locking.backends.waiters import WaitingSteps, WokenTask, WokenThread
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable, LockError
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

OUTAGE_PAUSE: Final = 0.25  # seconds until a waiter asks again while the servers have no leader
RETRY_PAUSE: Final = 0.5  # seconds until an end is tried again that the engine didn't hear

# What a lock's folder is called behind its name, and that of heartbeats: no name has a bare percent sign.
SUFFIXES: Final = {"lock": "", "read": "%rw", "write": "%rw", "semaphore": "%semaphore"}
HEARTBEATS: Final = "%presence"


def key_of(folder: str) -> str:
    """Return the key of a folder, whatever the kind: "order:42/a" of "order:42%2Fa%rw"."""
    return unquote(folder.removesuffix("%rw").removesuffix("%semaphore"))


def read_servers(settings: AliasSettings, example: str) -> list[str]:
    """Return the servers of `LOCATION`, a list or a text with commas; ImproperlyConfigured: there is none."""
    location = settings.location or ()
    texts = [location] if isinstance(location, str) else location
    servers = [server.strip() for text in texts for server in text.split(",") if server.strip()]
    if not servers:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}] needs LOCATION, such as {example}")
    return servers


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A contender that has a lock or waits for it."""

    node: str  # where it is on the engine
    order: int  # its number in the queue; the lowest came first
    kind: str = "lock"
    permits: int = 0  # of a semaphore, as many as this one asked for
    # Another client's entry is its own owner. ZooKeeper tells the next five only when it is asked.
    owner: str = ""
    ttl: float | None = None  # seconds that its lease lasts from a renewal; None for another client's
    token: int = 0  # the fencing token; the lower one is older
    since: float | None = None  # Unix time of its creation, by the server's clock
    renewed: float = 0.0  # and of its last renewal
    lease: int = 0  # etcd's that it is bound to; on ZooKeeper the session, of a hold of this process
    length: int = 0  # seconds that the lease on etcd lasts without renewal, where this process has granted it
    deadline: float = 0.0  # `clock.now()` at which a hold of this process ends
    mutex: threading.Lock = field(default_factory=threading.Lock, init=False)  # one request at a time


Line = Sequence[QueueEntry]  # all who hold a lock or wait for it, sorted by number


def holders_of(line: Line) -> Line:
    """Return the contenders of a queue that have the lock: the first, and with a reader those behind it."""
    if line and line[0].kind == "semaphore":
        return line[: line[0].permits]  # the first to use it decides how many it has
    if line and line[0].kind == "read":
        writer = next((i for i, contender in enumerate(line) if contender.kind != "read"), len(line))
        return line[:writer]
    return line[:1]


def blockers_of(line: Line, mine: QueueEntry) -> Line:
    """Return those whose end `mine` must watch: none if it has the lock.

    For a semaphore the last ones before it, as many as have permits: while they are there, none is free.
    """
    ahead = [contender for contender in line if contender.order < mine.order]
    if mine.kind == "read":
        return [contender for contender in ahead if contender.kind != "read"][-1:]
    if mine.kind == "semaphore":
        most = max((contender.permits for contender in ahead), default=0)
        return ahead[-most:] if ahead and len(ahead) >= ahead[0].permits else ()
    return ahead[-1:]


# --- expiry -----------------------------------------------------------------------------------------------


class LeaseExpirer:
    """The holds of one backend; its thread starts with the first."""

    def __init__(
        self,
        end: Callable[[QueueEntry], object],  # ends a hold on the engine; when it raises, it is called again
        beat: Callable[[], float] = lambda: math.inf,  # called while there are holds, after so many seconds
        rest: Callable[[], object] = lambda: None,  # called when the last hold has gone
    ) -> None:
        self._end, self._beat, self._rest = end, beat, rest
        self.wake = Worker("locking-renew-expiry", self._step).wake
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child has none of its parent's holds."""
        self._mutex, self._beat_at = threading.Lock(), 0.0
        self._holds: dict[tuple[str, str], QueueEntry] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, key: str, owner: str, hold: QueueEntry) -> None:
        """Watch over `hold` from now on."""
        with self._mutex:
            self._holds[key, owner] = hold
        self.wake()

    def get(self, key: str, owner: str) -> QueueEntry | None:
        """Return the hold, if it isn't over."""
        hold = self._holds.get((key, owner))
        return hold if hold is not None and hold.deadline > now() else None

    def discard(self, key: str, owner: str, hold: QueueEntry) -> None:
        """Forget this very hold, and no newer one of the same owner."""
        with self._mutex:
            if self._holds.get((key, owner)) is hold:
                del self._holds[key, owner]
            is_last = not self._holds
        if is_last:
            self._rest()

    def _step(self) -> float:
        """Beat if it is time, end what is due, and return when to look again."""
        with self._mutex:
            holds = list(self._holds.items())
        if holds and now() >= self._beat_at:
            self._beat_at = now() + self._beat()
        for (key, owner), hold in holds:
            # It doesn't end while a request about it is under way, whose end wakes the thread.
            if hold.deadline > now() or not hold.mutex.acquire(blocking=False):
                continue
            try:
                if hold.deadline <= now():  # it wasn't extended just now
                    self._end(hold)
                    self.discard(key, owner, hold)
            except Exception as error:  # one that can't be ended must not keep the others from their end
                message = "ending the lease of %r failed (%r); it is tried again"
                log_rarely(logger, logging.WARNING, ("end", key), message, key, error)
            finally:
                hold.mutex.release()
        with self._mutex:
            again = now() + RETRY_PAUSE
            moments = [hold.deadline if hold.deadline > now() else again for hold in self._holds.values()]
        return min([*moments, self._beat_at]) if moments else math.inf


# --- the lock ---------------------------------------------------------------------------------------------


class Status(NamedTuple):
    """What one server says of itself; its version is the first two numbers."""

    version: tuple[int, ...]
    has_leader: bool
    is_alone: bool


def version_of(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; none where the text has none."""
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


class QueueBackend(Heartbeats, Kinds, Listing, ForceRelease):
    """The lock's algorithm; an engine supplies the requests, which are abstract here.

    A variant is a copy on the same servers, with a queue of its own.
    """

    supports_fencing = True
    lists_by_age = False  # the engines know who came first, not when each was granted
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    engine: ClassVar[str]  # its name
    floor: ClassVar[tuple[int, int]]  # the oldest version that has every request of the locks
    kind: str = "lock"
    permits: int = 0
    addresses: Sequence[str]  # of the servers; with a single one no other takes over when it fails
    _holds: LeaseExpirer

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._variants: dict[tuple[str, int], QueueBackend] = {}

    # what an engine supplies

    @abstractmethod
    def _read(self, key: str) -> Line:
        """Return the queue as a majority knows it."""

    @abstractmethod
    def _create(self, contender: Contender) -> Line:
        """Enqueue the contender unless it is there, set its `hold`, and return the queue."""

    @abstractmethod
    def _owns(self, entry: QueueEntry, owner: str) -> bool:
        """Whether an entry, as `_read` has it, is this owner's."""

    @abstractmethod
    def _watch(self, contender: Contender, blockers: Line, line: Line) -> bool:
        """Have the contender woken when a blocker ends; False when one has ended already."""

    @abstractmethod
    def _extended(self, owner: str, hold: QueueEntry, ttl: float) -> bool:
        """Extend a hold on the engine, which may be another process's; False when it has ended."""

    @abstractmethod
    def _withdraw(self, entry: QueueEntry) -> bool:
        """Take an entry away, with the session or lease that it depends on; False when it was gone."""

    @abstractmethod
    def _remaining(self, entry: QueueEntry) -> float | None:
        """Return the seconds left of a described entry's lease, as far as this process can tell."""

    @abstractmethod
    def _lines(self, prefix: str) -> Iterable[tuple[str, Line]]:
        """Return the keys that begin with `prefix`, each with its queue."""

    @abstractmethod
    def _status(self, address: str) -> Status | None:
        """Return what a server says of itself; None for a silent one."""

    def _described(self, entries: Line) -> Sequence[QueueEntry | None]:
        """Return each entry with all its fields; None for one that has ended."""
        return entries

    def _keep(self, contender: Contender) -> bool:
        """Keep a contender's entry alive; False when it has ended, and the contender's `hold` with it."""
        return True

    def poll_interval(self, contender: Contender) -> float:
        """Return the seconds that a waiter may sleep at most before it must ask again."""
        return 30.0

    # the queue

    def enqueue(self, contender: Contender, *, queue: bool) -> Outcome:
        """Take the lock if it is the contender's turn; else, with `queue`, wait in the queue and watch."""
        key, owner, sent = contender.key, contender.owner, now()
        try:
            hold = self._holds.get(key, owner)
            if hold is not None and self.extend(key, owner, contender.ttl):
                return Grant(hold.token, sent, is_new=False)
            return self._enqueue(contender, queue)
        except BackendUnavailable as outage:
            if not queue or len(self.addresses) == 1:
                raise
            return Busy(retry_after=OUTAGE_PAUSE, outage=outage)  # another server may take over

    def _enqueue(self, contender: Contender, queue: bool) -> Outcome:
        while True:
            sent = now()
            line = self._queued(contender, queue)
            mine = self._entry_of(line, contender.owner)
            if mine is None:  # another has it and we don't queue, or our session is over: start again
                if not queue and line:
                    return self._busy(line)
            elif not (blockers := blockers_of(line, mine)):
                hold, is_new = mine, False  # another try or process created it
                if contender.hold is not None and contender.hold.node == mine.node:
                    hold, is_new = contender.hold, True
                if is_new or self._extended(contender.owner, hold, contender.ttl):
                    hold.deadline = sent + contender.ttl
                    self._holds.add(contender.key, contender.owner, hold)
                    return Grant(hold.token, sent, is_new=is_new)
            elif not queue:
                self._withdraw(mine)
                return self._busy(line)
            elif self._watch(contender, blockers, line):
                return self._busy(line)

    def _queued(self, contender: Contender, queue: bool) -> Line:
        """Return the queue, with the contender's own entry in it if it was enqueued."""
        if (contender.asked and self._keep(contender)) or not queue:
            line = self._read(contender.key)
            late = QueueEntry("", sys.maxsize, self.kind, self.permits)
            is_free = queue or not blockers_of(line, late)
            if self._entry_of(line, contender.owner) is not None or not is_free:
                return line
        contender.asked = True
        return self._create(contender)

    def _entry_of(self, line: Line, owner: str) -> QueueEntry | None:
        return next((entry for entry in line if self._owns(entry, owner)), None)

    def _busy(self, line: Line) -> Busy:
        (first,) = self._described(holders_of(line)[:1])  # of all who hold it, the oldest
        if first is None:
            return Busy(retry_after=0.001)
        left = self._remaining(first)
        return Busy(holder=first.owner, retry_after=None if left is None else max(left, 0.05))

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.enqueue(QueueThreadWaiter(self, key, owner, ttl), queue=False)

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return QueueThreadWaiter(self, key, owner, ttl)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return QueueTaskWaiter(self, key, owner, ttl)

    # holding

    def extend(self, key: str, owner: str, ttl: float, *, exactly: bool = False) -> bool:
        if (hold := self._holds.get(key, owner)) is None:
            return False
        try:
            with hold.mutex:
                sent = now()
                if hold.deadline <= sent:  # meanwhile; the thread ends it
                    return False
                seconds = ttl if exactly else max(ttl, hold.deadline - sent)
                if self._extended(owner, hold, seconds):
                    hold.deadline = sent + seconds  # before the next one compares
                    return True
        finally:
            self._holds.wake()
        self._holds.discard(key, owner, hold)
        return False

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self.extend(key, owner, ttl, exactly=True)

    def release(self, key: str, owner: str) -> bool:
        """See the base class; an entry of this owner that only waits, or came late, is taken away too."""
        if (hold := self._holds.get(key, owner)) is not None:
            with hold.mutex:  # an extension under way may be about to bind the entry to another lease
                held = self._withdraw(hold)
            self._holds.discard(key, owner, hold)
            if held:
                return True
        # A late request, another process's work, or a hold that another process has adopted.
        mine = self._entry_of(self._read(key), owner)
        return mine is not None and self._withdraw(mine)

    def force_release(self, key: str, expected: str) -> bool:
        for holder in self._described(holders_of(self._read(key))):
            if holder is not None and holder.owner == expected:
                hold = self._holds.get(key, expected)
                is_released = self._withdraw(holder)
                if hold is not None:
                    self._holds.discard(key, expected, hold)
                return is_released
        return False

    def dequeue_owned(self, owned: Callable[[str], bool]) -> None:
        lines = [line for _, line in self._lines(self.settings.key_prefix)]
        for waiter in self._described([each for line in lines for each in line[len(holders_of(line)) :]]):
            if waiter is not None and owned(waiter.owner):
                self._withdraw(waiter)

    # who has it

    def holder(self, key: str) -> Holder | None:
        """See the base class; of several holders the oldest, and their number as its count."""
        holders = holders_of(self._read(key))
        if not holders:
            return None
        oldest = self._described(holders[:1])[0] or holders[0]
        return Holder(oldest.owner, len(holders), self._remaining(oldest))

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        found = list[Held]()
        for key, entry, waiters in self._holders(prefix)[offset : offset + limit]:
            facts = {name: getattr(entry, name) for name in ("owner", "kind", "token", "since")}
            found.append(Held(key=key, remaining=self._remaining(entry), waiters=waiters, **facts))
        return found

    def count_held(self, *, prefix: str = "") -> int:
        return len(self._holders(prefix))

    def _holders(self, prefix: str) -> list[tuple[str, QueueEntry, int]]:
        """Return key, holder and number of waiters of each hold, the oldest first."""
        found = [
            (key, holder, len(line) - len(holders_of(line)))
            for key, line in self._lines(prefix)
            for holder in holders_of(line)
        ]
        described = zip(found, self._described([holder for _, holder, _ in found]), strict=True)
        held = [(key, entry, waiters) for (key, _, waiters), entry in described if entry is not None]
        return sorted(held, key=lambda hold: hold[1].token)

    # processes and servers

    def _clients(self, records: Iterable[str], wanted: Collection[str] | None) -> dict[str, str]:
        """Return the wanted clients of this alias, all for None, by the names of their records."""
        prefix, keys = self.settings.key_prefix, {name: key_of(name) for name in records}
        clients = {name: key.removeprefix(prefix) for name, key in keys.items() if key.startswith(prefix)}
        return {name: client for name, client in clients.items() if wanted is None or client in wanted}

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; BackendUnavailable where no server answers."""
        if not live:
            return []
        where, messages = f"LOCKING[{self.alias!r}]", list[CheckMessage]()
        statuses = {address: self._status(address) for address in self.addresses}
        there = {address: status for address, status in statuses.items() if status is not None}
        if not there:
            raise BackendUnavailable(f"no {self.engine} server answers at {', '.join(statuses)}")
        if silent := [address for address in statuses if address not in there]:
            text = f"{len(silent)} {self.engine} servers of {where} don't answer: {', '.join(silent)}."
            hint = "Start them: locks stop when more than half of the servers are gone."
            messages.append(Warning(text, hint=hint, id="locking.W103"))
        if lost := [address for address, status in there.items() if not status.has_leader]:
            text = f"{self.engine} at {', '.join(lost)} ({where}) has no leader, and so no quorum."
            messages.append(Error(text, hint="Start the other servers.", id="locking.E103"))
        elif any(status.is_alone for status in there.values()):
            text = f"{self.engine} of {where} has a single server: if it fails, no other takes over."
            messages.append(Warning(text, hint="Run three or five servers.", id="locking.W102"))
        if old := [address for address, status in there.items() if () < status.version < self.floor]:
            floor, hint = ".".join(map(str, self.floor)), "Upgrade it: it lacks requests of the locks."
            text = f"{self.engine} at {', '.join(old)} ({where}) is older than {floor}."
            messages.append(Error(text, hint=hint, id="locking.E102"))
        return messages

    # kinds

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; the ordinary lock is fair here."""
        which = kind, options.get("permits", 0)
        if kind != "fair" and which not in self._variants:
            self._variants[which] = made = copy(self)
            made.alias, made._variants = f"{self.settings.alias}/{kind}", {}
            (made.kind, made.permits), made.exclusive = which, kind != "semaphore"
        return self._variants.get(which, self)


class Contender(WaitingSteps):
    """The steps of one waiter, one thread at a time.

    A cancelled task leaves its request running in a thread: `give_up` waits for that one, and a request that
    is sent later does nothing.
    """

    unsettled: bool

    def __init__(self, backend: QueueBackend, key: str, owner: str, ttl: float) -> None:
        super().__init__()
        self._backend, self.key, self.owner, self.ttl = backend, key, owner, ttl
        self._mutex, self._left = threading.Lock(), False
        self.asked = False  # a request that may have enqueued it has been sent
        self.hold: QueueEntry | None = None  # what it surely created itself, and is granted at its turn

    def __call__(self, _event: object = None) -> None:
        """Wake the waiter: a contender serves as kazoo's callback."""
        self.wake()

    def ask(self, *, queue: bool) -> Outcome:
        with self._mutex:
            if self._left:
                raise LockError(f"the waiter in the queue of {self.key!r} was given up")
            return self._backend.enqueue(self, queue=queue)

    def give_up(self) -> None:
        """Take its entry away; one whose end isn't heard outlives the connection, and would have its turn."""
        with self._mutex:
            self._left = True
            try:
                self._backend.release(self.key, self.owner)
            except LockError:
                self.unsettled = True

    def pause(self) -> float:
        return self._backend.poll_interval(self)


class QueueThreadWaiter(Contender, WokenThread):
    """A thread in the queue."""


class QueueTaskWaiter(Contender, WokenTask):
    """A task in the queue."""
