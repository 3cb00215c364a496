"""Engines that keep contenders in a queue: ZooKeeper, etcd.

Each contender creates a numbered entry, the lowest has the lock, and each waiter is woken by the end of the
one before it, so that a release wakes one. Source: P. Hunt et al., "ZooKeeper: Wait-free coordination for
Internet-scale systems", USENIX ATC 2010, section 2.4 (simple locks without herd effect, read/write locks).
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, NamedTuple
from urllib.parse import unquote

from django.core.checks import CheckMessage, Error, Warning

from locking.backends.base import (
    AsyncWaiter,
    BaseLockBackend,
    Busy,
    Grant,
    Heartbeat,
    Held,
    Holder,
    Outcome,
    Waiter,
)
from locking.backends.capabilities import ForceRelease, Heartbeats, Kinds, Listing
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.backends.waiters import WaitingSteps, WokenTask, WokenThread
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable, LockError
from locking.utils.clock import now

OUTAGE_PAUSE: Final = 0.25
"""Seconds until a waiter asks again while the servers have no leader."""

SUFFIXES: Final = {"lock": "", "read": "%rw", "write": "%rw", "semaphore": "%semaphore"}
"""What the folder of a lock is called behind its name."""

HEARTBEATS: Final = "%presence"
"""The folder of the processes' heartbeats; no lock's is called that, for names have no bare percent sign."""


def key_of(folder: str) -> str:
    """Return the key of a folder, whatever the kind.

    Example:
        >>> key_of("order:42%2F订单%rw")
        'order:42/订单'
    """
    return unquote(folder.removesuffix("%rw").removesuffix("%semaphore"))


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A contender that has a lock or waits for it; ZooKeeper tells the last five only when it is asked.

    Attributes:
        node: where it is on the engine.
        order: its number in the queue; the lowest came first.
        kind: lock, read, write or semaphore.
        permits: of a semaphore, as many as this one asked for.
        owner: another client's entry is its own owner.
        ttl: seconds that its lease lasts from a renewal; None for another client's.
        token: the fencing token; the lower one is older.
        lease: etcd's lease that it is bound to.
        since, renewed: Unix time of its creation and of its last renewal, by the server's clock.
    """

    node: str
    order: int
    kind: str = "lock"
    permits: int = 0
    owner: str = ""
    ttl: float | None = None
    token: int = 0
    lease: int = 0
    since: float | None = None
    renewed: float = 0.0


Line = Sequence[QueueEntry]
"""All who hold a lock or wait for it, sorted by number."""


def holders_of(line: Line) -> Line:
    """Return the contenders of a queue that have the lock.

    The first to use a semaphore decides how many permits it has.

    Example:
        >>> line = [QueueEntry("a", 1, "read"), QueueEntry("b", 2, "read"), QueueEntry("c", 3, "write")]
        >>> [contender.node for contender in holders_of(line)]
        ['a', 'b']
    """
    if not line:
        return ()
    first = line[0]
    if first.kind == "semaphore":
        return line[: first.permits]
    if first.kind != "read":
        return line[:1]
    writer = next((i for i, contender in enumerate(line) if contender.kind != "read"), len(line))
    return line[:writer]


def blockers_of(line: Line, mine: QueueEntry) -> Line:
    """Return those whose end `mine` must watch: none if it has the lock, for a semaphore all before it.

    A permit may come back from any holder, so a semaphore's waiters are all woken by each of them.
    """
    ahead = [contender for contender in line if contender.order < mine.order]
    if mine.kind == "read":
        return [contender for contender in ahead if contender.kind != "read"][-1:]
    if mine.kind == "semaphore":
        return ahead if ahead and len(ahead) >= ahead[0].permits else ()
    return ahead[-1:]


class Status(NamedTuple):
    """What one server says: its version, as its first two numbers, and whether it has a leader."""

    version: str
    has_leader: bool


def admits(line: Line, kind: str, permits: int) -> bool:
    """Whether one who came now would have the lock at once."""
    return not blockers_of(line, QueueEntry("", sys.maxsize, kind, permits))


class QueueBackend(Heartbeats, Kinds, Listing, ForceRelease):
    """The lock's algorithm; an engine supplies the requests, which are abstract here.

    A variant is a copy on the same servers, with a queue of its own.
    """

    supports_fencing = True
    lists_by_age = False  # the engines know who came first, not when each was granted
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    engine: ClassVar[str]
    """Its name."""
    floor: ClassVar[str]
    """The oldest version that has every request of the locks."""
    kind: str = "lock"
    permits: int = 0
    alone: bool
    """There is a single server, so that no other takes over when it fails."""
    _holds: LeaseExpirer

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._variants: dict[tuple[str, int], QueueBackend] = {}

    # what an engine supplies

    @abstractmethod
    def _folder(self, key: str) -> str:
        """Return where the queue of a lock is."""

    @abstractmethod
    def _read(self, folder: str, contender: Contender | None = None) -> Line:
        """Return the queue as a majority knows it."""

    @abstractmethod
    def _create(self, folder: str, contender: Contender) -> Line:
        """Enqueue the contender unless it is there, set its `hold`, and return the queue."""

    @abstractmethod
    def _owns(self, entry: QueueEntry, owner: str) -> bool:
        """Whether an entry, as `_read` has it, is this owner's."""

    @abstractmethod
    def _adopt(self, contender: Contender, mine: QueueEntry) -> LocalLease | None:
        """Make an entry its own that another try or process created; None when it has ended."""

    @abstractmethod
    def _watch(self, contender: Contender, blockers: Line, line: Line) -> bool:
        """Have the contender woken when a blocker ends; False when one has ended already."""

    @abstractmethod
    def _extended(self, owner: str, hold: LocalLease, ttl: float) -> bool:
        """Extend a hold on the engine; False when it has ended."""

    @abstractmethod
    def _withdraw(self, node: str, lease: int) -> bool:
        """Take an entry away, with the session or lease that it depends on; False when it was gone."""

    @abstractmethod
    def _remaining(self, entry: QueueEntry) -> float | None:
        """Return the seconds left of a described entry's lease, as far as this process can tell."""

    @abstractmethod
    def _lines(self, prefix: str) -> Iterable[tuple[str, Line]]:
        """Return the keys that begin with `prefix`, each with its queue."""

    @abstractmethod
    def _heartbeats_of(self, wanted: Callable[[str], bool]) -> dict[str, Heartbeat]:
        """Return the records of this alias's clients that are wanted."""

    @abstractmethod
    def _statuses(self) -> tuple[Mapping[str, Status | None], bool]:
        """Return what the servers say, by address, None for a silent one; and whether there is one only."""

    def _described(self, entries: Line) -> Sequence[QueueEntry | None]:
        """Return each entry with all its fields; None for one that has ended."""
        return entries

    def _keep(self, contender: Contender) -> bool:
        """Keep a contender's entry alive; False when it has ended, and the contender's `hold` with it."""
        return True

    def _forestall(self, key: str, owner: str) -> bool:
        """Have a request that is still under way enqueue nothing; False when there was none."""
        return False

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
            if not queue or self.alone:
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
                continue
            blockers = blockers_of(line, mine)
            if not blockers:
                if (grant := self._grant(contender, mine, sent)) is not None:
                    return grant
            elif not queue:
                self._withdraw(mine.node, mine.lease)
                return self._busy(line)
            elif self._watch(contender, blockers, line):
                return self._busy(line)

    def _queued(self, contender: Contender, queue: bool) -> Line:
        """Return the queue, with the contender's own entry in it if it was enqueued."""
        folder = self._folder(contender.key)
        if (contender.asked and self._keep(contender)) or not queue:
            line = self._read(folder, contender)
            mine = self._entry_of(line, contender.owner)
            if mine is not None or not (queue or admits(line, self.kind, self.permits)):
                return line
        contender.asked = True
        return self._create(folder, contender)

    def _entry_of(self, line: Line, owner: str) -> QueueEntry | None:
        return next((entry for entry in line if self._owns(entry, owner)), None)

    def _grant(self, contender: Contender, mine: QueueEntry, sent: float) -> Grant | None:
        made = contender.hold
        is_new = made is not None and made.node == mine.node
        hold = made if is_new else self._adopt(contender, mine)
        if hold is None:
            return None
        hold.deadline = sent + contender.ttl
        self._holds.add(contender.key, contender.owner, hold)
        return Grant(hold.token, sent, is_new=is_new)

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
        return self._holds.extend(key, owner, ttl, partial(self._extended, owner), exactly=exactly)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self.extend(key, owner, ttl, exactly=True)

    def _end(self, key: str, hold: LocalLease) -> bool:
        return self._withdraw(hold.node, hold.session)

    def release(self, key: str, owner: str) -> bool:
        """See the base class; an entry of this owner that only waits, or came late, is taken away too."""
        hold = self._holds.get(key, owner)
        if hold is not None:
            with hold.mutex:  # an extension under way may be about to bind the entry to another lease
                held = self._end(key, hold)
            self._holds.discard(key, owner, hold)
            if held:
                return True
        # A late request, another process's work, or a hold that another process has adopted.
        mine = self._entry_of(self._line(key), owner)
        return self._forestall(key, owner) if mine is None else self._withdraw(mine.node, mine.lease)

    def force_release(self, key: str, expected: str) -> bool:
        for holder in self._described(holders_of(self._line(key))):
            if holder is not None and holder.owner == expected:
                hold = self._holds.get(key, expected)
                is_released = self._withdraw(holder.node, holder.lease)
                if hold is not None:
                    self._holds.discard(key, expected, hold)
                return is_released
        return False

    def dequeue_owned(self, owned: Callable[[str], bool]) -> None:
        lines = [line for _, line in self._lines(self.settings.key_prefix)]
        for waiter in self._described([each for line in lines for each in line[len(holders_of(line)) :]]):
            if waiter is not None and owned(waiter.owner):
                self._withdraw(waiter.node, waiter.lease)

    # who has it

    def _line(self, key: str) -> Line:
        return self._read(self._folder(key))

    def holder(self, key: str) -> Holder | None:
        """See the base class; of several holders the oldest, and their number as its count."""
        holders = holders_of(self._line(key))
        if not holders:
            return None
        oldest = self._described(holders[:1])[0] or holders[0]
        return Holder(oldest.owner, len(holders), self._remaining(oldest))

    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        """See the base class; reads everything below the prefix, and each hold."""
        return [
            Held(
                key=key,
                owner=entry.owner,
                kind=entry.kind,
                remaining=self._remaining(entry),
                token=entry.token,
                waiters=waiters,
                since=entry.since,
            )
            for key, entry, waiters in self._holders(prefix)[offset : offset + limit]
        ]

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

    def processes(self) -> dict[str, Heartbeat]:
        return self._heartbeats_of(bool)

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        return self._heartbeats_of(frozenset(clients).__contains__)

    def _clients(self, folders: Iterable[str], wanted: Callable[[str], bool]) -> dict[str, str]:
        """Return the wanted clients of this alias by the names of their records."""
        prefix, keys = self.settings.key_prefix, {folder: key_of(folder) for folder in folders}
        clients = {name: key.removeprefix(prefix) for name, key in keys.items() if key.startswith(prefix)}
        return {name: client for name, client in clients.items() if wanted(client)}

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; BackendUnavailable where no server answers."""
        return list(self._judged(*self._statuses())) if live else []

    def _judged(self, statuses: Mapping[str, Status | None], is_alone: bool) -> Iterator[CheckMessage]:
        where = f"LOCKING[{self.alias!r}]"
        there = {address: status for address, status in statuses.items() if status is not None}
        if not there:
            raise BackendUnavailable(f"no {self.engine} server answers at {', '.join(statuses)}")
        if silent := [address for address, status in statuses.items() if status is None]:
            text = f"{len(silent)} {self.engine} servers of {where} don't answer: {', '.join(silent)}."
            hint = "Start them: locks stop when more than half of the servers are gone."
            yield Warning(text, hint=hint, id="locking.W103")
        if lost := [address for address, status in there.items() if not status.has_leader]:
            text = f"{self.engine} at {', '.join(lost)} ({where}) has no leader, and so no quorum."
            yield Error(text, hint="Start the other servers.", id="locking.E103")
        elif is_alone:
            text = f"{self.engine} of {where} has a single server: if it fails, no other takes over."
            yield Warning(text, hint="Run three or five servers.", id="locking.W102")
        oldest = min(
            (status.version for status in there.values() if status.version), key=_numbers, default=""
        )
        if oldest and _numbers(oldest) < _numbers(self.floor):
            text = f"A {self.engine} server of {where} has version {oldest}, older than {self.floor}."
            yield Error(text, hint="Upgrade the server: it lacks requests of the locks.", id="locking.E102")

    # kinds

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; the ordinary lock is fair here."""
        which = kind, options.get("permits", 0)
        if kind != "fair" and which not in self._variants:
            self._variants[which] = made = copy(self)
            made.alias, made._variants = f"{self.settings.alias}/{kind}", {}
            (made.kind, made.permits), made.exclusive = which, kind != "semaphore"
        return self._variants.get(which, self)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("-")[0].split(".")[:2] if number.isdigit())


class Contender(WaitingSteps):
    """The steps of one waiter, one thread at a time.

    A cancelled task leaves its request running in a thread: `give_up` waits for that one, and a request that
    is sent later does nothing.

    Attributes:
        key, owner, ttl: what is wanted.
        asked: a request that may have enqueued it has been sent.
        hold: what it surely created itself, and is granted when its turn comes.
    """

    unsettled: bool

    def __init__(self, backend: QueueBackend, key: str, owner: str, ttl: float) -> None:
        super().__init__()
        self._backend, self.key, self.owner, self.ttl = backend, key, owner, ttl
        self.asked = False
        self.hold: LocalLease | None = None
        self._mutex, self._left = threading.Lock(), False

    def __call__(self, _event: object = None) -> None:
        """Wake the waiter: a contender serves as the engine's callback."""
        self.wake()

    def ask(self, *, queue: bool) -> Outcome:
        with self._mutex:
            if self._left:
                raise LockError(f"the waiter in the queue of {self.key!r} was given up")
            return self._backend.enqueue(self, queue=queue)

    def give_up(self) -> None:
        """Take its entry away, whether it waits or holds; one whose end isn't heard outlives a break of the
        connection, and would have its turn.
        """
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
