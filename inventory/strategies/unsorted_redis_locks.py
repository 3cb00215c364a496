"""Broken: good distributed locks, taken one by one in the order of the basket."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.models import Product
from inventory.rows import busy_when_locked_out, decide, read_products, sale_transaction, save_all
from inventory.strategies.base import Sale, Strategy
from locking import get_lock


class UnsortedRedisLocks(Strategy):
    """Idea:
        Go through the basket, and for each line acquire the product's distributed lock and look whether there
        is enough. Release all of them after the commit.

    Interleaving:
        A's basket is pen, mug; B's is mug, pen. A holds the pen, B holds the mug. A waits for the mug, B for
        the pen. No database sees this circle: the watchdog renews both locks, so no lease ends it either.

    Verdict:
        Deadlocks. The waiter that closed the circle gets `LockDeadlock`, which names it, after a second and a
        quarter; with other libraries both wait until their time is over. Acquire all names at once, as
        `redis_lock` does: `get_lock("pen", "mug")` sorts them, and no circle can close.

    Cost:
        A second of everyone's time for each circle, and a buyer who has to begin anew.
    """

    name: ClassVar[str] = "unsorted_redis_locks"
    sound: ClassVar[bool] = False
    race_products: ClassVar[int] = 2
    wait: ClassVar[float] = 3.0

    def sell(self, sale: Sale) -> None:
        """Lock, read and decide line by line as they come, then save."""
        products: dict[str, Product] = {}
        with busy_when_locked_out(), ExitStack() as locks:
            for line in sale.basket:
                checkpoint("waiting")
                locks.enter_context(get_lock(f"sku:{line.sku}", wait=self.wait))
                checkpoint("locked")
                products |= read_products([line])
                decide([line], products)
            with sale_transaction():
                save_all(sale.lines, products)
                sale.record(products)
        checkpoint("unlocked")
