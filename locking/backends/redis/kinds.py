"""Redisson's other locks: read-write, semaphore with expiring permits, fair. What each sends, without any
I/O.

They are announced on a channel and granted to the first that asks (the fair lock: by the head of its own
queue), as the Java side does it; the handoff of `acquire.lua` is for the ordinary lock only.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from locking.backends.base import Holder
from locking.backends.redis.index import Index
from locking.backends.redis.scripts import (
    DONT_KEEP,
    KEEP,
    LIST_LOCK,
    Request,
    Script,
    acquire_request,
    bulk,
    derived,
    extend_request,
    fair_queue,
    lock_channel,
    look_request,
    pack,
    packed_ms,
    release_request,
)

FAIR_PATIENCE: Final = 300_000
"""Milliseconds that a waiter of a fair lock may be silent: Redisson's default, which all clients must share.
"""


class Kind(ABC):
    """One kind of lock: its channel and its three requests."""

    name: str

    def __init__(self, index: Index) -> None:
        self.index = index

    @abstractmethod
    def channel(self, key: str, owner: str) -> str:
        """Return the channel that wakes a waiter."""

    @abstractmethod
    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        """Return the request that takes the lock."""

    @abstractmethod
    def extend(self, key: str, owner: str, ttl: float) -> Request:
        """Return the request that prolongs a hold; it answers 1, or 0 when there is none."""

    @abstractmethod
    def release(self, key: str, owner: str) -> Request:
        """Return the request that ends a hold; it answers 1, or 0 when there is none."""

    def holder(self, key: str) -> Request:
        """Return the request for the holder of the lock; see `read_holders`."""
        return _call(HOLDER_FIELDS, [key.encode()], bulk(_braced(key)))

    def leave(self, key: str, owner: str) -> Request | None:
        """Return the request that a waiter sends who gives up, if there is a queue to leave."""
        return None

    @abstractmethod
    def look(self, key: str, owner: str, member: bytes) -> Request:
        """Return the request that checks an entry of the index, or removes it."""


def _braced(key: str) -> bytes:
    raw = key.encode()
    return raw if b"{" in raw else b"{%b}" % raw


def _token(key: str) -> bytes:
    return derived(b"redisson_lock_token", key.encode())


def _call(script: Script, keys: list[bytes], *arguments: bytes) -> Request:
    packed = pack(b"%d" % len(keys), *keys) + b"".join(arguments)
    return script.request(1 + len(keys) + len(arguments), packed, keys[0])


ACQUIRE_READ: Final = Script("token", "is_external", "acquire_read")
ACQUIRE_WRITE: Final = Script("token", "is_external", "acquire_write")
RELEASE_READ: Final = Script("announce", "readers", "release_read")
RELEASE_WRITE: Final = Script("announce", "release_write")
EXTEND_READ: Final = Script("announce", "readers", "extend_read")
EXTEND_WRITE: Final = Script("announce", "extend_write")
ACQUIRE_PERMIT: Final = Script("token", "announce", "permits", "acquire_permit")
RELEASE_PERMIT: Final = Script("announce", "permits", "release_permit")
EXTEND_PERMIT: Final = Script("announce", "permits", "extend_permit")
HOLDER_PERMIT: Final = Script("permits", "holder_permit")
ACQUIRE_FAIR: Final = Script("token", "prune_queue", "is_external", "acquire_fair")
RELEASE_FAIR: Final = Script("announce", "prune_queue", "release_fair")
EXTEND_FAIR: Final = Script("announce", "extend_fair")
LIST_READ: Final = Script("is_external", "readers", "list_read")
LIST_WRITE: Final = Script("is_external", "list_write")
LIST_PERMIT: Final = Script("permits", "list_permit")
ADOPT_PERMITS: Final = Script("is_external", "permits", "adopt_permits")
HOLDER_FIELDS: Final = Script("readers", "is_external", "holder_fields")


def _read_write_channel(key: str) -> str:
    return derived(b"redisson_rwlock", key.encode()).decode()


class Read(Kind):
    """The shared side of a read-write lock."""

    name = "read"

    def channel(self, key: str, owner: str) -> str:
        return _read_write_channel(key)

    def _keys(self, key: str, owner: str) -> list[bytes]:
        raw = key.encode()
        ends = b"%b:%b:rwlock_timeout:1" % (_braced(key), owner.encode())
        return [raw, _token(key), ends, self.index.of(raw)]

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        arguments = bulk(owner.encode()), packed_ms(ttl), KEEP if keep else DONT_KEEP
        return _call(ACQUIRE_READ, self._keys(key, owner), *arguments)

    def extend(self, key: str, owner: str, ttl: float) -> Request:
        told = bulk(_read_write_channel(key).encode()), bulk(_braced(key))
        return _call(EXTEND_READ, self._keys(key, owner), bulk(owner.encode()), packed_ms(ttl), *told)

    def release(self, key: str, owner: str) -> Request:
        arguments = owner.encode(), _read_write_channel(key).encode(), _braced(key)
        return _call(RELEASE_READ, self._keys(key, owner), *map(bulk, arguments))

    def look(self, key: str, owner: str, member: bytes) -> Request:
        told = bulk(member), bulk(_read_write_channel(key).encode())
        return _call(LIST_READ, self._keys(key, owner), *told, bulk(owner.encode()), bulk(_braced(key)))


class Write(Kind):
    """The exclusive side of a read-write lock."""

    name = "write"

    def channel(self, key: str, owner: str) -> str:
        return _read_write_channel(key)

    def _keys(self, key: str) -> list[bytes]:
        return [key.encode(), _token(key), self.index.of(key.encode())]

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        arguments = bulk(owner.encode()), packed_ms(ttl), KEEP if keep else DONT_KEEP
        return _call(ACQUIRE_WRITE, self._keys(key), *arguments)

    def extend(self, key: str, owner: str, ttl: float) -> Request:
        arguments = bulk(owner.encode()), packed_ms(ttl), bulk(_read_write_channel(key).encode())
        return _call(EXTEND_WRITE, self._keys(key), *arguments)

    def release(self, key: str, owner: str) -> Request:
        arguments = owner.encode(), _read_write_channel(key).encode()
        return _call(RELEASE_WRITE, self._keys(key), *map(bulk, arguments))

    def look(self, key: str, owner: str, member: bytes) -> Request:
        told = bulk(member), bulk(_read_write_channel(key).encode())
        return _call(LIST_WRITE, [*self._keys(key)[:2], _token(key), self.index.of(key.encode())], *told)


class Semaphore(Kind):
    """Permits that end by themselves; a hold is one permit."""

    name = "semaphore"

    def __init__(self, index: Index, permits: int) -> None:
        super().__init__(index)
        self._permits = b"%d" % permits

    def channel(self, key: str, owner: str) -> str:
        return derived(b"redisson_sc", key.encode()).decode()

    def _keys(self, key: str) -> list[bytes]:
        raw = key.encode()
        total = derived(b"holdfast_semaphore", raw)
        return [raw, _token(key), b"%b:timeout" % _braced(key), self.index.of(raw), total]

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        channel = bulk(self.channel(key, owner).encode())
        arguments = (
            bulk(owner.encode()),
            packed_ms(ttl),
            KEEP if keep else DONT_KEEP,
            bulk(self._permits),
            channel,
        )
        return _call(ACQUIRE_PERMIT, self._keys(key), *arguments)

    def extend(self, key: str, owner: str, ttl: float) -> Request:
        arguments = bulk(owner.encode()), packed_ms(ttl), bulk(self.channel(key, owner).encode())
        return _call(EXTEND_PERMIT, self._keys(key), *arguments)

    def release(self, key: str, owner: str) -> Request:
        arguments = owner.encode(), self.channel(key, owner).encode()
        return _call(RELEASE_PERMIT, self._keys(key), *map(bulk, arguments))

    def holder(self, key: str) -> Request:
        return _call(HOLDER_PERMIT, self._keys(key))

    def look(self, key: str, owner: str, member: bytes) -> Request:
        told = bulk(member), bulk(self.channel(key, owner).encode())
        return _call(LIST_PERMIT, self._keys(key), *told, bulk(owner.encode()))


class Fair(Kind):
    """Redisson's fair lock, whose queue Java waiters share.

    The ordinary lock is first in, first out among Python waiters already; this one is for sharing with
    RFairLock.
    """

    name = "fair"

    def channel(self, key: str, owner: str) -> str:
        return f"{self._channels(key).decode()}:{owner}"

    def _channels(self, key: str) -> bytes:
        """Return what every waiter's channel begins with."""
        return derived(b"redisson_lock__channel", key.encode())

    def _keys(self, key: str) -> list[bytes]:
        raw = key.encode()
        return [
            raw,
            _token(key),
            fair_queue(raw),
            derived(b"redisson_lock_timeout", raw),
            self.index.of(raw),
        ]

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        waiting = bulk(b"%d" % FAIR_PATIENCE), bulk(_epoch_ms()), bulk(b"%d" % queue)
        arguments = bulk(owner.encode()), packed_ms(ttl), KEEP if keep else DONT_KEEP, *waiting
        return _call(ACQUIRE_FAIR, self._keys(key), *arguments)

    def extend(self, key: str, owner: str, ttl: float) -> Request:
        arguments = bulk(owner.encode()), packed_ms(ttl), bulk(self._channels(key))
        return _call(EXTEND_FAIR, self._keys(key), *arguments)

    def release(self, key: str, owner: str) -> Request:
        arguments = owner.encode(), self._channels(key), b"%d" % FAIR_PATIENCE, _epoch_ms()
        return _call(RELEASE_FAIR, self._keys(key), *map(bulk, arguments))

    def leave(self, key: str, owner: str) -> Request | None:
        return self.release(key, owner)

    def look(self, key: str, owner: str, member: bytes) -> Request:
        told = bulk(member), bulk(self._channels(key))
        return _call(LIST_LOCK, [*self._keys(key)[:3], self.index.of(key.encode())], *told)


class Ordinary(Kind):
    """The ordinary lock, which is handed over by its release."""

    name = "lock"

    def channel(self, key: str, owner: str) -> str:
        return lock_channel(key)

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        """See the base class; a place in the queue takes more, see `waiter.QueueWaitSteps`."""
        return acquire_request(key, owner, ttl, keep=keep, entry=b"", index=self.index)

    def extend(self, key: str, owner: str, ttl: float) -> Request:
        """See the base class; it answers in a list."""
        return extend_request([(key, owner, ttl)])

    def release(self, key: str, owner: str) -> Request:
        return release_request(key, owner, index=self.index)

    def look(self, key: str, owner: str, member: bytes) -> Request:
        return look_request(key, member, index=self.index)


def key_of_queue(queue: bytes) -> str:
    """Return the key of a fair lock's queue; of `{a}` and `a`, which share theirs, the latter.

    Example:
        >>> key_of_queue(b"redisson_lock_queue:{a}")
        'a'
    """
    name = queue.decode().removeprefix("redisson_lock_queue:")
    return name[1:-1] if name.startswith("{") and name.endswith("}") else name


def semaphores_of(ends: bytes) -> list[bytes]:
    """Return the semaphores whose permits' ends may lie in this key: `{a}:timeout` is `a`'s and `{a}`'s.

    Example:
        >>> semaphores_of(b"{a}:timeout")
        [b'{a}', b'a']
    """
    name = ends.removesuffix(b":timeout")
    return [name, name[1:-1]] if name.startswith(b"{") and name.endswith(b"}") else [name]


def adopt_permits_request(key: bytes, ends: bytes, *, index: Index) -> Request:
    """Return the call of adopt_permits.lua; `ends` is where the ends of its permits are kept."""
    return _call(ADOPT_PERMITS, [key, derived(b"redisson_lock_token", key), ends, index.of(key)])


def _epoch_ms() -> bytes:
    """Return the wall clock, by which Redisson dates places in the fair queue; no lease depends on it."""
    return b"%d" % (time.time() * 1000)  # noqa: TID251 shown


def read_holders(reply: Any) -> Holder | None:
    """Return what a kind's `holder` answered: one of the holders, how many there are, and the time left."""
    if reply is None:
        return None
    count, owner, left = reply
    return Holder(owner.decode(), count, None if left < 0 else left / 1000)


def kind_named(name: str, index: Index, *, permits: int = 1) -> Kind:
    """Return the kind called `name`, whose holds are listed in `index`."""
    simple: dict[str, Callable[[Index], Kind]] = {"read": Read, "write": Write, "fair": Fair}
    return Semaphore(index, permits) if name == "semaphore" else simple[name](index)
