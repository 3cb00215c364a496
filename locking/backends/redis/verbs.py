"""The verbs of the contract for one kind of lock; threads and asyncio send the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from locking.backends.base import AsyncWaiter, Holder, Outcome, Waiter
from locking.backends.capabilities import ForceRelease
from locking.backends.redis.async_transport import EventLoops
from locking.backends.redis.kinds import Kind, read_holder
from locking.backends.redis.protocol import Calls
from locking.backends.redis.scripts import Request
from locking.backends.redis.transport import ThreadWaiter, run
from locking.backends.redis.waiter import AnnouncedWaiter
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable


class Servers(NamedTuple):
    """The servers of one alias, as threads and as event loops reach them."""

    calls: Calls
    loops: EventLoops


class RedisVerbs(ForceRelease):
    """What all kinds of lock on Redis have in common."""

    supports_fencing = True

    waiter_class: ClassVar[type[AnnouncedWaiter]] = AnnouncedWaiter

    def __init__(self, settings: AliasSettings, kind: Kind, servers: Servers) -> None:
        super().__init__(settings)
        self.kind, self._servers = kind, servers
        self.calls, self._loops = servers

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return run(self.waiter_class(self.kind, self.calls, key, owner, ttl, fenced).try_acquire(queue=False))

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        return await self.async_waiter(key, owner, ttl, fenced=fenced).try_acquire(queue=False)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(run(self.calls.call(self.kind.extend(key, owner, ttl))))

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(await self._acall(self.kind.extend(key, owner, ttl)))

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(run(self.calls.call(self.kind.extend(key, owner, ttl, exactly=True))))

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        return _is_yes(await self._acall(self.kind.extend(key, owner, ttl, exactly=True)))

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        return [_answer(reply) for reply in self._ask_each([self.kind.extend(*lease) for lease in leases])]

    def _ask_each(self, requests: Sequence[Request]) -> list[Any]:
        """Return the reply or the error of each; raise when no server answers."""
        replies = run(self.calls.call_each(requests))
        if replies and all(isinstance(reply, BackendUnavailable) for reply in replies):
            raise replies[0]
        return replies

    def release(self, key: str, owner: str) -> bool:
        return bool(run(self.calls.call(self.kind.release(key, owner))) == 1)

    async def arelease(self, key: str, owner: str) -> bool:
        return bool(await self._acall(self.kind.release(key, owner)) == 1)

    def force_release(self, key: str, expected: str) -> bool:
        return self.release(key, expected)

    def holder(self, key: str) -> Holder | None:
        """Return one of the holders (there may be many), or None; the number of holds is its count."""
        return read_holder(run(self.calls.call(self.kind.holder(key))))

    async def aholder(self, key: str) -> Holder | None:
        return read_holder(await self._acall(self.kind.holder(key)))

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        return ThreadWaiter(self.waiter_class(self.kind, self.calls, key, owner, ttl, fenced))

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        return self.waiter_class(self.kind, self._loops.here(), key, owner, ttl, fenced)

    async def _acall(self, request: Request) -> Any:
        return await self._loops.here().call(request)


class RedisVariant(RedisVerbs):
    """A kind of lock as a backend of its own, on the sockets of the RedisBackend that it belongs to."""

    def __init__(self, settings: AliasSettings, kind: Kind, servers: Servers) -> None:
        super().__init__(settings, kind, servers)
        self.alias = f"{settings.alias}/{kind.name}"
        self.exclusive = kind.name != "semaphore"
        self.supports_fairness = kind.name == "fair"


def escaped(prefix: str) -> str:
    """Return `prefix` as a pattern that means itself."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in prefix)


def pairs_of(reply: Any) -> list[tuple[bytes, bytes]]:
    """Return a hash as pairs: it is a dict in RESP3, a flat list in RESP2."""
    if isinstance(reply, dict):
        return list(reply.items())
    return list(zip(reply[::2], reply[1::2], strict=True))


def _is_yes(reply: Any) -> bool:
    """Whether a script said 1; that of several leases answers in a list."""
    return bool(reply == 1 or reply == [1])


def _answer(reply: Any) -> bool | None:
    """Return whether a lease was extended: a key that is no lock has no holder, an outage leaves it open."""
    if isinstance(reply, BackendError):
        return False if any(word in str(reply.__cause__) for word in ("WRONGTYPE", "NOTALOCK")) else None
    return _is_yes(reply)
