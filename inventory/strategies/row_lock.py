"""Sound: lock the rows before reading them."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import F

from inventory.checkpoints import checkpoint
from inventory.rows import decide, in_key_order, lock_products, sale_transaction
from inventory.strategies.base import Sale, Strategy


class RowLock(Strategy):
    """Idea:
        SELECT … FOR NO KEY UPDATE: anyone who reads the stock in order to change it locks its row until the
        commit.

    Interleaving:
        A reads 10 and has the row. B's read waits. A saves 9 and commits. B's read returns 9, not 10.

    Verdict:
        Exact: reading and writing are one step to everyone else. Rows are locked in primary-key order, so two
        carts that share products wait for one another in line and never in a circle.

    Cost:
        Buyers of one product queue for a whole transaction, round trips to Python included; buyers of
        different products don't meet.
    """

    name: ClassVar[str] = "row_lock"
    sound: ClassVar[bool] = True

    def sell(self, sale: Sale) -> None:
        """Lock and read, decide, write."""
        with sale_transaction(self.wait):
            products = lock_products(sale.lines)
            decide(sale.lines, products)
            for product, quantity in in_key_order(sale.lines, products):
                product.on_hand -= quantity
                product.version = F("version") + 1
                product.save(update_fields=["on_hand", "version"])
            checkpoint("written")
            sale.record(products)
