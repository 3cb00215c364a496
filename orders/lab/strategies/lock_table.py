"""Sound: a table whose rows are there to be locked."""

from __future__ import annotations

from uuid import UUID

from orders.lab.cart import Cart
from orders.lab.models import NamedLock
from orders.lab.strategies.base import Strategy, find_products, lock_names


class LockTable(Strategy):
    """Idea:
        A row for each name that can be locked, in a table of its own. SELECT … FOR UPDATE of that row is the
        lock, and the commit is the release.

    Interleaving:
        A locks the row `sku:mug`, reads 1, saves 0. B waits for the row, not for the product, until A has
        committed, and reads 0.

    Verdict:
        Exact, and it can't be let go too early or outlive its holder: it ends with the transaction, also when
        the process dies. The rows are made before the sale, in a transaction of their own, and stay.

    Cost:
        Two statements per sale, and every writer must know of the table: a writer that doesn't ask is not
        kept out. It locks names that have no row; for a product, `row_lock` needs one statement less.
    """

    name = "lock_table"
    sound = True

    def sell(self, cart: Cart) -> UUID:
        """See that the rows are there, lock them by name, then read, decide and subtract."""
        names = lock_names(self, cart)
        find_products(cart.skus)  # a row for a name that is no product's would stay forever
        NamedLock.objects.bulk_create(map(NamedLock, names), ignore_conflicts=True)
        with self.transaction():
            self.checkpoint("waiting")
            list(NamedLock.objects.filter(name__in=names).order_by("name").select_for_update())
            self.checkpoint("locked")
            products = self.read(cart)
            self.decide(cart, products)
            self.take(cart, products)
            return self.record(cart, products)
