"""Sound, with the database's last word: stock in Redis, taken by one atomic script."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from locking import BackendUnavailable
from orders.lab.cart import Cart, SoldOut
from orders.lab.models import Product
from orders.lab.redis_store import RedisStock
from orders.lab.strategies.base import Strategy


class RedisScript(Strategy):
    """Idea:
        Keep the units left in Redis. A Lua script looks at every line and takes all or nothing, in one step.
        A buyer who gets nothing is refused without touching the database; one who gets units has them written
        there.

    Interleaving:
        A's script takes the last unit, B's finds none: B is refused while A still writes. If A's transaction
        fails, its units go back to Redis, and the next buyer finds them.

    Verdict:
        Exact: whatever Redis believes, the conditional UPDATE is in one transaction with order and items.
        A crash after the script and before the commit leaves Redis too low, never the database: those units
        rest unsold until `reconcile` removes the copy, which the next buyer reads from the database. So does
        the first buyer after a flush.

    Cost:
        A refusal costs one Redis request and no transaction; a sale still costs its row in the database.
    """

    name = "redis_script"
    sound = True
    stock = RedisStock("script")

    def sell(self, cart: Cart) -> UUID:
        """Take from Redis, then from the database; give back to Redis if that fails."""
        self.stock.take(cart)
        try:
            self.checkpoint("decided")
            with self.transaction():
                products = self.read(cart)
                self.take(cart, products)
                return self.record(cart, products)
        except BaseException as error:
            self._undo(cart, error)
            raise

    def _undo(self, cart: Cart, error: BaseException) -> None:
        with suppress(BackendUnavailable):  # the sale's own error matters more
            if isinstance(error, SoldOut):  # Redis had let it through: it is too high, and is read again
                self.stock.drop(cart.skus)
            else:
                self.stock.give_back(cart.id, cart.wanted)

    def prepare(self, products: Iterable[Product]) -> None:
        """Copy the stock into Redis."""
        self.stock.load(products)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the units from Redis; the next buyer loads them again."""
        self.stock.drop(product.sku for product in products)
