"""Every error that `locking` raises, in one tree.

    LockError
      LockNotAcquired (also TimeoutError)   contended: the wait ran out
        TooManyWaiters                      this process has as many waiters as MAX_WAITERS allows
        LockDeadlock                        waiting was in vain: the locks wait for each other in a circle
      LockLost                              it was ours and no longer is, or that can't be known
        LockExpired                         its ttl isn't renewed, and was shorter than the work
      StaleFencingToken                     the database refused an old holder
      LockNotOwned                          released or extended what isn't ours
      LockKeyError (also ValueError)        the key can't be built
      LockTransactionError                  used so that it would release before the commit
      LockNotSupported                      this backend can't do that
      BackendError                          the backend answered with an error
        BackendUnavailable                  the backend didn't answer

*Contended* is normal and worth a retry, *unavailable* is an outage, *lost* must stop the work at once: three
different outcomes, three different classes.
"""

from __future__ import annotations

import copyreg
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "BlockedWaiter",
    "LockDeadlock",
    "LockError",
    "LockExpired",
    "LockKeyError",
    "LockLost",
    "LockNotAcquired",
    "LockNotOwned",
    "LockNotSupported",
    "LockTransactionError",
    "StaleFencingToken",
    "TooManyWaiters",
]


class LockError(Exception):
    """The base of everything that `locking` raises on purpose."""


@dataclass(eq=False, repr=False)
class LockNotAcquired(LockError, TimeoutError):
    """Someone else held the lock until the wait ran out.

    Args:
        name: what the caller asked to lock.
        waited: seconds spent waiting.
        backend: alias of the backend in `LOCKING`.
        holder: who has it, where the backend can tell.
        held_by: which process that is, and what it does there, where this is known.
        retry_after: seconds left of the holder's lease, where known: after them the lock is free, or renewed.
        reason: why, where it isn't simply that another has the lock.
        estimate: seconds that such a lock is usually held, by recent holds in this process, where known.
    """

    name: str
    _: KW_ONLY
    waited: float
    backend: str
    holder: str | None = None
    held_by: str | None = None
    retry_after: float | None = None
    reason: str = ""
    estimate: float | None = None

    def __post_init__(self) -> None:
        text = f"lock {self.name!r} on backend {self.backend!r} not acquired after {self.waited:.3f} s"
        if self.reason:
            text += f": {self.reason}"
        elif self.holder:
            who = f"{self.held_by} ({self.holder})" if self.held_by else self.holder
            text += f"; held by {who}"
        if self.retry_after is not None and not self.reason:
            text += f", whose lease ends in {self.retry_after:.3f} s"
        super().__init__(text)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the attributes, not a call: Celery sends exceptions between processes."""
        return copyreg.__newobj__, (type(self),), {**vars(self), "args": self.args}  # type: ignore[attr-defined]


class TooManyWaiters(LockNotAcquired):
    """As many threads and tasks of this process wait for locks of the alias as its `MAX_WAITERS` allows.

    The lock is held, and this caller was refused at once instead of waiting.
    """


class BlockedWaiter(NamedTuple):
    """One waiter of a deadlock: it holds what the one before it waits for.

    Attributes:
        who: host, process and thread or task.
        holds: names of the locks that it holds.
        waits_for: name of the lock that it waits for.
        since: Unix time at which it began to wait, by its own clock.
    """

    who: str
    holds: tuple[str, ...]
    waits_for: str
    since: float

    def __str__(self) -> str:
        return f"{self.who} holds {', '.join(map(repr, self.holds))} and waits for {self.waits_for!r}"


@dataclass(eq=False, repr=False, kw_only=True)
class LockDeadlock(LockNotAcquired):
    """The locks wait for each other in a circle, and this waiter was chosen to give up.

    Release what you hold (a `with` block does so when the error leaves it), then start again. Acquire several
    names with one `get_lock(a, b)`, which sorts them: then no circle can arise.

    Args:
        circle: the waiters in order, the one that gave up first.
    """

    circle: tuple[BlockedWaiter, ...] = ()

    def __post_init__(self) -> None:
        self.reason = f"deadlock: {'; '.join(map(str, self.circle))}"
        super().__post_init__()


class LockLost(LockError):
    """The lease ended, or was taken away, while its holder still worked: nothing after it may count."""


class LockExpired(LockLost):
    """The lease ended because its ttl isn't renewed: a longer one, or none, would have kept it."""


class StaleFencingToken(LockError):
    """The database has already seen a newer holder of this lock: this one's writes are refused."""


class LockNotOwned(LockError):
    """A release or an extension of a lock that the caller doesn't hold."""


class LockKeyError(LockError, ValueError):
    """The key of a lock can't be built from what was given."""


class LockTransactionError(LockError):
    """The lock would be released before the transaction under it commits."""


class LockNotSupported(LockError):
    """The chosen backend can't do what was asked of it."""


class BackendError(LockError):
    """The backend answered, and the answer was an error."""


class BackendUnavailable(BackendError):
    """The backend didn't answer: whether the lock is held is not known, so it counts as not held.

    Attributes:
        sent: False where it is certain that no request left this process, so that none can take effect later.
        silent: False where it isn't the server that kept the caller waiting, but this process.
    """

    sent: bool = True
    silent: bool = True
