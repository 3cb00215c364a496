"""The options that every kind of lock takes: their types, defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final, TypedDict

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import backend_of
from locking.conf import DEFAULT_LEASE
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.lease import Lease, LeaseTerms
from locking.keys import names
from locking.signals import tell
from locking.utils.call_site import CallSite

NO_HOLD: Final = 0.0  # the default of `min_hold`: hardly any caller gives another, so it needs no check


class LockOptions(TypedDict, total=False):
    """The options of every kind of lock; `get_lock` explains them."""

    ttl: names.Seconds | names.Unset | None
    renew: bool
    wait: names.Seconds | names.Unset | None
    fenced: bool
    backend: str
    min_hold: names.Seconds
    guarded: bool
    on_lost: Callable[[Lease], None] | None
    template: str | None
    on_open_transaction: names.OnOpenTransaction | names.Unset


OF_LOCKS: Final = frozenset(LockOptions.__annotations__)


@dataclass(kw_only=True, eq=False)
class CheckedOptions:
    """The options of one lock, checked; what is not given is decided by the alias's settings."""

    ttl: float | names.Unset | None = names.UNSET
    renew: bool = False
    wait: float | names.Unset | None = names.UNSET
    fenced: bool = False
    backend: str = DEFAULT_ALIAS
    min_hold: float = NO_HOLD
    guarded: bool = False
    on_lost: Callable[[Lease], None] | None = None
    template: str | None = None
    on_open_transaction: names.OnOpenTransaction | names.Unset = names.UNSET
    kind: str = "lock"  # which kinds there are is known to `locking.core.kinds`
    permits: int | None = None

    def __post_init__(self) -> None:
        self._shared: tuple[float, LeaseTerms | None] = 0.0, None  # terms, and the DEFAULT_LEASE in them
        self.site: CallSite | None = None  # shown in the held list instead of the line that acquires
        if not isinstance(self.ttl, names.Unset) and self.ttl is not None:
            self.ttl = names.check_ttl(self.ttl)
        if not isinstance(self.wait, names.Unset):
            self.wait = names.check_wait(self.wait)
        if self.min_hold is not NO_HOLD:
            self.min_hold = names.check_wait(self.min_hold, source="min_hold") or NO_HOLD
        if self.template is not None:
            names.check_template(self.template)
        if not isinstance(self.on_open_transaction, names.Unset):
            names.check_on_open_transaction(self.on_open_transaction)
        if self.renew not in (True, False):
            raise ValueError(f"renew={self.renew!r} must be True or False")
        if self.on_lost is not None and not callable(self.on_lost):
            raise ValueError(f"on_lost={self.on_lost!r} must be a callable that gets the lease")

    def terms(self, name: str) -> LeaseTerms:
        """Return what is agreed on for the lock of this name: nothing is left to the alias."""
        engine, (default, known) = locks[self.backend], self._shared
        if self.kind != "lock":
            engine = backend_of(engine, self.kind, self.permits)
        if known is None or known.backend is not engine or default != DEFAULT_LEASE:  # which tests shorten
            known = self._terms_on(engine)
            self._shared = DEFAULT_LEASE, known
        # This takes a third of the time of `_replace`.
        return tuple.__new__(LeaseTerms, (name, engine.key(name), *known[2:]))

    def _terms_on(self, engine: BaseLockBackend) -> LeaseTerms:
        """Return the terms of any name on this backend."""
        if self.kind != "lock":
            tell("used", engine)
        if self.fenced and not engine.supports_fencing:
            raise engine.unsupported("mint fencing tokens (fenced=True)")
        if self.min_hold and engine.transaction_on is not None:
            raise engine.unsupported("keep a lock beyond the transaction with which it ends (min_hold)")
        settings, policy = engine.settings, self.on_open_transaction
        if engine.transaction_on is not None:
            policy = "ignore"  # a lock that ends with a transaction belongs inside
        ttl = settings.ttl if isinstance(self.ttl, names.Unset) else self.ttl
        return LeaseTerms(
            name="",
            key="",
            backend=engine,
            ttl=(settings.watchdog_ttl or DEFAULT_LEASE) if ttl is None else ttl,
            renewed=ttl is None or self.renew,
            wait=settings.wait if isinstance(self.wait, names.Unset) else self.wait,
            fenced=self.fenced,
            guarded=self.guarded and not self.min_hold,
            permits=self.permits,
            min_hold=self.min_hold,
            on_lost=self.on_lost,
            template=self.template,
            on_open_transaction=settings.on_open_transaction if isinstance(policy, names.Unset) else policy,
            site=self.site,
        )

    retries = 0  # the decorator has the option

    def open_transaction_policy(self) -> names.OnOpenTransaction:
        """Return what a locked transaction does inside an open one: its own word, or else the alias's."""
        # A fence and retries need a transaction of their own: with them the alias's word counts as `refuse`.
        chosen = self.on_open_transaction
        if isinstance(chosen, names.Unset):
            needs_own = self.fenced or self.retries
            return "refuse" if needs_own else locks[self.backend].settings.on_open_transaction
        if chosen != "refuse" and self.fenced:
            raise ValueError(
                f"on_open_transaction={chosen!r} can't be combined with fenced, which has to come first in"
                " the transaction, and it is open already; put the lock outside it"
            )
        return chosen


def options_of(
    caller: str, given: Mapping[str, Any], *, kind: str = "lock", permits: int | None = None
) -> CheckedOptions:
    """Return the keyword arguments of `caller`, checked."""
    if not given.keys() <= OF_LOCKS:
        refuse_unknown(caller, given, OF_LOCKS)
    return CheckedOptions(kind=kind, permits=permits, **given)


def shared_options(
    caller: str, given: Mapping[str, Any], *, kind: str = "lock", permits: int | None = None
) -> CheckedOptions:
    """`options_of`, but equal arguments are checked once and share one object, which must not be changed."""
    if "on_lost" not in given:  # most hooks are closures, each of which would be kept alive
        try:
            return _shared_options(caller, kind, permits, **given)
        except TypeError:  # an unknown option, or a value that has no hash: reported below
            pass
    return options_of(caller, given, kind=kind, permits=permits)


@lru_cache(maxsize=256, typed=True)  # typed: `ttl=True` is an error where `ttl=1` is none
def _shared_options(caller: str, kind: str, permits: int | None, /, **given: Any) -> CheckedOptions:
    return options_of(caller, given, kind=kind, permits=permits)


HINTS: Final = {
    "timeout": "the length of the lease is ttl= (seconds), the time to wait for the lock is wait=",
    "blocking_timeout": "the time to wait for the lock is wait= (seconds)",
    "blocking": "use try_acquire(), or wait=0; wait=None waits without end",
    "expire": "the length of the lease is ttl= (seconds); without it the lease is renewed",
    "auto_renewal": "leave ttl= out: such a lease is renewed until its release",
    "auto_release_time": "the length of the lease is ttl= (seconds)",
    "lease_time": "the length of the lease is ttl= (seconds)",
    "wait_time": "the time to wait for the lock is wait= (seconds)",
    "sleep": "leave it out: waiters are woken by the release, and don't poll",
    "thread_local": "leave it out: a Lock may be shared, each thread and task has its own lease",
    "name": "names go first, without a keyword: get_lock('order:42')",
    "keys": "distributed_lock takes several by key=, get_lock as get_lock('a', 'b')",
}
"""By a keyword of redis-py, python-redis-lock, pottery or Redisson, what to write here."""


def refuse_unknown(caller: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for the first of the `given` keywords that `caller` does not take."""
    for keyword in given:
        if keyword in known:
            continue
        guess = get_close_matches(keyword, known, n=1)
        advice = f"did you mean {guess[0]}?" if guess else f"it has {', '.join(sorted(known))}"
        raise TypeError(f"{caller}() has no argument {keyword!r}: {HINTS.get(keyword, advice)}")
