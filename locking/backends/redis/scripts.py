"""What is sent to Redis and what its answers mean, without any I/O: threads and asyncio share it.

Requests are packed here, once, as bytes: packing them in redis-py's general way costs as much as Redis
itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import Any, ClassVar, Final, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from locking.backends.base import Busy, Grant, Holder, Outcome
from locking.utils.clock import now

new_tuple: Final = tuple.__new__


def pack(*parts: bytes | int) -> bytes:
    """Return the parts as RESP bulk strings, one after the other."""
    texts = [part if isinstance(part, bytes) else b"%d" % part for part in parts]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


@lru_cache(maxsize=256)
def packed_ms(seconds: float) -> bytes:
    """Return a ttl as it is sent; few different ones are in use at a time."""
    return pack(milliseconds(seconds))


class Script:
    """A Lua script, called by its digest and sent whole only when the server doesn't know it."""

    def __init__(self, *names: str) -> None:
        self.names = names  # its files, in their order
        source = guarded(b"\n".join(_read(name) for name in names), "permits" in names)
        self.releases = names[-1].startswith("release")
        self.acquires = names[-1].startswith("acquire")
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        # Its two forms, packed; the rest of a request follows.
        self.by_digest, self.by_source = pack(b"EVALSHA", digest), pack(b"EVAL", source)
        self.in_cluster = self
        if "announce" in names:  # which takes another way in a cluster
            self.in_cluster = Script(*("announce_sharded" if name == "announce" else name for name in names))

    def call(self, keys: Sequence[bytes], *arguments: bytes | int) -> Request:
        """Return the request with these keys and arguments."""
        count = 3 + len(keys) + len(arguments)
        packet = b"*%d\r\n%b%b" % (count, self.by_digest, pack(len(keys), *keys, *arguments))
        return Request(self, packet, keys[0])


class Resent(NamedTuple):
    """The reply to an acquisition that was sent twice: the first request may be served after the release."""

    reply: Any


class Request(NamedTuple):
    """One call of a script, or an ordinary command; `key` tells where it goes."""

    script: Script | None
    by_digest: bytes
    key: bytes

    @property
    def by_source(self) -> bytes:
        """The form that a server understands which has never seen the script."""
        if self.script is None:
            return self.by_digest
        return self.by_digest.replace(self.script.by_digest, self.script.by_source, 1)

    def settled(self, reply: Any) -> Any:
        """Return what `reply` to a second sending means, when the reply to the first was lost.

        A release that finds nothing to release, the second time, was most likely carried out the first time.
        """
        return 1 if self.script is not None and self.script.releases and reply == 0 else reply

    def resent(self, reply: Any) -> Any:
        """Return `settled`, marked where the first sending may still arrive and take the lock."""
        if isinstance(reply, Resent):
            return reply
        return Resent(reply) if self.script is not None and self.script.acquires else self.settled(reply)


def command(*parts: str | bytes | int) -> Request:
    """Return an ordinary command, which is safe to repeat; its second part is its key."""
    raw = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
    return Request(None, b"*%d\r\n%b" % (len(raw), pack(*raw)), raw[1] if len(raw) > 1 else b"")


def guarded(source: bytes, is_semaphore: bool) -> bytes:
    """Return a script whose errors about keys of another use say which key, and what to do; see guard.lua."""
    expected = b"string" if is_semaphore else b"hash"  # the Redis type of its first key
    return b"local expected = '%b'\nlocal function script()\n%b\nend\n%b" % (expected, source, _read("guard"))


def _read(name: str) -> bytes:
    return (files("locking.backends") / "lua" / f"{name}.lua").read_bytes()


ACQUIRE: Final = Script("token", "hold", "acquire_free", "handoff", "is_external", "acquire")
RELEASE: Final = Script("announce", "release_free", "token", "hold", "handoff", "is_external", "release")
EXTEND: Final = Script("extend")
INDEX_SCAN: Final = Script("index_scan")
INCR_COUNTERS: Final = Script("incr_counters")

KEEP, DONT_KEEP = pack(b"1"), pack(b"0")


def braced_key(key: bytes) -> bytes:
    """Return what the names of keys end with that live in the same cluster slot as `key`; Redisson's rule."""
    return key if b"{" in key else b"{%b}" % key


def derived(prefix: bytes, key: bytes) -> bytes:
    """Return a key that lives in the same cluster slot as `key`."""
    return b"%b:%b" % (prefix, braced_key(key))


def fair_queue(key: bytes) -> bytes:
    """Return the queue of Redisson's fair lock."""
    return derived(b"redisson_lock_queue", key)


class Index:
    """Names the index of each lock of one alias: the list of what is held, written by the scripts themselves.

    It is a sorted set. A member is one hold, its score the fencing token that was minted for it: microseconds
    of the server's clock, so the oldest hold comes first and a renewal changes nothing. The list is advisory:
    a reader looks at each lock, and takes out what has ended by itself. The member `~` is no hold: its score
    is the last token of all names.

        holdfast_held:<KEY_PREFIX>           on one server, or one master
        holdfast_held:{<tag>}:<KEY_PREFIX>   in a cluster, one for each slot that ever had a lock

    Each alias has its own, so that an ACL can keep them apart.
    """

    def __init__(self, prefix: str = "", *, clustered: bool = False) -> None:
        self.clustered = clustered
        self._prefix = prefix.encode()
        self._only = b"holdfast_held:" + self._prefix
        if clustered:
            tags()  # once, where the backend is built: threads that all met it first would each work it out

    def of(self, key: bytes) -> bytes:
        """Return the index in which the lock `key` is listed."""
        return self.of_slot(key_slot(key)) if self.clustered else self._only

    def of_slot(self, slot: int) -> bytes:
        """Return the index of a cluster's slot."""
        return b"holdfast_held:{%b}:%b" % (tags()[slot], self._prefix)

    def all(self) -> list[bytes]:
        """Return every index there may be."""
        if not self.clustered:
            return [self._only]
        return [self.of_slot(slot) for slot in range(REDIS_CLUSTER_HASH_SLOTS)]


@lru_cache(maxsize=1)
def tags() -> list[bytes]:
    """Return a hash tag for each slot of a cluster: the smallest number that falls into it (about 0.1 s)."""
    found: dict[int, bytes] = {}
    for number in count():
        tag = b"%d" % number
        found.setdefault(key_slot(tag), tag)
        if len(found) == REDIS_CLUSTER_HASH_SLOTS:
            return [found[slot] for slot in range(REDIS_CLUSTER_HASH_SLOTS)]
    raise AssertionError("unreachable")


@lru_cache(maxsize=4096)
def keys_of(key: str, index: Index) -> tuple[bytes, bytes, bytes]:
    """Return what each request on a lock has: its keys and its channel, packed, and what routes it."""
    lock = key.encode()
    listed = index.of(lock)
    braced = braced_key(lock)
    size = len(braced)
    packed = (
        b"$1\r\n4\r\n$%d\r\n%b\r\n$%d\r\nredisson_lock_token:%b\r\n$%d\r\nholdfast_lock_queue:%b\r\n$%d\r\n%b\r\n"
        % (len(lock), lock, size + 20, braced, size + 20, braced, len(listed), listed)
    )
    return packed, b"$%d\r\nredisson_lock__channel:%b\r\n" % (size + 23, braced), lock


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one: Redis refuses an expiry of 0 and knows nothing finer."""
    return max(1, round(seconds * 1000))


def extend_request(leases: Sequence[tuple[str, str, float]]) -> Request:
    """Return the call of extend.lua for leases of one cluster slot."""
    arguments = [part for _, owner, ttl in leases for part in (owner.encode(), milliseconds(ttl))]
    return EXTEND.call([key.encode() for key, _, _ in leases], *arguments)


def place_in_queue(owner: str, ttl: float, *, keep: bool, channel: str) -> bytes:
    """Return a waiter's entry in the queue: all that is needed to hand the lock to it."""
    return f"{owner} {milliseconds(ttl)} {int(keep)} {channel}".encode()


class Asked(NamedTuple):
    """The moment of a request, by our clock and by the server's: it dates what the server says later."""

    local: float
    server_us: int | None = None


def read_outcome(reply: Any, sent: float) -> tuple[Outcome, bool, Asked]:
    """Return what acquire.lua answered, whether to listen to the lock's channel, and when that was."""
    if isinstance(reply, int):
        return Grant(abs(reply), sent, is_new=reply > 0), False, Asked(sent)
    left, holder, listen, server_us = reply
    busy = Busy(None if left < 0 else left / 1000, holder.decode())
    return busy, bool(listen), Asked(sent, server_us)


def read_wakeup(payload: bytes, owner: str, asked: Asked) -> Grant | bool:
    """Return the handoff that a wake-up carries, True for *try again*, False if it was meant for someone
    else.

    A waiter that was paused may read its handoff long after it happened. How long is known by the server's
    clock at the handoff and at the waiter's last question: the lease began no earlier than the question
    plus that.
    """
    whose, *grant = payload.decode().split(" ")
    if whose != owner:
        return False
    if not grant or asked.server_us is None:
        return True
    token, server_us = int(grant[0]), int(grant[1])
    since = asked.local + max(0, server_us - asked.server_us) / 1_000_000
    return Grant(token, min(since, now()))


# --- kinds of lock ---------------------------------------------------------------------------------------


ORDINARY_KEYS: Final = ("lock", "token", "queue", "index")

# The kinds that are loaded, by their `name` and by their `LETTER`.
NAMED: Final[dict[str, type[Kind]]] = {}
LETTERS: Final[dict[str, type[Kind]]] = {}


class Kind:
    """One kind of lock: its keys, its channel and its scripts, and the requests that follow from them.

    The scripts of a verb are called alike: only those of read holds look at `{name}`, by which they find all.
    """

    name: ClassVar[str]
    LETTER: ClassVar[str]  # what its members of the index begin with
    SHARED: ClassVar[bool] = False  # has many holders: there the owner follows the letter, and a blank
    CHANNEL: ClassVar[bytes] = b"redisson_lock__channel"  # what its channel's name begins with
    KEYS: ClassVar[tuple[str, ...]] = ORDINARY_KEYS  # of its scripts, named as in `_keys`
    LISTED_KEYS: ClassVar[tuple[str, ...]] = ORDINARY_KEYS
    HOLDER_KEYS: ClassVar[tuple[str, ...]] = ("lock",)
    ACQUIRE: ClassVar[Script]
    EXTEND: ClassVar[Script]
    RELEASE: ClassVar[Script]
    LIST: ClassVar[Script] = Script("is_external", "list_lock")
    # Redis' type and the pattern, `%s` for the prefix, of keys by which locks of other clients are found.
    FOREIGN: ClassVar[tuple[str, str]] = ("", "")
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
        """Return the request that has a hold last so long at least, or exactly; 0 when there is none."""
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

    def acquire(
        self, key: str, owner: str, ttl: float, *, keep: bool, queue: bool = False, entry: bytes = b""
    ) -> Request:
        """See the base class; with a place as `entry` it waits in the queue."""
        (keys, _, lock), who = keys_of(key, self.index), owner.encode()
        # One format instead of five small ones: this runs at every acquisition.
        packet = b"*11\r\n%b%b$%d\r\n%b\r\n%b%b$%d\r\n%b\r\n" % (
            ACQUIRE.by_digest, keys, len(who), who, packed_ms(ttl), KEEP if keep else DONT_KEEP,
            len(entry), entry,
        )  # fmt: skip
        return new_tuple(Request, (ACQUIRE, packet, lock))  # a third of the time of `Request(...)`

    def extend(self, key: str, owner: str, ttl: float, *, exactly: bool = False) -> Request:
        """See the base class; unless it is `exactly`, it answers in a list."""
        if exactly:
            return self._ask(self.SHORTEN, key, owner, milliseconds(ttl), self._channel(key))
        return extend_request([(key, owner, ttl)])

    def release(self, key: str, owner: str, *, entry: bytes = b"") -> Request:
        """See the base class; it takes `entry` out of the queue, too."""
        (keys, channel, lock), who = keys_of(key, self.index), owner.encode()
        script = RELEASE.in_cluster if self.index.clustered else RELEASE
        packet = b"*10\r\n%b%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
            script.by_digest, keys, len(who), who, channel, len(entry), entry,
        )  # fmt: skip
        return new_tuple(Request, (script, packet, lock))

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
    """One member of an index, with its score."""

    kind: str
    key: bytes
    owner: bytes  # of the hold, where a lock may have several; else empty
    token: int  # the fencing token minted for it, which is also its time in microseconds
    member: bytes  # as it stands in the index


def is_hold(member: bytes) -> bool:
    """Return whether a member of an index is a hold of a kind that is loaded; the last token isn't."""
    return member[:1].decode() in LETTERS


def read_entry(member: bytes, score: float) -> Entry:
    """Return what a member of the index and its score say."""
    kind, rest = LETTERS[member[:1].decode()], member[1:]
    owner, key = rest.split(b" ", 1) if kind.SHARED else (b"", rest)
    return Entry(kind.name, key, owner, int(score), member)


# --- for lists -------------------------------------------------------------------------------------------


def escaped(prefix: str) -> str:
    """Return `prefix` as a pattern that means itself."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)


def pairs_of(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return a hash as pairs: it is a dict in RESP3, a flat list in RESP2."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))
