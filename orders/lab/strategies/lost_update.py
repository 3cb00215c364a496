"""Broken: read the stock, compute in memory, save the result."""

from __future__ import annotations

from uuid import UUID

from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, in_key_order


class LostUpdate(Strategy):
    """Idea:
        Read the product, see that there is enough, subtract in Python, save. In a transaction, so it must be
        safe.

    Interleaving:
        A reads 10. B reads 10. A saves 9. B saves 9: it writes what it computed from a stock that is gone,
        and A's update is lost. READ COMMITTED, PostgreSQL's default, allows that: a plain SELECT locks
        nothing.

    Verdict:
        Oversells, and the stock looks healthy while it does: forty orders, nine left. The ledger knows
        better.

    Cost:
        None that a test with one buyer would show.
    """

    name = "lost_update"
    sound = False

    def sell(self, cart: Cart) -> UUID:
        """Read, compute, save."""
        with self.transaction():
            products = self.read(cart)
            self.decide(cart, products)
            for product, units in in_key_order(cart, products):
                product.on_hand -= units
                product.save(update_fields=["on_hand"])
            self.checkpoint("written")
            return self.record(cart, products)
