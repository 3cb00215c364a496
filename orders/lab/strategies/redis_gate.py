"""Sound: Redis refuses, the database sells, and a ledger remembers what lies between the two."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from locking import BackendUnavailable
from orders.lab.cart import Cart, SoldOut
from orders.lab.models import Order, Product
from orders.lab.redis_store import RedisStock
from orders.lab.strategies.base import Strategy


class RedisGate(Strategy):
    """Idea:
        One script takes the units and writes into a ledger, in Redis too, whose they are. After the commit
        the entry is struck. What a dead buyer left is settled by asking the database for its order.

    Interleaving:
        A's script takes the last unit, and A dies. B is refused, with no transaction. The reconciler finds
        A's entry and no order, and gives the unit back: C buys it. Had A died after its commit, the entry
        would be struck and nothing given back.

    Verdict:
        Exact: the conditional UPDATE is in one transaction with the order. A stock that Redis has lost is
        read from the database, and what was taken before isn't given back to it: the ledger is lost, too.

    Cost:
        Two requests to Redis per sale; a refusal costs one, and no transaction. Units of a dead buyer rest
        until the reconciler comes.
    """

    name = "redis_gate"
    sound = True
    stock = RedisStock("gate", ledger=True)

    def sell(self, cart: Cart) -> UUID:
        """Take and enter in the ledger; sell in the database; strike the entry."""
        self.stock.take(cart)
        try:
            self.checkpoint("decided")
            with self.transaction():
                products = self.read(cart)
                self.take(cart, products)
                order = self.record(cart, products)
        except BaseException as error:
            self._undo(cart, error)
            raise
        with suppress(BackendUnavailable):  # the sale is committed; the reconciler finds its order
            self.stock.settle(cart.id)
        return order

    def _undo(self, cart: Cart, error: BaseException) -> None:
        with suppress(BackendUnavailable):  # the reconciler finds the entry
            self.stock.give_back(cart.id, cart.wanted)
            if isinstance(error, SoldOut):  # Redis had let it through: it is too high, and is read again
                self.stock.drop(cart.skus)

    def prepare(self, products: Iterable[Product]) -> None:
        """Copy the stock into Redis."""
        self.stock.load(products)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the units from Redis; the next buyer loads them again."""
        self.stock.drop(product.sku for product in products)

    def reconcile(self, older_than: float = 30.0) -> int:
        """Strike the entries of sales that have an order, and give back the units of those that have none."""
        pending = self.stock.pending(older_than)
        made = set(Order.objects.filter(pk__in=pending).values_list("pk", flat=True))
        for cart, wanted in pending.items():
            self.stock.settle(cart) if cart in made else self.stock.give_back(cart, wanted)
        return len(pending)
