"""Broken: a good lock, taken after the stock was read."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.rows import busy_when_locked_out, decide, read_products, save_all
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import locked_transaction


class LockAfterRead(Strategy):
    """Idea:
        Load the product, as the view does anyway. Then lock, BEGIN, check its stock, subtract, COMMIT and
        unlock: everything that writes is under the lock, and the commit comes before the release.

    Interleaving:
        A and B both read 1. A locks, sells, commits, unlocks. B locks, looks at the 1 that it still has in
        memory, and sells the same unit.

    Verdict:
        Oversells. What was read before the lock is old by the time the lock is held: read again under it. An
        object that is handed to a locked function is the same mistake, well hidden.

    Cost:
        All of a distributed lock's, for nothing.
    """

    name: ClassVar[str] = "lock_after_read"
    sound: ClassVar[bool] = False

    def sell(self, sale: Sale) -> None:
        """Read, lock, BEGIN, decide, write, COMMIT, unlock."""
        products = read_products(sale.lines)
        checkpoint("waiting")
        with busy_when_locked_out(), locked_transaction(*lock_names(self, sale), wait=self.wait):
            checkpoint("locked")
            decide(sale.lines, products)
            save_all(sale.lines, products)
            sale.record(products)
        checkpoint("unlocked")
