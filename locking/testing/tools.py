"""What a project's own tests need: no server, and the rare outcomes whenever they are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from django.test.utils import TestContextDecorator, override_settings

from locking.backends.base import Busy
from locking.backends.memory import STORES, Store
from locking.core.handler import DEFAULT_ALIAS, locks
from locking.core.lease import HOLDS, Lease, SingleLease
from locking.exceptions import LockNotAcquired, LockNotOwned
from locking.keys.names import check_name
from locking.utils.ownership import new_owner

MEMORY: Final = "locking.backends.memory.MemoryBackend"

LONG_ENOUGH: Final = 3600.0
"""Seconds for which a simulated rival would hold a lock if the test never ended."""


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
            locks[alias]  # an alias that LOCKING doesn't have is a mistake, told by the handler
            entries[alias] = _in_memory(entries[alias])
        self._stores = {alias: STORES.pop(alias) for alias in chosen if alias in STORES}
        self.options = {"LOCKING": entries}
        super().enable()

    def decorate_class(self, cls: type) -> type:
        """Enable for each test of a TestCase; Django's way for settings would need them known by now."""
        return TestContextDecorator.decorate_class(self, cls)

    def disable(self) -> None:
        """Put the backends back."""
        super().disable()
        for alias in self.options["LOCKING"]:
            STORES.pop(alias, None)
        STORES.update(self._stores)


def _in_memory(entry: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in entry.items() if name not in ("CACHE", "LOCATION", "OPTIONS")}
    return {**kept, "BACKEND": MEMORY}


def held_locks(backend: str = DEFAULT_ALIAS) -> list[str]:
    """Return the names of the locks that this process holds, sorted; nothing is asked of the server.

    Example:
        >>> assert held_locks() == []  # nothing was left behind
    """
    return sorted(lease.name for lease in _held(backend))


def _held(alias: str) -> list[SingleLease]:
    leases = [lease for ref in HOLDS.valuerefs() if (lease := ref()) is not None]
    return [lease for lease in leases if lease.backend.settings.alias == alias and lease.remaining() > 0]


@contextmanager
def simulate_contention(name: str, *, backend: str = DEFAULT_ALIAS) -> Iterator[str]:
    """Have someone else hold the lock `name` inside the block; yields that rival's owner.

    Raises:
        LockNotAcquired: the lock is held already.

    Example:
        >>> with simulate_contention("order:42"):
        ...     assert client.post("/orders/42/pay/").status_code == 409
    """
    engine = locks[backend]
    key, rival = engine.key(check_name(name)), new_owner()
    outcome = engine.try_acquire(key, rival, LONG_ENOUGH)
    if isinstance(outcome, Busy):
        raise LockNotAcquired(name, waited=0.0, backend=backend, holder=outcome.holder)
    try:
        yield rival
    finally:
        engine.release(key, rival)


def simulate_loss(lease: Lease | str, *, backend: str = DEFAULT_ALIAS) -> None:
    """Take a lock away from its holder in this process, as an outage would: others may have it now.

    The lease is lost from here on: `ensure_held()` raises, `on_lost` is called, the block's end raises.

    Args:
        lease: what `acquire` returned, or the name of a lock that a thread or task of this process holds.

    Raises:
        LockNotOwned: nobody in this process holds a lock of that name.

    Example:
        >>> with pytest.raises(LockLost), get_lock("order:42") as lease:
        ...     simulate_loss(lease)
    """
    for single in _named(lease, backend) if isinstance(lease, str) else lease.leases:
        single.backend.release(single.key, single.owner)
        single.lose()


def _named(name: str, alias: str) -> list[SingleLease]:
    found = [lease for lease in _held(alias) if lease.name == name]
    if not found:
        held = ", ".join(held_locks(alias)) or "nothing"
        raise LockNotOwned(
            f"this process doesn't hold the lock {name!r} on backend {alias!r}; it holds {held}"
        )
    return found
