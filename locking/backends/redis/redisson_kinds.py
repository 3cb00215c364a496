"""Redisson's other kinds of lock: read-write, semaphore with expiring permits, fair; without any I/O.

They are announced on a channel and granted to the first that asks (the fair lock: by the head of its own
queue), as the Java side does it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from locking.backends.redis.scripts import Index, Kind, Request, Script, derived, milliseconds

# Milliseconds that a waiter of a fair lock may be silent: Redisson's default, which all clients must share.
FAIR_PATIENCE: Final = 300_000


class Read(Kind):
    """The shared side of a read-write lock."""

    name = "read"
    LETTER = "R"
    SHARED = True
    CHANNEL = b"redisson_rwlock"
    KEYS = LISTED_KEYS = ("lock", "token", "read hold", "index")
    ACQUIRE = Script("token", "is_external", "acquire_read")
    EXTEND = Script("announce", "readers", "extend_read")
    RELEASE = Script("announce", "readers", "release_read")
    LIST = Script("is_external", "readers", "list_read")


class Write(Kind):
    """The exclusive side of a read-write lock."""

    name = "write"
    LETTER = "W"
    CHANNEL = b"redisson_rwlock"
    KEYS = ("lock", "token", "index")
    ACQUIRE = Script("token", "is_external", "acquire_write")
    EXTEND = Script("announce", "extend_write")
    RELEASE = Script("announce", "release_write")
    LIST = Script("is_external", "list_write")


class Semaphore(Kind):
    """Permits that end by themselves; a hold is one permit."""

    name = "semaphore"
    LETTER = "S"
    SHARED = True
    CHANNEL = b"redisson_sc"
    KEYS = LISTED_KEYS = HOLDER_KEYS = ("lock", "token", "permits' ends", "index", "permits in all")
    ACQUIRE = Script("token", "announce", "permits", "acquire_permit")
    EXTEND = Script("announce", "permits", "extend_permit")
    RELEASE = Script("announce", "permits", "release_permit")
    LIST = Script("permits", "list_permit")
    HOLDER = Script("permits", "holder_permit")
    FOREIGN = "zset", "*:timeout"
    ADOPT = Script("is_external", "permits", "adopt_permits")

    def __init__(self, index: Index, permits: int = 1) -> None:
        super().__init__(index)
        self._permits = permits

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        given = milliseconds(ttl), int(keep), self._permits, self._channel(key)
        return self._ask(self.ACQUIRE, key, owner, *given)

    def adopt(self, found: bytes, prefix: bytes) -> Iterator[Request]:
        """See the base class: `{a}:timeout` is `a`'s and `{a}`'s."""
        name = found.removesuffix(b":timeout")
        braced = name.startswith(b"{") and name.endswith(b"}")
        for key in [each for each in ((name, name[1:-1]) if braced else (name,)) if each.startswith(prefix)]:
            yield self.ADOPT.call([key, derived(b"redisson_lock_token", key), found, self.index.of(key)])


class Fair(Kind):
    """Redisson's fair lock, whose queue Java waiters share.

    The ordinary lock is first in, first out among Python waiters already; this one is for sharing with
    RFairLock.
    """

    name = "fair"
    LETTER = "F"
    KEYS = ("lock", "token", "fair queue", "fair timeouts", "index")
    LISTED_KEYS = ("lock", "token", "fair queue", "index")
    ACQUIRE = Script("token", "prune_queue", "is_external", "acquire_fair")
    EXTEND = Script("announce", "extend_fair")
    RELEASE = Script("announce", "prune_queue", "release_fair")

    def channel(self, key: str, owner: str) -> str:
        return f"{super().channel(key, owner)}:{owner}"

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        given = milliseconds(ttl), int(keep), FAIR_PATIENCE, _epoch_ms(), int(queue)
        return self._ask(self.ACQUIRE, key, owner, *given)

    def release(self, key: str, owner: str) -> Request:
        return self._ask(self.RELEASE, key, owner, self._channel(key), FAIR_PATIENCE, _epoch_ms())

    def leave(self, key: str, owner: str) -> Request | None:
        return self.release(key, owner)

    def _listing_arguments(self, key: str, owner: str) -> tuple[bytes, ...]:
        return ()


def _epoch_ms() -> int:
    """Return the wall clock, by which Redisson dates places in the fair queue; no lease depends on it."""
    return int(time.time() * 1000)  # noqa: TID251 shown
