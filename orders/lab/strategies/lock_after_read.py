"""Broken: a good lock, taken after the stock was read."""

from __future__ import annotations

from uuid import UUID

from locking import locked_transaction
from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, busy_when_locked_out, lock_names


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

    name = "lock_after_read"
    sound = False

    def sell(self, cart: Cart) -> UUID:
        """Read, lock, BEGIN, decide, write, COMMIT, unlock."""
        products = self.read(cart)
        self.checkpoint("waiting")
        with busy_when_locked_out(), locked_transaction(*lock_names(self, cart), wait=self.wait):
            self.checkpoint("locked")
            self.decide(cart, products)
            self.save(cart, products)
            order = self.record(cart, products)
        self.checkpoint("unlocked")
        return order
