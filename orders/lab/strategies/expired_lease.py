"""Broken: a good lock, outlived by its holder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar
from uuid import UUID

from locking import LockLost, get_lock
from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, busy_when_locked_out, lock_names


class ExpiredLease(Strategy):
    """Idea:
        Lock with a ttl, so that a crash can't block the shop. BEGIN, read, decide, write, COMMIT, then let
        go. If the lease has ended by then, there is nothing left to let go: never mind.

    Interleaving:
        A locks, reads 1, and is paused for longer than its lease: a garbage collection, a slow payment, a
        machine that stands still. B locks, reads 1, sells it. A wakes up, knows nothing of it, and sells it.

    Verdict:
        Oversells. No lock service can prevent it from the outside: a lease ends, its holder doesn't. The
        database has to refuse the late one: see `fenced_lock`.

    Cost:
        All of a distributed lock's. It shows under load only, when everything is slow.
    """

    name = "expired_lease"
    sound = False
    expiry: ClassVar[float] = 0.5  # seconds; the lab makes it shorter than its gap

    def sell(self, cart: Cart) -> UUID:
        """Lock, BEGIN, read, decide, write, COMMIT, unlock."""
        with self._held(cart), self.transaction():
            products = self.read(cart)
            self.decide(cart, products)
            self.save(cart, products)
            order = self.record(cart, products)
        self.checkpoint("unlocked")
        return order

    @contextmanager
    def _held(self, cart: Cart) -> Iterator[None]:
        self.checkpoint("waiting")
        with busy_when_locked_out():
            lease = get_lock(*lock_names(self, cart), ttl=self.expiry, wait=self.wait).acquire()
        self.checkpoint("locked", token=lease.leases[0].token, ttl=lease.ttl)
        try:
            yield
        finally:
            with suppress(LockLost):
                lease.release()
