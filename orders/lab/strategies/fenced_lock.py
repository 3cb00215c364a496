"""Sound, whatever becomes of the lock: the database checks who is the newest holder."""

from __future__ import annotations

from uuid import UUID

from locking import distributed_lock
from orders.lab.cart import Cart
from orders.lab.strategies.base import Strategy, busy_when_locked_out, grants_marked, lock_names


class FencedLock(Strategy):
    """Idea:
        Every hold of a lock has a number, each higher than the last. A transaction writes its number into the
        fence, a row of the lock's own, before it reads anything: the database refuses a lower one.

    Interleaving:
        A locks with number 7 and is paused beyond its lease. B locks with 8, writes 8 into the fence, reads
        1, sells it. A wakes up, BEGINs, and is refused with its 7. Paused later, behind the fence, A keeps
        its row locked instead: B's transaction waits for A's end, and reads 0.

    Verdict:
        Exact, even when Redis forgets everything it knew. Redis gives order and speed, the database safety.
        The conditional UPDATE catches those who write without the fence.

    Cost:
        `redis_lock` and two statements more, one of them the write of a row for each product.
    """

    name = "fenced_lock"
    sound = True
    late_at = "locked"

    def sell(self, cart: Cart) -> UUID:
        """Lock, BEGIN, fence, read, decide, write, COMMIT, unlock."""
        self.checkpoint("waiting")
        with busy_when_locked_out(), grants_marked():
            order = self._sell_locked(cart)
        self.checkpoint("unlocked")
        return order

    @distributed_lock(key=lock_names, wait=Strategy.wait, fenced=True, on_conflict="raise")
    def _sell_locked(self, cart: Cart) -> UUID:
        self.checkpoint("fenced")
        products = self.read(cart)
        self.decide(cart, products)
        self.take(cart, products)
        return self.record(cart, products)
