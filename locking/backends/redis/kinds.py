"""What a kind of lock sends, without any I/O; here the ordinary lock, in `redisson_kinds` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple

from locking.backends.base import Holder
from locking.backends.redis.scripts import (
    Index,
    Request,
    Script,
    acquire_request,
    braced_key,
    derived,
    extend_request,
    fair_queue,
    milliseconds,
    release_request,
)

ORDINARY_KEYS: Final = ("lock", "token", "queue", "index")

NAMED: Final[dict[str, type[Kind]]] = {}
LETTERS: Final[dict[str, type[Kind]]] = {}
"""The kinds that are loaded, by their `name` and by their `LETTER`."""


class Kind:
    """One kind of lock: its keys, its channel and its scripts, and the requests that follow from them.

    The scripts of a verb are called alike: only those of read holds look at `{name}`, by which they find all.
    """

    name: ClassVar[str]
    LETTER: ClassVar[str]
    """What its members of the index begin with."""
    SHARED: ClassVar[bool] = False
    """Many may read, or have a permit: there the owner follows the letter, and a blank."""
    CHANNEL: ClassVar[bytes] = b"redisson_lock__channel"
    """What its channel's name begins with."""
    KEYS: ClassVar[tuple[str, ...]] = ORDINARY_KEYS
    """The keys of its scripts, named as in `_keys`."""
    LISTED_KEYS: ClassVar[tuple[str, ...]] = ORDINARY_KEYS
    HOLDER_KEYS: ClassVar[tuple[str, ...]] = ("lock",)
    ACQUIRE: ClassVar[Script]
    EXTEND: ClassVar[Script]
    RELEASE: ClassVar[Script]
    LIST: ClassVar[Script] = Script("is_external", "list_lock")
    FOREIGN: ClassVar[tuple[str, str]] = ("", "")
    """Redis' type and the pattern, `%s` for the prefix, of keys by which locks of other clients are found."""
    HOLDER: ClassVar[Script] = Script("readers", "is_external", "holder_fields")

    def __init__(self, index: Index) -> None:
        self.index = index

    def __init_subclass__(cls) -> None:
        NAMED[cls.name] = LETTERS[cls.LETTER] = cls

    def _keys(self, names: tuple[str, ...], key: str, owner: str) -> list[bytes]:
        lock, braced = key.encode(), braced_key(key.encode())
        known = {
            "lock": lock,
            "token": b"redisson_lock_token:%b" % braced,
            "queue": b"holdfast_lock_queue:%b" % braced,
            "index": self.index.of(lock),
            "read hold": b"%b:%b:rwlock_timeout:1" % (braced, owner.encode()),
            "permits' ends": b"%b:timeout" % braced,
            "permits in all": b"holdfast_semaphore:%b" % braced,
            "fair queue": fair_queue(lock),
            "fair timeouts": b"redisson_lock_timeout:%b" % braced,
        }
        return [known[name] for name in names]

    def _call(self, script: Script, keys: list[bytes], *arguments: bytes | int) -> Request:
        """Return the call of a script, in the form that this server needs."""
        return (script.in_cluster if self.index.clustered else script).call(keys, *arguments)

    def _ask(self, script: Script, key: str, owner: str, *arguments: bytes | int) -> Request:
        return self._call(script, self._keys(self.KEYS, key, owner), owner.encode(), *arguments)

    def _channel(self, key: str) -> bytes:
        return derived(self.CHANNEL, key.encode())

    def channel(self, key: str, owner: str) -> str:
        """Return the channel that wakes a waiter."""
        return self._channel(key).decode()

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        """Return the request that takes the lock."""
        return self._ask(self.ACQUIRE, key, owner, milliseconds(ttl), int(keep))

    def extend(self, key: str, owner: str, ttl: float, *, exactly: bool = False) -> Request:
        """Return the request that has a hold last so long at least, or exactly.

        It answers 1, or 0 when there is none.
        """
        given = milliseconds(ttl), self._channel(key), braced_key(key.encode()), int(exactly)
        return self._ask(self.EXTEND, key, owner, *given)

    def release(self, key: str, owner: str) -> Request:
        """Return the request that ends a hold; it answers 1, or 0 when there is none."""
        return self._ask(self.RELEASE, key, owner, self._channel(key), braced_key(key.encode()))

    def leave(self, key: str, owner: str) -> Request | None:
        """Return the request that a waiter sends who gives up, if there is a queue to leave."""
        return None

    def look(self, entry: Entry) -> Request:
        """Return the request that checks an entry of the index, or removes it."""
        key, owner = entry.key.decode(), entry.owner.decode()
        given = entry.member, self._channel(key), *self._listing_arguments(key, owner)
        return self._call(self.LIST, self._keys(self.LISTED_KEYS, key, owner), *given)

    def _listing_arguments(self, key: str, owner: str) -> tuple[bytes, ...]:
        return owner.encode(), braced_key(key.encode())

    def adopt(self, found: bytes, prefix: bytes) -> Iterable[Request]:
        """Return the requests that list what other clients hold by such a key, of locks with this prefix."""
        return ()

    def holder(self, key: str) -> Request:
        """Return the request for the holder of the lock; see `read_holder`."""
        return self._call(self.HOLDER, self._keys(self.HOLDER_KEYS, key, ""), braced_key(key.encode()))


def read_holder(reply: Any) -> Holder | None:
    """Return what `Kind.holder` asked: one of the holders, how many there are, and the time left."""
    if reply is None:
        return None
    count, owner, left = reply
    return Holder(owner.decode(), count, None if left < 0 else left / 1000)


class Ordinary(Kind):
    """The ordinary lock, which is handed over by its release."""

    name = "lock"
    LETTER = "L"
    HOLDER = Script("is_external", "get_holder")
    SHORTEN = Script("token", "hold", "announce", "handoff", "shorten")
    FORCE_RELEASE = Script(
        "announce", "wake_fair", "release_free", "token", "hold", "handoff", "is_external", "release"
    )
    ADOPT = Script("is_external", "index_external")
    RAISE_TOKEN = Script("raise_token")
    FOREIGN = "hash", "%s*"

    def acquire(self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool) -> Request:
        """See the base class; a place in the queue takes more, see `waiter.HandoffWaiter`."""
        return acquire_request(key, owner, ttl, keep=keep, entry=b"", index=self.index)

    def extend(self, key: str, owner: str, ttl: float, *, exactly: bool = False) -> Request:
        """See the base class; unless it is `exactly`, it answers in a list."""
        if exactly:
            return self._ask(self.SHORTEN, key, owner, milliseconds(ttl), self._channel(key))
        return extend_request([(key, owner, ttl)])

    def release(self, key: str, owner: str) -> Request:
        return release_request(key, owner, index=self.index)

    def force_release(self, key: str, owner: str) -> Request:
        """Return the call of release.lua for an operator, see wake_fair.lua."""
        return self._ask(self.FORCE_RELEASE, key, owner, self._channel(key), b"", fair_queue(key.encode()))

    def adopt(self, found: bytes, prefix: bytes) -> Iterable[Request]:
        return [self.ADOPT.call([found, found, found, self.index.of(found)])]

    def raise_token(self, key: str, owner: str, token: int, *, keep: bool) -> Request:
        """Return the call of raise_token.lua."""
        return self._ask(self.RAISE_TOKEN, key, owner, token, int(keep))

    def _listing_arguments(self, key: str, owner: str) -> tuple[bytes, ...]:
        return (fair_queue(key.encode()),)


class Entry(NamedTuple):
    """One member of an index, with its score.

    Attributes:
        owner: of the hold, where a lock may have several; else empty.
        token: the fencing token minted for it, which is also its time in microseconds.
        member: as it stands in the index.
    """

    kind: str
    key: bytes
    owner: bytes
    token: int
    member: bytes


def is_hold(member: bytes) -> bool:
    """Return whether a member of an index is a hold of a kind that is loaded; the last token isn't."""
    return member[:1].decode() in LETTERS


def read_entry(member: bytes, score: float) -> Entry:
    """Return what a member of the index and its score say."""
    kind, rest = LETTERS[member[:1].decode()], member[1:]
    owner, key = rest.split(b" ", 1) if kind.SHARED else (b"", rest)
    return Entry(kind.name, key, owner, int(score), member)
