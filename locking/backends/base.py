"""What a backend must do: four atomic verbs. Waiting, re-entry, renewal and errors live once, in `lock.py`.

A backend implements `try_acquire`, `extend`, `release` and `holder`, each one atomic step, and sets the flags
of what its engine promises. What only some engines can is a mixin each, in `locking.backends.capabilities`.
Where the engine can wake a waiter, the backend gives its own `waiter()`; otherwise the polling one here
serves. The contract suite checks every claim both ways.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from locking.exceptions import BackendError, BackendUnavailable, LockError, LockNotSupported
from locking.utils.clock import jittered, now
from locking.utils.logs import log_rarely

__all__ = [
    "AsyncPollingWaiter",
    "AsyncWaiter",
    "BaseLockBackend",
    "Busy",
    "Finding",
    "Grant",
    "Heartbeat",
    "Held",
    "Holder",
    "PollingWaiter",
    "Waiter",
]

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

    from locking.conf import AliasSettings


logger = logging.getLogger(__name__)

T = TypeVar("T")


class Grant(NamedTuple):
    """The lock is the caller's.

    Attributes:
        token: the fencing token of this hold, strictly rising for a name; 0 where the backend has none.
        since: `clock.now()` at which the lease began at the earliest: before the request was sent. The local
            deadline is counted from it, so that it never lies behind the server's.
        resent: a request was sent whose reply never came: it may arrive after the release, and take the lock.
        is_new: the owner surely held nothing before. Where several runs act as one owner, only such a grant
            may be given back by an attempt that fails.
    """

    token: int
    since: float
    resent: bool = False
    is_new: bool = True


class Busy(NamedTuple):
    """Someone else has the lock.

    Attributes:
        retry_after: seconds until the holder's lease ends unless it is renewed; None when it has no end.
        holder: the holder's owner string, where the backend can tell.
        outage: why the answer is unknown at the moment, on servers with a failover: worth asking again, and
            raised when the wait has run out meanwhile.
    """

    retry_after: float | None = None
    holder: str | None = None
    outage: BackendUnavailable | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lock now.

    Attributes:
        owner: the identity that proves the hold.
        count: the hold count the backend keeps.
        remaining: seconds left of the lease; None when it has no end.
    """

    owner: str
    count: int
    remaining: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One hold as a list shows it; what the backend can't tell stays None (0 for the token).

    Attributes:
        key: where the backend keeps it.
        owner: the identity that proves the hold.
        kind: lock, read, write, semaphore or fair.
        count: the hold count the backend keeps.
        remaining: seconds left of the lease; None when it has no end.
        token: its fencing token.
        waiters: how many wait in the queue for it.
        since: Unix time of the grant, by the backend's clock; without `lists_by_age` it may be that of the
            place in the queue.
    """

    key: str
    owner: str
    kind: str = "lock"
    count: int = 1
    remaining: float | None = None
    token: int = 0
    waiters: int | None = None
    since: float | None = None


HEARTBEAT_TTL: Final = 3600
"""Seconds for which the record of a silent client is kept, to show which process it was."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a process has published about itself.

    Attributes:
        text: JSON, see `locking.inspection.heartbeat`.
        silent: seconds since its last sign of life; None where the engine would have ended its holds with it.
    """

    text: str
    silent: float | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `manage.py check --tag locking_live`.

    Attributes:
        subject: what was looked at, in a word or two: `version`, `clock`.
        verdict: `ok`, `warning`, `error`, or `unknown` where the server wouldn't tell.
        text: what was found, with figures and units.
        hint: what to do about it.
    """

    subject: str
    verdict: Literal["ok", "warning", "error", "unknown"]
    text: str
    hint: str = ""


Outcome = Grant | Busy


class WaiterState:
    """What a waiter says of itself, whether a thread or a task waits."""

    owner: str = ""
    """The owner of the latest try, where each has one of its own; it is the lease's if that is granted."""
    owner_is_given: bool = False
    """Others may act as this owner, so that what it holds may be from before; see `Grant.is_new`."""
    unsettled: bool = False
    """After `leave`: the engine may grant the lock all the same, because a request wasn't answered."""


class Waiter(WaiterState, ABC):
    """One waiter for one lock: try, wait to be woken, and leave the queue if that failed."""

    @abstractmethod
    def try_acquire(self, *, queue: bool) -> Outcome:
        """Acquire the lock if it is this waiter's turn; else, with `queue`, enqueue."""

    @abstractmethod
    def wait(self, timeout: float) -> Outcome:
        """Sleep until woken, at most `timeout` seconds; return what came of a handoff or of a new try."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the queue, release what was handed over meanwhile; no LockError: that is `unsettled`."""


class AsyncWaiter(WaiterState, ABC):
    """`Waiter` for asyncio: the same steps, awaited."""

    @abstractmethod
    async def try_acquire(self, *, queue: bool) -> Outcome:
        """See `Waiter.try_acquire`."""

    @abstractmethod
    async def wait(self, timeout: float) -> Outcome:
        """See `Waiter.wait`."""

    @abstractmethod
    async def leave(self) -> None:
        """See `Waiter.leave`."""


class BaseLockBackend(ABC):
    """The service-provider interface: subclass it, implement the four verbs, set the flags.

    The verbs for asyncio run in threads: an engine with a client of its own overrides them.
    """

    supports_fencing: ClassVar[bool] = False
    """Every grant carries a token that strictly rises for its name."""
    supports_fairness: bool = False
    """Waiters get the lock in the order they came."""
    shared_between_processes: ClassVar[bool] = True
    """Two processes that use one name exclude each other."""
    frees_with_holder: ClassVar[bool] = False
    """The lock of a process that dies is free as soon as the engine notices, not at the end of its lease."""
    transaction_on: str | None = None
    """Alias of the database whose transaction the lock ends with; None for a lock that is released."""
    never_blocks: ClassVar[bool] = False
    """No verb waits for anything, so asyncio needs no thread."""
    exclusive: bool = True
    """One holder at a time; a semaphore's variant says False."""

    def __init__(self, settings: AliasSettings) -> None:
        self.settings = settings
        self.alias = settings.alias

    @classmethod
    def default_key_prefix(cls, settings: AliasSettings) -> str:
        """Return what is put before every name where the alias sets no `KEY_PREFIX`."""
        return ""

    def key(self, name: str) -> str:
        """Return the key under which the backend stores `name`."""
        return self.settings.key_prefix + name

    @abstractmethod
    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """Take the lock for `owner` and `ttl` seconds if it is free; a repeated call by its owner is granted
        too, as one that isn't new.

        Args:
            key: what `key(name)` returned.
            owner: `<uuid>:<int>`, unique to one acquisition.
            ttl: seconds of the lease.
            fenced: the database will check the token: its counter must never be forgotten.

        Raises:
            BackendUnavailable: no answer; the lock counts as not held, and the backend cleans up behind
            itself.
        """

    @abstractmethod
    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """Have the lease last for `ttl` seconds from now at least; False when `owner` doesn't hold the lock.

        It never shortens, in the same atomic step as the comparison: others may have extended it for longer.
        """

    @abstractmethod
    def release(self, key: str, owner: str) -> bool:
        """Release the lock; False when `owner` doesn't hold it."""

    @abstractmethod
    def holder(self, key: str) -> Holder | None:
        """Return who has the lock now, or None when it is free."""

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        """Have the lease last for exactly `ttl` seconds from now; else as `extend`.

        For the end of a `min_hold`: without it such a lock stays taken until its ttl ends. Where waiters
        sleep until the lease ends, they must hear of it.
        """
        return self.extend(key, owner, ttl)

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """Extend each `(key, owner, ttl)`. The watchdog renews by this.

        Returns:
            One answer per lease, in order: False when `owner` does not hold the lock, None when that is
            unknown. What goes wrong with one lease must not touch the answers about the others.

        Raises:
            BackendUnavailable: nothing could be asked, so every answer is unknown.
        """
        a_third = min((ttl for _, _, ttl in leases), default=0.0) / 3
        return ask_each([partial(self.extend, *lease) for lease in leases], seconds=a_third)

    def waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Waiter:
        """Return a new waiter for the lock; no I/O."""
        return PollingWaiter(self, key, owner, ttl, fenced)

    # for asyncio

    async def _carried_out(self, verb: Callable[..., T], *arguments: Any) -> T:
        return verb(*arguments) if self.never_blocks else await asyncio.to_thread(verb, *arguments)

    async def atry_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        """`try_acquire` for asyncio."""
        ask = partial(self.try_acquire, key, owner, ttl, fenced=fenced)
        return ask() if self.never_blocks else await self.asked_in_thread(ask, key, owner)

    async def asked_in_thread(self, ask: Callable[[], Outcome], key: str, owner: str) -> Outcome:
        """Run `ask` in a thread; when the task is cancelled, the thread undoes what comes of it too late."""
        # A cancelled task doesn't wait for its thread, so for one request the lock may still look taken.
        abandoned = threading.Event()

        def step() -> Outcome:
            outcome = ask()
            if abandoned.is_set() and isinstance(outcome, Grant):
                with suppress(LockError):
                    self.release(key, owner)
            return outcome

        try:
            return await asyncio.to_thread(step)
        except BaseException:
            abandoned.set()
            raise

    async def aextend(self, key: str, owner: str, ttl: float) -> bool:
        """`extend` for asyncio."""
        return await self._carried_out(self.extend, key, owner, ttl)

    async def ashorten(self, key: str, owner: str, ttl: float) -> bool:
        """`shorten` for asyncio."""
        return await self._carried_out(self.shorten, key, owner, ttl)

    async def arelease(self, key: str, owner: str) -> bool:
        """`release` for asyncio."""
        return await self._carried_out(self.release, key, owner)

    async def aholder(self, key: str) -> Holder | None:
        """`holder` for asyncio."""
        return await self._carried_out(self.holder, key)

    def async_waiter(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> AsyncWaiter:
        """`waiter` for asyncio."""
        return AsyncPollingWaiter(self, key, owner, ttl, fenced)

    # housekeeping

    def tidy(self) -> None:  # noqa: B027 optional
        """Remove what has ended; called about once a minute by every process."""

    def unsupported(self, verb: str) -> LockNotSupported:
        """Return the error for a verb that this backend doesn't have."""
        return LockNotSupported(f"the backend {self.alias!r} ({self.settings.backend}) can't {verb}")

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """Return what is wrong with the configuration; with `live`, the server is asked too."""
        return []

    def close(self) -> None:  # noqa: B027 optional
        """Close sockets and threads; the backend opens new ones if it is used again."""


def ask_each(questions: Sequence[Callable[[], bool]], *, seconds: float) -> list[bool | None]:
    """Return the answer to each question, None for one that failed; BackendUnavailable: none was answered."""
    # After so many `seconds`, and a failure, the rest is not asked: each may wait for its timeout.
    until, answers, failures = now() + seconds, list[bool | None](), list[BackendError]()
    for question in questions:
        if failures and now() >= until:
            answers.append(None)
            continue
        try:
            answers.append(question())
        except BackendError as error:
            answers.append(None)
            failures.append(error)
    silent = [error for error in failures if isinstance(error, BackendUnavailable)]
    if silent and len(silent) == len(failures) and not any(answer is not None for answer in answers):
        raise silent[-1]
    for reason in dict.fromkeys(str(error) for error in failures):
        log_rarely(logger, logging.WARNING, ("extend", reason), "a lease could not be extended: %s", reason)
    return answers


def finding_of(message: CheckMessage) -> Finding:
    """Return a system check's message as a finding; 40 is where Django's errors begin."""
    verdict: Literal["error", "warning"] = "error" if message.level >= 40 else "warning"
    return Finding(message.id or "check", verdict, str(message.msg), str(message.hint or ""))


class _Polling:
    def __init__(self, backend: BaseLockBackend, key: str, owner: str, ttl: float, fenced: bool) -> None:
        self._backend, self._key, self._owner, self._ttl, self._fenced = backend, key, owner, ttl, fenced
        self._attempts = 0

    def _pause(self, timeout: float) -> float:
        self._attempts += 1
        return min(timeout, jittered(self._attempts - 1))


class PollingWaiter(_Polling, Waiter):
    """A waiter for engines without notifications: polls with growing, jittered pauses."""

    def try_acquire(self, *, queue: bool) -> Outcome:
        return self._backend.try_acquire(self._key, self._owner, self._ttl, fenced=self._fenced)

    def wait(self, timeout: float) -> Outcome:
        time.sleep(self._pause(timeout))
        return self.try_acquire(queue=True)

    def leave(self) -> None:
        """There is no queue to leave, and a refused attempt leaves nothing behind."""


class AsyncPollingWaiter(_Polling, AsyncWaiter):
    """`PollingWaiter` that sleeps in the event loop."""

    async def try_acquire(self, *, queue: bool) -> Outcome:
        return await self._backend.atry_acquire(self._key, self._owner, self._ttl, fenced=self._fenced)

    async def wait(self, timeout: float) -> Outcome:
        await asyncio.sleep(self._pause(timeout))
        return await self.try_acquire(queue=True)

    async def leave(self) -> None:
        """There is no queue to leave, and a refused attempt leaves nothing behind."""
