"""What some engines can beyond the interface: a mixin for each, by which the callers ask `isinstance`.

A backend inherits from the mixins of what its engine can do; the contract suite tests each claim both ways.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from locking.backends.base import BaseLockBackend, Finding, Heartbeat, Held

__all__ = [
    "Counters",
    "Diagnosis",
    "ForceRelease",
    "Heartbeats",
    "Kinds",
    "Listing",
    "ManyServers",
    "SessionBound",
]

PAGE: Final = 500  # holds that are read at a time where all are looked through


class Kinds(BaseLockBackend):
    """Knows further kinds of lock."""

    kinds: ClassVar[frozenset[str]]
    """Those of read, write, semaphore and fair that `variant` makes."""

    @abstractmethod
    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """Return the backend of one of `kinds`: one object each, because the watchdog renews by backend."""


class Listing(BaseLockBackend):
    """Lists the locks that are held."""

    lists_by_age: ClassVar[bool] = True
    """`held()` is in the order of the grants, whose time it tells."""

    @abstractmethod
    def held(self, *, prefix: str = "", offset: int = 0, limit: int = 50) -> list[Held]:
        """Return a page of what is held, the oldest first: `limit` holds from the `offset`-th on.

        Args:
            prefix: only keys that begin with it.
            offset: holds to pass over; what ends meanwhile shifts the rest.
            limit: the most to return.
        """

    @abstractmethod
    def count_held(self, *, prefix: str = "") -> int:
        """Return how many holds `held` would list in all; an estimate where counting exactly costs more."""

    def find_held(self, key: str, owner: str, kind: str) -> Held | None:
        """Return one hold as `held` would list it, or None when it has ended."""
        found = (hold for hold in self.held_as(key) if (hold.owner, hold.kind) == (owner, kind))
        return next(found, None)

    def held_as(self, key: str) -> Iterator[Held]:
        """Yield the holds of exactly this key, among those of longer keys that begin with it."""
        return (hold for hold in self.all_held(key) if hold.key == key)

    def all_held(self, prefix: str) -> Iterator[Held]:
        """Yield every hold whose key begins with `prefix`, the oldest first."""
        offset = 0
        while page := self.held(prefix=prefix, offset=offset, limit=PAGE):
            yield from page
            if len(page) < PAGE:
                return
            offset += len(page)


class ForceRelease(BaseLockBackend):
    """Ends what other clients hold or wait for."""

    @abstractmethod
    def force_release(self, key: str, expected: str) -> bool:
        """Break the hold of `expected` only; return False when it doesn't have the lock."""

    def dequeue_owned(self, owned: Callable[[str], bool]) -> None:
        """Take the waiters of a dead process out of every queue in which others would wait for them."""


class SessionBound:
    """Binds a hold to a session that must be kept alive. Asks no server: every look at a lease comes here."""

    def hold_ends(self, key: str, owner: str) -> float:
        """Return the `clock.now()` after which the hold may be over although its ttl isn't."""
        return math.inf

    def in_touch(self) -> bool:
        """Return whether the session is connected, as far as it is known."""
        return True


class ManyServers(BaseLockBackend):
    """Spreads its keys over servers of which one may fail by itself."""

    @abstractmethod
    def server_of(self, key: str) -> object:
        """Return what identifies the server that has `key`; None where there is only one."""


class Heartbeats(BaseLockBackend):
    """Stores the heartbeats of processes: see `locking.inspection.heartbeat`."""

    @abstractmethod
    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        """Store the heartbeats of some clients: what they publish, None = the same as before.

        Args:
            records: by the client's id, the part of an owner before the colon.
            forget: clients that hold nothing any more.
        """

    @abstractmethod
    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        """Return what is known of these clients, None = of all: for operators, who ask rarely."""


class Counters(BaseLockBackend):
    """Adds up the counters of all processes, by the minute."""

    @abstractmethod
    def add_counters(self, minute: int, figures: Mapping[str, int]) -> None:
        """Add to the sums of a minute (of Unix time)."""

    @abstractmethod
    def figures_by_minute(self, minutes: Sequence[int]) -> list[dict[str, int]]:
        """Return the sums of each of these minutes."""


class Diagnosis(BaseLockBackend):
    """Reports more of its servers than `check(live=True)`."""

    @abstractmethod
    def diagnose(self) -> list[Finding]:
        """Examine the servers and report what is well, too. Changes nothing.

        Raises:
            BackendError: a server doesn't answer at all, or refuses what every lock needs.
        """


def backend_of(backend: BaseLockBackend, kind: str, permits: int | None = None) -> BaseLockBackend:
    """Return the backend of a kind of lock; `permits` are for acquiring. LockNotSupported: no such kind."""
    if kind == "lock":
        return backend
    if not isinstance(backend, Kinds) or kind not in backend.kinds:
        raise backend.unsupported(f"make a {kind} lock: use Redis, etcd or ZooKeeper")
    return backend.variant(kind, **({"permits": permits or 1} if kind == "semaphore" else {}))


def releaser_of(backend: BaseLockBackend, kind: str) -> ForceRelease:
    """Return the backend that ends others' holds of a kind; LockNotSupported: the engine can't."""
    found = backend_of(backend, kind)
    if not isinstance(found, ForceRelease):
        raise backend.unsupported("force_release")
    return found


def listing(backend: BaseLockBackend) -> Listing:
    """Return the backend as one that lists; LockNotSupported: it can't."""
    if not isinstance(backend, Listing):
        raise backend.unsupported("list what is held")
    return backend
