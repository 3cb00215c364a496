"""The sale that differs by nothing but whose locks it takes: the body of four strategies."""

from __future__ import annotations

from uuid import UUID

from locking import locked_transaction
from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, busy_when_locked_out, lock_names


class Coordinated(Strategy):
    """Sells under the locks of the alias `lock_alias`, one per product, all or none."""

    sound = True

    def sell(self, cart: Cart) -> UUID:
        """Lock, BEGIN, read, decide, write, COMMIT, unlock."""
        self.checkpoint("waiting")
        names = lock_names(self, cart)
        with busy_when_locked_out(), locked_transaction(*names, wait=self.wait, backend=self.lock_alias):
            self.checkpoint("locked")
            products = self.read(cart)
            self.decide(cart, products)
            self.take(cart, products)
            order = self.record(cart, products)
        self.checkpoint("unlocked")
        return order
