"""What is sent to Redis and what its answers mean, without any I/O: threads and asyncio share it.

Requests are packed here, once, as bytes: packing them in redis-py's general way costs as much as Redis
itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import count
from typing import Any, Final, NamedTuple

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from locking.backends.base import Busy, Grant, Outcome
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
    """A Lua script, called by its digest and sent whole only when the server doesn't know it.

    Attributes:
        names: its files, in their order.
        in_cluster: the same for a cluster, where announcements take another way.
        by_digest, by_source: its two forms, packed; the rest of a request follows.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        source = guarded(b"\n".join(_read(name) for name in names), "permits" in names)
        self.releases = names[-1].startswith("release")
        self.acquires = names[-1].startswith("acquire")
        digest = hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
        self.by_digest, self.by_source = pack(b"EVALSHA", digest), pack(b"EVAL", source)
        self.in_cluster = self
        if "announce" in names:
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

    Args:
        prefix: the alias's `KEY_PREFIX`: each has an index of its own, so that an ACL can keep them apart.
        clustered: whether the index must lie in the slot of its lock.
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


class Keys(NamedTuple):
    """The packed keys of one lock: for the scripts, and the channel that a release announces."""

    packed: bytes
    channel: bytes
    lock: bytes


@lru_cache(maxsize=4096)
def keys_of(key: str, index: Index) -> Keys:
    """Return what is sent for every request on `key`, which is listed in `index`."""
    lock = key.encode()
    listed = index.of(lock)
    braced = braced_key(lock)
    size = len(braced)
    packed = (
        b"$1\r\n4\r\n$%d\r\n%b\r\n$%d\r\nredisson_lock_token:%b\r\n$%d\r\nholdfast_lock_queue:%b\r\n$%d\r\n%b\r\n"
        % (len(lock), lock, size + 20, braced, size + 20, braced, len(listed), listed)
    )
    return Keys(packed, b"$%d\r\nredisson_lock__channel:%b\r\n" % (size + 23, braced), lock)


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one: Redis refuses an expiry of 0 and knows nothing finer."""
    return max(1, round(seconds * 1000))


def acquire_request(key: str, owner: str, ttl: float, *, keep: bool, entry: bytes, index: Index) -> Request:
    """Return the call of acquire.lua; an empty `entry` means *don't wait in the queue*."""
    keys, who = keys_of(key, index), owner.encode()
    # One format instead of five small ones: this runs at every acquisition.
    packet = b"*11\r\n%b%b$%d\r\n%b\r\n%b%b$%d\r\n%b\r\n" % (
        ACQUIRE.by_digest, keys.packed, len(who), who, packed_ms(ttl), KEEP if keep else DONT_KEEP,
        len(entry), entry,
    )  # fmt: skip
    return new_tuple(Request, (ACQUIRE, packet, keys.lock))  # a third of the time of `Request(...)`


def release_request(key: str, owner: str, *, index: Index, entry: bytes = b"") -> Request:
    """Return the call of release.lua, which takes `entry` out of the queue, too."""
    keys, who = keys_of(key, index), owner.encode()
    script = RELEASE.in_cluster if index.clustered else RELEASE
    packet = b"*10\r\n%b%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n" % (
        script.by_digest, keys.packed, len(who), who, keys.channel, len(entry), entry,
    )  # fmt: skip
    return new_tuple(Request, (script, packet, keys.lock))


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
