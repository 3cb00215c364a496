"""Sound: the buyer who inserts the row has the lock."""

from __future__ import annotations

from uuid import UUID

from orders.lab.cart import Cart
from orders.lab.models import NamedLock
from orders.lab.strategies.base import Strategy


class UniqueRow(Strategy):
    """Idea:
        INSERT a row whose name is a unique key. The second inserter of the same name waits in the index for
        the first one's end. The row is deleted before the commit, so it is never seen.

    Interleaving:
        A inserts `held:mug`, reads 1, saves 0. B's INSERT waits. A deletes its row and commits: B's INSERT
        goes through, and B reads 0. If A rolls back or dies, its row is gone just the same.

    Verdict:
        Exact. The well-known form commits the row and deletes it later, in another transaction: then a dead
        holder's row stays forever, and with an expiry in it this is `setnx_getset` once more.

    Cost:
        A dead row version and two writes of WAL for each sale. It needs no row to be there beforehand.
    """

    name = "unique_row"
    sound = True

    def sell(self, cart: Cart) -> UUID:
        """Insert, in one order for all carts; read, decide and subtract; delete; COMMIT."""
        names = [f"held:{sku}" for sku in cart.skus]
        with self.transaction():
            self.checkpoint("waiting")
            NamedLock.objects.bulk_create(map(NamedLock, names))
            self.checkpoint("locked")
            products = self.read(cart)
            self.decide(cart, products)
            self.take(cart, products)
            order = self.record(cart, products)
            NamedLock.objects.filter(name__in=names).delete()
            return order
