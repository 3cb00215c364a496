"""Engines that keep contenders in a queue: ZooKeeper, etcd.

Each contender creates a numbered node, the lowest has the lock, and each waiter is woken by the
end of the one before it, so that a release wakes one. Source: P. Hunt et al., "ZooKeeper: Wait-free
coordination for Internet-scale systems", USENIX ATC 2010, section 2.4 (simple locks without herd effect,
read/write locks).
"""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

from locking.backends.base import AsyncWaiter, BaseLockBackend, Busy, Grant, Held, Holder, Outcome, Waiter
from locking.backends.capabilities import ForceRelease, Kinds, Listing
from locking.backends.lease_expirer import LeaseExpirer
from locking.backends.waiters import WaitingSteps, WokenTask, WokenThread
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable, LockError
from locking.utils.clock import now

OUTAGE_PAUSE: Final = 0.25
"""Seconds until a waiter asks again while the servers have no leader."""

SUFFIXES: Final = {"lock": "", "read": "%rw", "write": "%rw", "semaphore": "%semaphore"}
"""What the folder of a lock is called behind its name."""


def without_suffix(folder: str) -> str:
    """Return the name of a folder, whatever the kind."""
    return folder.removesuffix("%rw").removesuffix("%semaphore")


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


def holders_of(line: Sequence[QueueEntry]) -> Sequence[QueueEntry]:
    """Return the contenders of a queue, sorted by number, that have the lock.

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


def blockers_of(line: Sequence[QueueEntry], mine: QueueEntry) -> Sequence[QueueEntry]:
    """Return those whose end `mine` must watch: none if it has the lock, for a semaphore all before it.

    A permit may come back from any holder, so a semaphore's waiters are all woken by each of them.
    """
    ahead = [contender for contender in line if contender.order < mine.order]
    if mine.kind == "read":
        return [contender for contender in ahead if contender.kind != "read"][-1:]
    if mine.kind == "semaphore":
        return ahead if ahead and len(ahead) >= ahead[0].permits else ()
    return ahead[-1:]


def admits(line: Sequence[QueueEntry], kind: str, permits: int) -> bool:
    """Whether one who came now would have the lock at once."""
    return not blockers_of(line, QueueEntry("", sys.maxsize, kind, permits))


@dataclass(slots=True, eq=False)
class Contender:
    """The state of one waiter; `wake` is called when it is worth asking again.

    Attributes:
        key, owner, ttl: what is wanted.
        wake: called from any thread.
        node: its entry in the queue, once it has one.
        asked: a request that may have enqueued it has been sent.
        created: its entry in the queue is surely its own, and not from before.
        token, session: the fencing token and the engine's session of its node.
        left: it has been given up; a request that a thread left behind sends later does nothing.
    """

    key: str
    owner: str
    ttl: float
    wake: Callable[[], None]
    node: str | None = None
    asked: bool = False
    created: bool = False
    token: int = 0
    session: int = 0
    left: bool = False
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, _event: object = None) -> None:
        """Wake the waiter: a contender serves as the engine's callback."""
        self.wake()


class QueueBackend(Kinds, Listing, ForceRelease):
    """What both engines have in common; a variant is a copy on the same servers, with a queue of its own.

    `_queued` returns the queue, with the contender's own entry in it if it was enqueued; `_entry_of` finds an
    owner's entry there. `_watch` has the contender woken when a blocker ends, and is False when one has ended
    already. `_withdraw` takes an entry away, and is False when it was gone.
    """

    supports_fencing = True
    lists_by_age = False  # the engines know who came first, not when each was granted
    supports_fairness = True
    kinds = frozenset({"read", "write", "semaphore", "fair"})

    kind: str = "lock"
    permits: int = 0
    alone: bool
    """There is a single server, so that no other takes over when it fails."""
    _holds: LeaseExpirer

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._variants: dict[tuple[str, int], QueueBackend] = {}

    # the queue

    def enqueue(self, contender: Contender, *, queue: bool) -> Outcome:
        """Take the lock if it is the contender's turn; else, with `queue`, wait in the queue and watch."""
        try:
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
                return self._grant(contender, mine, sent)
            if not queue:
                self._withdraw(mine)
                return self._busy(line)
            if self._watch(contender, blockers, line):
                return self._busy(line)

    @abstractmethod
    def _queued(self, contender: Contender, queue: bool) -> Sequence[Any]: ...

    @abstractmethod
    def _entry_of(self, line: Any, owner: str) -> Any: ...

    @abstractmethod
    def _grant(self, contender: Contender, mine: Any, sent: float) -> Grant: ...

    @abstractmethod
    def _busy(self, line: Any) -> Busy: ...

    @abstractmethod
    def _watch(self, contender: Contender, blockers: Sequence[QueueEntry], line: Any) -> bool: ...

    @abstractmethod
    def _withdraw(self, entry: Any) -> bool: ...

    def dequeue(self, contender: Contender) -> None:
        """Remove the contender from the queue, whether it waits or holds."""
        self.release(contender.key, contender.owner)

    @abstractmethod
    def poll_interval(self, contender: Contender) -> float:
        """Return the seconds that a waiter may sleep at most before it must ask again."""

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return self.enqueue(Contender(key, owner, ttl, wake=lambda: None), queue=False)

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return QueueThreadWaiter(self, key, owner, ttl)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return QueueTaskWaiter(self, key, owner, ttl)

    # who has it

    def holder(self, key: str) -> Holder | None:
        """See the base class; of several holders the oldest, and their number as its count."""
        holders = holders_of(self._line(key))
        if not holders:
            return None
        oldest = self._described(holders[:1])[0] or holders[0]
        return Holder(oldest.owner, len(holders), self._remaining(oldest))

    @abstractmethod
    def _line(self, key: str) -> Sequence[QueueEntry]:
        """Return all who hold the lock or wait for it, sorted by number."""

    @abstractmethod
    def _described(self, entries: Sequence[QueueEntry]) -> Sequence[QueueEntry | None]:
        """Return each entry with all its fields; None for one that has ended."""

    @abstractmethod
    def _remaining(self, entry: QueueEntry) -> float | None:
        """Return the seconds left of a described entry's lease, as far as this process can tell."""

    def force_release(self, key: str, expected: str) -> bool:
        for holder in self._described(holders_of(self._line(key))):
            if holder is not None and holder.owner == expected:
                self._holds.pop(key, expected)
                return self._withdraw(holder)
        return False

    def dequeue_owned(self, owned: Callable[[str], bool]) -> None:
        lines = [line for _, line in self._lines(self.settings.key_prefix)]
        waiters = [waiter for line in lines for waiter in line[len(holders_of(line)) :]]
        for waiter in self._described(waiters):
            if waiter is not None and owned(waiter.owner):
                self._withdraw(waiter)

    # listing

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
        if self.kind != "lock":
            raise self.unsupported("list what is held: ask the backend itself")
        found = [
            (key, holder, len(line) - len(holders_of(line)))
            for key, line in self._lines(prefix)
            for holder in holders_of(line)
        ]
        described = zip(found, self._described([holder for _, holder, _ in found]), strict=True)
        held = [(key, entry, waiters) for (key, _, waiters), entry in described if entry is not None]
        return sorted(held, key=lambda hold: hold[1].token)

    @abstractmethod
    def _lines(self, prefix: str) -> Iterable[tuple[str, Sequence[QueueEntry]]]:
        """Return the keys that begin with `prefix`, each with its queue."""

    # kinds

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object per kind, because the watchdog renews by backend."""
        if kind not in self.kinds:
            raise self.unsupported(f"make a {kind} lock")
        which = (kind, options.get("permits", 0))
        if kind != "fair" and which not in self._variants:  # the ordinary lock is fair here
            self._variants[which] = self._copy(*which)
        return self._variants.get(which, self)

    def _copy(self, kind: str, permits: int) -> QueueBackend:
        made = copy(self)
        made.alias = f"{self.settings.alias}/{kind}"
        made.kind, made.permits, made.exclusive = kind, permits, kind != "semaphore"
        made._variants = {}
        return made


class QueueSteps(WaitingSteps):
    """A contender's steps, one thread at a time.

    A cancelled task leaves its request running in a thread: `give_up` waits for that one.
    """

    unsettled: bool

    def __init__(self, backend: QueueBackend, key: str, owner: str, ttl: float) -> None:
        super().__init__()
        self._backend, self._contender = backend, Contender(key, owner, ttl, self.wake)

    def ask(self, *, queue: bool) -> Outcome:
        contender = self._contender
        with contender.mutex:
            if contender.left:
                raise LockError(f"the waiter in the queue of {contender.key!r} was given up")
            return self._backend.enqueue(contender, queue=queue)

    def give_up(self) -> None:
        """Cancel the contender; an entry whose end isn't heard outlives a break of the connection, and would
        have its turn.
        """
        with self._contender.mutex:
            self._contender.left = True
            try:
                self._backend.dequeue(self._contender)
            except LockError:
                self.unsettled = True

    def pause(self) -> float:
        return self._backend.poll_interval(self._contender)


class QueueThreadWaiter(QueueSteps, WokenThread):
    """A thread in the queue."""


class QueueTaskWaiter(QueueSteps, WokenTask):
    """A task in the queue."""
