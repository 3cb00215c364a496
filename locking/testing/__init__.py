"""For tests of code that locks: locks in memory, what is held, contention and loss on demand.

`locking.testing.pytest_plugin` is the pytest plugin, loaded where pytest is; `locking.testing.contract` holds
the contract suite for authors of backends. Only these two need pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch
from uuid import uuid4

from django.test.utils import TestContextDecorator, override_settings

from locking.backends.base import BaseLockBackend, Busy, Outcome
from locking.backends.memory import STORES, Store
from locking.backends.waiters import WaitingSteps, WokenTask, WokenThread
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.lease import Lease, SingleLease, live_leases, unregister
from locking.exceptions import BackendUnavailable, LockNotAcquired, LockNotOwned
from locking.keys.names import check_name
from locking.utils.ownership import new_owner

__all__ = [
    "held_locks",
    "isolate_locks",
    "override_locks",
    "simulate_contention",
    "simulate_loss",
    "simulate_outage",
]

MEMORY: Final = "locking.backends.memory.MemoryBackend"

LONG_ENOUGH: Final = 3600.0  # seconds for which a simulated rival would hold a lock if the test never ended


class override_locks(override_settings):  # noqa: N801 - named like Django's override_settings
    """Keep locks in memory, empty at the start: a context manager and a decorator, also of TestCases.

    Args:
        aliases: which aliases of `LOCKING` to replace; none named = all of them. Their TTL, WAIT, KEY_PREFIX
            and ON_CONFLICT stay as they are.

    Example:
        >>> with override_locks():
        ...     place_order(42)
    """

    def __init__(self, *aliases: str) -> None:
        super().__init__()
        self._aliases = aliases
        self._stores: dict[str, Store] = {}

    def enable(self) -> None:
        """Swap the backends."""
        entries = dict(locks.settings)
        chosen = self._aliases or tuple(entries)
        for alias in chosen:
            entries[alias] = self._entry(alias, locks.entry(alias))
        self._stores = {alias: STORES.pop(alias) for alias in chosen if alias in STORES}
        self.options = {"LOCKING": entries}
        super().enable()

    def _entry(self, alias: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return what replaces an alias's entry in `LOCKING`."""
        kept = {name: value for name, value in entry.items() if name not in ("CACHE", "LOCATION", "OPTIONS")}
        return {**kept, "BACKEND": MEMORY}

    def decorate_class(self, cls: type) -> type:
        """Enable for each test of a TestCase; Django's way for settings would need them known by now."""
        return TestContextDecorator.decorate_class(self, cls)

    def disable(self) -> None:
        """Put the backends back."""
        _drop_leases()
        super().disable()
        for alias in self.options["LOCKING"]:
            STORES.pop(alias, None)
        STORES.update(self._stores)


def _drop_leases() -> None:
    """Stop renewing what was left held, and don't let the next test re-enter it."""
    settings = {id(backend.settings) for backend in locks.all(initialized_only=True)}
    for lease in live_leases():
        if id(lease.backend.settings) in settings:  # another kind of lock shares its backend's settings
            lease.renewed = False
            unregister(lease)


def forget_locks() -> None:
    """Drop what a test left held in memory: the next begins with nothing."""
    _drop_leases()
    STORES.clear()


class isolate_locks(override_locks):  # noqa: N801 - named like Django's override_settings
    """Keep the backends, and put a prefix of its own after the alias's: runs can share one server.

    For tests that need the real engine. What a test leaves held ends with its ttl. Arguments: as for
    `override_locks`.

    Example:
        >>> with isolate_locks():
        ...     place_order(42)
    """

    def enable(self) -> None:
        """Choose a prefix that no other block has."""
        self._prefix = f"test-{uuid4().hex[:12]}:"
        super().enable()

    def _entry(self, alias: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        return {**entry, "KEY_PREFIX": f"{locks.options(alias).key_prefix}{self._prefix}"}


def held_locks(backend: str = DEFAULT_ALIAS) -> list[str]:
    """Return the names of the locks that this process holds, sorted; nothing is asked of the server.

    Example:
        >>> assert held_locks() == []  # nothing was left behind
    """
    return sorted(lease.name for lease in _held(backend))


def _held(alias: str) -> list[SingleLease]:
    mine = [lease for lease in live_leases() if lease.backend.settings.alias == alias]
    return [lease for lease in mine if lease.remaining() > 0]


@contextmanager
def simulate_contention(name: str, *, waits: bool = False, backend: str = DEFAULT_ALIAS) -> Iterator[str]:
    """Have someone else hold the lock `name` inside the block; yields that holder's owner.

    Args:
        name: what is locked.
        waits: False: an attempt is refused at once, as though its `wait` had passed. True: it really waits,
            and is granted the lock when the block ends.
        backend: alias in `LOCKING`.

    Raises:
        LockNotAcquired: the lock is held already.

    Example:
        >>> with simulate_contention("order:42"), pytest.raises(LockNotAcquired):
        ...     pay(42)
    """
    engine = locks[backend]
    key, rival = engine.key(check_name(name)), new_owner()
    outcome = engine.try_acquire(key, rival, LONG_ENOUGH)
    if isinstance(outcome, Busy):
        raise LockNotAcquired(name, waited=0.0, backend=backend, holder=outcome.holder)
    busy = Busy(retry_after=1.0, holder=rival)
    refuse = partial(LockNotAcquired, name, waited=0.0, backend=backend, holder=rival, retry_after=1.0)
    with ExitStack() as stack:
        stack.callback(engine.release, key, rival)
        if not waits:
            stack.enter_context(_refused(engine, key, refuse, busy))
        yield rival


@contextmanager
def simulate_outage(*, backend: str = DEFAULT_ALIAS) -> Iterator[None]:
    """Have no server answer inside the block: every `acquire` raises BackendUnavailable at once.

    Locks that are held already stay held; other kinds of lock (`get_semaphore` and the like) still answer.

    Example:
        >>> with simulate_outage(), pytest.raises(BackendUnavailable):
        ...     pay(42)
    """

    def refuse() -> BackendUnavailable:
        error = BackendUnavailable(f"the lock backend {backend!r} does not answer (simulate_outage)")
        error.sent = False
        return error

    with _refused(locks[backend], None, refuse):
        yield


@contextmanager
def _refused(
    engine: BaseLockBackend, key: str | None, refuse: Callable[[], Exception], busy: Busy | None = None
) -> Iterator[None]:
    """Refuse attempts to acquire `key` (None = any key); one that would wait gets `busy` first."""

    def chosen(make: Any, refused: Any, asked: str, *args: Any, **options: Any) -> Any:
        return refused(refuse, busy) if key in (None, asked) else make(asked, *args, **options)

    with (
        patch.object(engine, "waiter", partial(chosen, engine.waiter, RefusedThread)),
        patch.object(engine, "async_waiter", partial(chosen, engine.async_waiter, RefusedTask)),
    ):
        yield


class Refusal(WaitingSteps):
    """An attempt that is refused instead of waiting."""

    def __init__(self, refuse: Callable[[], Exception], busy: Busy | None) -> None:
        super().__init__()
        self._refuse, self._busy = refuse, busy

    def ask(self, *, queue: bool) -> Outcome:
        busy, self._busy = self._busy, None
        if busy is None:
            raise self._refuse()
        return busy

    def give_up(self) -> None:
        pass  # nothing was sent, so nothing is to undo

    def pause(self) -> float:
        return 0.0


class RefusedThread(Refusal, WokenThread):
    """A thread's attempt."""


class RefusedTask(Refusal, WokenTask):
    """A task's attempt."""


def simulate_loss(lease: Lease | str, *, backend: str = DEFAULT_ALIAS) -> None:
    """Take a lock away from its holder in this process, as an outage would: others may have it now.

    The lease is lost from here on: `ensure_held()` raises, `on_lost` is called, the block's end raises.

    Args:
        lease: what `acquire` returned, or the name of a lock that a thread or task of this process holds.

    Raises:
        LockNotOwned: this process holds no lock of that name.

    Example:
        >>> with pytest.raises(LockLost), get_lock("order:42") as lease:
        ...     simulate_loss(lease)
    """
    if isinstance(lease, str):
        singles: Sequence[SingleLease] = [held for held in _held(backend) if held.name == lease]
        if not singles:
            others = ", ".join(held_locks(backend)) or "nothing"
            raise LockNotOwned(
                f"this process doesn't hold the lock {lease!r} on backend {backend!r}; it holds {others}"
            )
    else:
        singles = lease.leases
    for single in singles:
        single.backend.release(single.key, single.owner)
        single.lose()
