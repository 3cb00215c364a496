"""Broken: good locks, taken in the order of the basket."""

from __future__ import annotations

from uuid import UUID

from orders.lab.cart import Cart
from orders.lab.strategies.base import Products, Strategy


class UnsortedLocks(Strategy):
    """Idea:
        Go through the basket, and for each line lock the product's row and look whether there is enough.

    Interleaving:
        A's basket is pen, mug; B's is mug, pen. A locks the pen, B locks the mug. A waits for the mug, B for
        the pen: forever, unless it is noticed. PostgreSQL looks after a second, and ends one of them.

    Verdict:
        Deadlocks. Nothing is oversold, and the shop stands still until the database finds the circle. With
        distributed locks taken one by one `LockDeadlock` ends it after a second. One cart alone never shows
        it, nor do carts of one product.

    Cost:
        A second of everyone's time for each circle, and a buyer who is sent away from a full shop.
    """

    name = "unsorted_locks"
    sound = False
    race_products = 2

    def sell(self, cart: Cart) -> UUID:
        """Lock, read and decide line by line as they come, then save."""
        products: Products = {}
        with self.transaction():
            for sku, units in cart.wanted.items():
                locked = self.lock([sku])
                self.decide(Cart({sku: units}), locked)
                products = {**products, **locked}
            self.save(cart, products)
            return self.record(cart, products)
