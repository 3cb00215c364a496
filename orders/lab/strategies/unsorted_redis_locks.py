"""Broken: good distributed locks, taken one by one in the order of the basket."""

from __future__ import annotations

from contextlib import ExitStack
from uuid import UUID

from locking import get_lock
from orders.lab.cart import Cart
from orders.lab.strategies.base import Products, Strategy, busy_when_locked_out


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
        A second of everyone's time for each circle, and a buyer who has to start again.
    """

    name = "unsorted_redis_locks"
    sound = False
    race_products = 2
    wait = 3.0

    def sell(self, cart: Cart) -> UUID:
        """Lock, read and decide line by line as they come, then save."""
        products: Products = {}
        with busy_when_locked_out(), ExitStack() as locks:
            for sku, units in cart.wanted.items():
                name = {sku: f"lab:sku:{sku}"}
                self.checkpoint("waiting", locks=name)
                locks.enter_context(get_lock(name[sku], wait=self.wait))
                self.checkpoint("locked", locks=name)
                line = Cart({sku: units})
                products = {**products, **self.read(line)}
                self.decide(line, products)
            with self.transaction():
                self.save(cart, products)
                order = self.record(cart, products)
        self.checkpoint("unlocked")
        return order
