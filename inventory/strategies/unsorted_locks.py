"""Broken: good locks, taken in the order of the basket."""

from __future__ import annotations

from typing import ClassVar

from inventory.models import Product
from inventory.rows import decide, lock_products, sale_transaction, save_all
from inventory.strategies.base import Sale, Strategy


class UnsortedLocks(Strategy):
    """Idea:
        Go through the basket, and for each line lock the product's row and look whether there is enough.

    Interleaving:
        A's basket is pen, mug; B's is mug, pen. A locks the pen, B locks the mug. A waits for the mug, B for
        the pen: for ever, if nobody looks. PostgreSQL looks after a second, and ends one of them.

    Verdict:
        Deadlocks. Nothing is oversold, and the shop stands still until the database finds the circle. With
        distributed locks taken one by one `LockDeadlock` ends it after a second. One cart alone never shows
        it, nor do carts of one product.

    Cost:
        A second of everyone's time for each circle, and a buyer who is sent away from a full shop.
    """

    name: ClassVar[str] = "unsorted_locks"
    sound: ClassVar[bool] = False
    race_products: ClassVar[int] = 2

    def sell(self, sale: Sale) -> None:
        """Lock, read and decide line by line as they come, then save."""
        products: dict[str, Product] = {}
        with sale_transaction(self.wait):
            for line in sale.basket:
                products |= lock_products([line])
                decide([line], products)
            save_all(sale.lines, products)
            sale.record(products)
