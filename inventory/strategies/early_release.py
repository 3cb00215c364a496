"""Broken: a good lock, released before the commit."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.rows import decide, read_products, sale_transaction, save_all
from inventory.strategies.base import Sale, Strategy
from locking import get_lock


class EarlyRelease(Strategy):
    """Idea:
        Take a distributed lock around reading and writing the stock. The transaction was open already: the
        framework opens one for each request.

    Interleaving:
        A locks, reads 1, writes 0 and unlocks; its transaction is still open. B locks, and reads 1: the 0
        isn't committed, so B can't see it. B's write waits for A's row, then puts its own 0 over A's.

    Verdict:
        Oversells. The lock is perfect and protects the wrong stretch: it has to end after the commit, so the
        transaction belongs inside the lock. ATOMIC_REQUESTS makes this mistake for you.

    Cost:
        All of a distributed lock's, for nothing.
    """

    name: ClassVar[str] = "early_release"
    sound: ClassVar[bool] = False

    def sell(self, sale: Sale) -> None:
        """Lock inside the transaction."""
        with sale_transaction():
            checkpoint("waiting")
            names = [f"sku:{line.sku}" for line in sale.lines]
            with get_lock(*names, wait=self.wait, on_open_transaction="ignore"):
                checkpoint("locked")
                products = read_products(sale.lines)
                decide(sale.lines, products)
                save_all(sale.lines, products)
            checkpoint("unlocked")
            sale.record(products)
