"""Broken: a good lock, released before the commit."""

from __future__ import annotations

from uuid import UUID

from locking import get_lock
from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, lock_names


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

    name = "early_release"
    sound = False

    def sell(self, cart: Cart) -> UUID:
        """Lock inside the transaction."""
        with self.transaction():
            self.checkpoint("waiting")
            with get_lock(*lock_names(self, cart), wait=self.wait, on_open_transaction="ignore"):
                self.checkpoint("locked")
                products = self.read(cart)
                self.decide(cart, products)
                self.save(cart, products)
            self.checkpoint("unlocked")
            return self.record(cart, products)
