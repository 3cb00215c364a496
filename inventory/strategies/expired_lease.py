"""Broken: a good lock, outlived by its holder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.rows import busy_when_locked_out, decide, read_products, sale_transaction, save_all
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import LockLost, get_lock


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

    name: ClassVar[str] = "expired_lease"
    sound: ClassVar[bool] = False
    expiry: ClassVar[float] = 0.5  # seconds; the lab makes it shorter than its gap

    def sell(self, sale: Sale) -> None:
        """Lock, BEGIN, read, decide, write, COMMIT, unlock."""
        with self._held(sale), sale_transaction():
            products = read_products(sale.lines)
            decide(sale.lines, products)
            save_all(sale.lines, products)
            sale.record(products)
        checkpoint("unlocked")

    @contextmanager
    def _held(self, sale: Sale) -> Iterator[None]:
        checkpoint("waiting")
        with busy_when_locked_out():
            lease = get_lock(*lock_names(self, sale), ttl=self.expiry, wait=self.wait).acquire()
        checkpoint("locked")
        try:
            yield
        finally:
            with suppress(LockLost):
                lease.release()
