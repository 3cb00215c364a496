"""The options that every kind of lock takes: their types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from locking.backends.base import BaseLockBackend
from locking.conf import DEFAULT_LEASE
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.keys.names import (
    UNSET,
    OnOpenTransaction,
    Seconds,
    Unset,
    check_on_open_transaction,
    check_template,
    check_ttl,
    check_wait,
)
from locking.utils.call_site import CallSite
from locking.utils.hints import refuse_unknown
from locking.utils.ownership import new_guarded_owner, new_owner

if TYPE_CHECKING:
    from locking.core.kinds import Kind as Kind
    from locking.core.lease import Lease
else:
    Kind = str

KINDS: Final[list[str]] = []
"""The kinds of lock; `locking.core.kinds`, which defines them, puts them here."""

HELD_BY_SEVERAL: Final = ("read", "semaphore")
"""Kinds whose holders don't exclude each other, so that a newer one has not overtaken the others."""

MAX_PERMITS: Final = 1_000_000

NO_HOLD: Final = 0.0
"""The default of `min_hold`: hardly any caller gives another, so the very object needs no check."""


class SemaphoreOptions(TypedDict, total=False):
    """The options of every kind of lock; `get_lock` explains them."""

    ttl: Seconds | Unset | None
    renew: bool
    wait: Seconds | Unset | None
    backend: str
    min_hold: Seconds
    guarded: bool
    on_lost: Callable[[Lease], None] | None
    template: str | None
    on_open_transaction: OnOpenTransaction | Unset


class LockOptions(SemaphoreOptions, total=False):
    """The options of every kind of lock that has one holder, or one writer."""

    fenced: bool


OF_SEMAPHORES: Final = frozenset(SemaphoreOptions.__annotations__)
OF_LOCKS: Final = frozenset(LockOptions.__annotations__)


class Terms(NamedTuple):
    """What the options of a lock mean on one backend.

    Attributes:
        ttl: seconds of a lease.
        renewed: whether the watchdog renews it.
        wait: seconds that `acquire` waits; None = without end.
        on_open_transaction: what to do inside an open transaction.
        new_owner: makes owners; they tell what becomes of a lock when its process is dead.
    """

    ttl: float
    renewed: bool
    wait: float | None
    on_open_transaction: OnOpenTransaction
    new_owner: Callable[[], str]


@dataclass(kw_only=True, eq=False)
class CheckedOptions:
    """The options of one lock, checked; what is not given is decided by the alias's settings."""

    ttl: float | Unset | None = UNSET
    renew: bool = False
    wait: float | Unset | None = UNSET
    fenced: bool = False
    backend: str = DEFAULT_ALIAS
    min_hold: float = NO_HOLD
    guarded: bool = False
    on_lost: Callable[[Lease], None] | None = None
    template: str | None = None
    on_open_transaction: OnOpenTransaction | Unset = UNSET
    kind: Kind = "lock"
    permits: int | None = None

    def __post_init__(self) -> None:
        self._terms: tuple[tuple[BaseLockBackend, float], Terms] | None = None  # the last ones, and for what
        self.site: CallSite | None = None  # shown in the held list instead of the line that acquires
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
        if self.renew not in (True, False):
            raise ValueError(f"renew={self.renew!r} must be True or False")
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
        if self.min_hold and engine.transaction_on is not None:
            raise engine.unsupported("keep a lock beyond the transaction with which it ends (min_hold)")
        return engine

    retries = 0  # the decorator has the option

    def open_transaction_policy(self) -> OnOpenTransaction:
        """Return what a locked transaction does inside an open one: its own word, or else the alias's.

        A fence and retries need a transaction of their own: with them the alias's word counts as `refuse`.

        Raises:
            ValueError: its own word cannot go together with `fenced` or `retries`.
        """
        chosen = self.on_open_transaction
        if isinstance(chosen, Unset):
            needs_own = self.fenced or self.retries
            return "refuse" if needs_own else locks[self.backend].settings.on_open_transaction
        if chosen != "refuse" and (self.fenced or self.retries):
            option, needs = ("fenced", "come first in") if self.fenced else ("retries", "restart")
            raise ValueError(
                f"on_open_transaction={chosen!r} can't be combined with {option}, which has to {needs} the"
                " transaction, and it is open already; put the lock outside it"
            )
        return chosen

    def terms_on(self, engine: BaseLockBackend) -> Terms:
        """Return what these options mean on `engine`; most locks of a program share one answer."""
        asked, known = (engine, DEFAULT_LEASE), self._terms  # the contract suite shortens DEFAULT_LEASE
        if known is None or known[0] != asked:
            self._terms = known = asked, self._new_terms(engine)
        return known[1]

    def _new_terms(self, engine: BaseLockBackend) -> Terms:
        settings = engine.settings
        ttl = settings.ttl if isinstance(self.ttl, Unset) else self.ttl
        return Terms(
            ttl=(settings.watchdog_ttl or DEFAULT_LEASE) if ttl is None else ttl,
            renewed=ttl is None or self.renew,
            wait=settings.wait if isinstance(self.wait, Unset) else self.wait,
            on_open_transaction=self._policy_on(engine),
            new_owner=new_guarded_owner if self.guarded and not self.min_hold else new_owner,
        )

    def _policy_on(self, engine: BaseLockBackend) -> OnOpenTransaction:
        """Return what to do inside an open transaction; a lock that ends with one belongs inside."""
        if engine.transaction_on is not None:
            return "ignore"
        chosen = self.on_open_transaction
        return engine.settings.on_open_transaction if isinstance(chosen, Unset) else chosen


def _check_kind(options: CheckedOptions) -> None:
    if options.kind not in KINDS:
        raise ValueError(f"kind={options.kind!r} must be one of {', '.join(map(repr, KINDS))}")
    if options.fenced and options.kind in HELD_BY_SEVERAL:
        raise ValueError(
            f"fenced=True cannot be combined with kind={options.kind!r}, which has several holders: the"
            " database would take all but the newest for overtaken"
        )
    if options.kind != "semaphore":
        if options.permits is not None:
            raise ValueError(f"permits={options.permits!r} cannot be combined with kind={options.kind!r}")
        return
    permits = options.permits
    if isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= MAX_PERMITS:
        raise ValueError(f"permits must be a whole number from 1 to {MAX_PERMITS:,}, not {permits!r}")


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


def shared_options(
    caller: str, given: Mapping[str, Any], *, kind: Kind = "lock", permits: int | None = None
) -> CheckedOptions:
    """`options_of`, but equal arguments are checked once and share one object, which nobody may change."""
    if "on_lost" not in given:  # most hooks are closures, each of which would be kept alive
        try:
            return _shared_options(caller, kind, permits, **given)
        except TypeError:  # an unknown option, or a value that has no hash: told below
            pass
    return options_of(caller, given, kind=kind, permits=permits)


@lru_cache(maxsize=256, typed=True)  # typed: `ttl=True` is an error where `ttl=1` is none
def _shared_options(caller: str, kind: Kind, permits: int | None, /, **given: Any) -> CheckedOptions:
    return options_of(caller, given, kind=kind, permits=permits)
