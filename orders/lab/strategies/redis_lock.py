"""Sound, with the database behind it: this project's own distributed lock."""

from __future__ import annotations

from uuid import UUID

from locking import distributed_lock
from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, busy_when_locked_out, lock_names


class RedisLock(Strategy):
    """Idea:
        One lock a product, all or none for a cart. The decorator begins the transaction inside the lock and
        commits it before the release. A watchdog renews the lock, and buyers wait in line instead of polling.

    Interleaving:
        A locks, reads 1, sells it, commits, and only then unlocks; the lock is handed to B, which has waited
        in line and reads 0.

    Verdict:
        Exact, with one transaction a product at a time. A lease can still end under a holder that is paused
        for too long: the second line, UPDATE … WHERE on_hand >= n, then refuses what the lock let through.
        See `expired_lease` for what it prevents, and `fenced_lock` for a fence around every write.

    Cost:
        Two requests to Redis around each sale; refused buyers wait in the queue too. It also orders work
        outside the database, which a row lock can't.
    """

    name = "redis_lock"
    sound = True

    def sell(self, cart: Cart) -> UUID:
        """Lock, BEGIN, read, decide, write, COMMIT, unlock."""
        self.checkpoint("waiting")
        with busy_when_locked_out():
            order = self._sell_locked(cart)
        self.checkpoint("unlocked")
        return order

    @distributed_lock(key=lock_names, wait=Strategy.wait, on_conflict="raise")
    def _sell_locked(self, cart: Cart) -> UUID:
        self.checkpoint("locked")
        products = self.read(cart)
        self.decide(cart, products)
        self.take(cart, products)
        return self.record(cart, products)
