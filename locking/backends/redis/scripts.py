"""What is sent to Redis and what its answers mean, without any I/O: threads and asyncio share it.

Requests are packed here, once, as bytes: packing them in redis-py's general way costs as much as Redis itself.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from locking.backends.base import Busy, Grant, Outcome
from locking.clock import now


def pack(*parts: bytes) -> bytes:
    """Return the parts as RESP bulk strings, one after the other."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Script:
    """A Lua script, called by its digest and sent whole only when the server doesn't know it (yet, or any more)."""

    def __init__(self, *files_: str) -> None:
        source = b"\n".join(_read(name) for name in files_)
        self._by_digest = pack(b"EVALSHA", hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
        self._by_source = pack(b"EVAL", source)

    def request(self, count: int, tail: bytes) -> Request:
        """Return the request whose `count` further parts (number of keys, keys, arguments) are packed in `tail`."""
        return Request(self, b"*%d\r\n" % (count + 2), tail)


class Request(NamedTuple):
    """One call of a script, in its two forms."""

    script: Script
    head: bytes
    tail: bytes

    @property
    def by_digest(self) -> bytes:
        """The short form."""
        return self.head + self.script._by_digest + self.tail

    @property
    def by_source(self) -> bytes:
        """The form that a server understands which has never seen the script."""
        return self.head + self.script._by_source + self.tail


def _read(name: str) -> bytes:
    return (files("locking.backends") / "lua" / f"{name}.lua").read_bytes()


ACQUIRE: Final = Script("handover", "acquire")
RELEASE: Final = Script("handover", "release")
EXTEND: Final = Script("extend")


def derived(prefix: str, key: str) -> str:
    """Return a key that lives in the same cluster slot as `key`; Redisson's suffix rule."""
    return f"{prefix}:{key}" if "{" in key else f"{prefix}:{{{key}}}"


def lock_channel(key: str) -> str:
    """Return the channel on which Redisson's clients announce that the lock is free."""
    return derived("redisson_lock__channel", key)


class Keys(NamedTuple):
    """The packed keys of one lock: for the scripts, and the channel that a release announces."""

    packed: bytes
    channel: bytes


@lru_cache(maxsize=4096)
def keys_of(key: str) -> Keys:
    """Return what is sent for every request on `key`."""
    token, queue = derived("redisson_lock_token", key), derived("holdfast_lock_queue", key)
    return Keys(
        packed=pack(b"3", key.encode(), token.encode(), queue.encode()),
        channel=pack(lock_channel(key).encode()),
    )


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, at least one: Redis refuses an expiry of 0 and knows nothing finer."""
    return max(1, round(seconds * 1000))


def acquire_request(key: str, owner: str, ttl: float, *, keep: bool, place: bytes) -> Request:
    """Return the call of acquire.lua; an empty `place` means *don't stand in line*."""
    arguments = pack(owner.encode(), b"%d" % milliseconds(ttl), b"1" if keep else b"0", place)
    return ACQUIRE.request(8, keys_of(key).packed + arguments)


def release_request(key: str, owner: str, *, place: bytes = b"") -> Request:
    """Return the call of release.lua, which takes `place` out of the queue, too."""
    keys = keys_of(key)
    return RELEASE.request(7, keys.packed + pack(owner.encode()) + keys.channel + pack(place))


def extend_request(leases: list[tuple[str, str, float]]) -> Request:
    """Return the call of extend.lua for leases of one cluster slot."""
    parts = [b"%d" % len(leases), *(key.encode() for key, _, _ in leases)]
    for _, owner, ttl in leases:
        parts += [owner.encode(), b"%d" % milliseconds(ttl)]
    return EXTEND.request(len(parts), pack(*parts))


def place_in_queue(owner: str, ttl: float, *, keep: bool, channel: str) -> bytes:
    """Return what stands in the queue for a waiter: all that the release script needs to hand the lock to it."""
    return f"{owner} {milliseconds(ttl)} {int(keep)} {channel}".encode()


class Asked(NamedTuple):
    """The moment of a request, by our clock and by the server's: it dates what the server says later."""

    local: float
    server_us: int | None = None


def read_outcome(reply: Any, sent: float) -> tuple[Outcome, bool, Asked]:
    """Return what acquire.lua answered, whether to listen to the lock's channel, and when that was."""
    if isinstance(reply, int):
        return Grant(reply, sent), False, Asked(sent)
    left, holder, listen, server_us = reply
    busy = Busy(None if left < 0 else left / 1000, holder.decode())
    return busy, bool(listen), Asked(sent, server_us)


def read_wakeup(payload: bytes, owner: str, asked: Asked) -> Grant | bool:
    """Return the hand-over that a wake-up carries, True for *try again*, False if it was meant for someone else.

    A waiter that was paused may read its hand-over long after it happened. How long is told by the server's clock
    at the hand-over and at the waiter's last question: the lease began no earlier than the question plus that.
    """
    whose, *grant = payload.decode().split(" ")
    if whose != owner:
        return False
    if not grant or asked.server_us is None:
        return True
    token, server_us = int(grant[0]), int(grant[1])
    since = asked.local + max(0, server_us - asked.server_us) / 1_000_000
    return Grant(token, min(since, now()))
