"""The options that every kind of lock takes: their types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args

from locking.backends.base import BaseLockBackend
from locking.conf import DEFAULT_LEASE
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.keys.names import (
    UNSET,
    OnOpenTransaction,
    Unset,
    check_on_open_transaction,
    check_template,
    check_ttl,
    check_wait,
)
from locking.utils.hints import refuse_unknown

if TYPE_CHECKING:
    from locking.core.lease import Lease

Kind = Literal["lock", "read", "write", "semaphore", "fair"]
"""The kinds of lock; `lock` is what `get_lock` returns."""

MAX_PERMITS: Final = 1_000_000

NO_HOLD: Final = 0.0
"""The default of `min_hold`: hardly any caller gives another, so the very object needs no check."""


class SemaphoreOptions(TypedDict, total=False):
    """The options of every kind of lock; `get_lock` explains them."""

    ttl: float | Unset | None
    wait: float | Unset | None
    backend: str
    min_hold: float
    on_lost: Callable[[Lease], None] | None
    template: str | None
    on_open_transaction: OnOpenTransaction | Unset


class LockOptions(SemaphoreOptions, total=False):
    """The options of every kind of lock that has one holder, or one writer."""

    fenced: bool


OF_SEMAPHORES: Final = frozenset(SemaphoreOptions.__annotations__)
OF_LOCKS: Final = frozenset(LockOptions.__annotations__)


@dataclass(kw_only=True, eq=False)
class CheckedOptions:
    """The options of one lock, checked; what is not given is decided by the alias's settings."""

    ttl: float | Unset | None = UNSET
    wait: float | Unset | None = UNSET
    fenced: bool = False
    backend: str = DEFAULT_ALIAS
    min_hold: float = NO_HOLD
    on_lost: Callable[[Lease], None] | None = None
    template: str | None = None
    on_open_transaction: OnOpenTransaction | Unset = UNSET
    kind: Kind = "lock"
    permits: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.ttl, Unset) and self.ttl is not None:
            self.ttl = check_ttl(self.ttl)
        if not isinstance(self.wait, Unset):
            self.wait = check_wait(self.wait)
        if self.min_hold is not NO_HOLD:
            self.min_hold = check_wait(self.min_hold, source="min_hold") or NO_HOLD
        if self.template is not None:
            check_template(self.template)
        if not isinstance(self.on_open_transaction, Unset):
            check_on_open_transaction(self.on_open_transaction)
        if self.on_lost is not None and not callable(self.on_lost):
            raise ValueError(f"on_lost={self.on_lost!r} must be a callable that gets the lease")
        if self.kind != "lock" or self.permits is not None:
            _check_kind(self)

    def engine(self) -> BaseLockBackend:
        """Return the backend of this kind of lock.

        Raises:
            LockNotSupported: the alias's backend has no such kind, or mints no tokens for `fenced`.
        """
        engine = locks[self.backend]
        if self.kind != "lock":
            engine = engine.variant(self.kind, **({} if self.permits is None else {"permits": self.permits}))
        if self.fenced and not engine.supports_fencing:
            raise engine.unsupported("mint fencing tokens (fenced=True)")
        return engine

    def lease_on(self, engine: BaseLockBackend) -> tuple[float, bool]:
        """Return the seconds of a lease, and whether the watchdog renews it."""
        ttl = engine.settings.ttl if isinstance(self.ttl, Unset) else self.ttl
        if ttl is None:
            return engine.settings.watchdog_ttl or DEFAULT_LEASE, True
        return ttl, False

    def wait_on(self, engine: BaseLockBackend) -> float | None:
        """Return the seconds that `acquire` waits; None = without end."""
        return engine.settings.wait if isinstance(self.wait, Unset) else self.wait

    def policy_on(self, engine: BaseLockBackend) -> OnOpenTransaction:
        """Return what to do inside an open transaction; a lock that ends with one belongs inside."""
        if engine.transaction_on is not None:
            return "ignore"
        chosen = self.on_open_transaction
        return engine.settings.on_open_transaction if isinstance(chosen, Unset) else chosen


def _check_kind(options: CheckedOptions) -> None:
    if options.kind not in get_args(Kind):
        raise ValueError(f"kind={options.kind!r} must be one of {', '.join(map(repr, get_args(Kind)))}")
    if options.kind != "semaphore":
        if options.permits is not None:
            raise ValueError(f"permits={options.permits!r} cannot be combined with kind={options.kind!r}")
        return
    permits = options.permits
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= MAX_PERMITS:
        raise ValueError(f"permits must be a whole number from 1 to {MAX_PERMITS:,}, not {permits!r}")
    if options.fenced:
        raise ValueError("fenced=True cannot be combined with kind='semaphore', which has several holders")


def options_of(
    caller: str, given: Mapping[str, Any], *, kind: Kind = "lock", permits: int | None = None
) -> CheckedOptions:
    """Return the keyword arguments of `caller`, checked.

    Raises:
        TypeError: one that it does not take; the message says what to write instead.
        ValueError: a value that an option cannot have.
    """
    known = OF_SEMAPHORES if kind == "semaphore" else OF_LOCKS
    if not given.keys() <= known:
        refuse_unknown(caller, given, known)
    return CheckedOptions(kind=kind, permits=permits, **given)
