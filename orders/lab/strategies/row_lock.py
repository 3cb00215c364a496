"""Sound: lock the rows before reading them."""

from __future__ import annotations

from uuid import UUID

from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy


class RowLock(Strategy):
    """Idea:
        SELECT … FOR NO KEY UPDATE: anyone who reads the stock in order to change it locks its row until the
        commit.

    Interleaving:
        A reads 10 and has the row. B's read waits. A saves 9 and commits. B's read returns 9, not 10.

    Verdict:
        Exact: reading and writing are one step to everyone else. Rows are locked in primary-key order, so two
        carts that share products wait for one another in line and never in a circle.

    Cost:
        Buyers of one product queue for a whole transaction, round trips to Python included; buyers of
        different products don't meet.
    """

    name = "row_lock"
    sound = True

    def sell(self, cart: Cart) -> UUID:
        """Lock and read, decide, write."""
        with self.transaction():
            products = self.lock(cart.skus)
            self.decide(cart, products)
            self.save(cart, products)
            return self.record(cart, products)
