"""Sound: a product's stock in several rows."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import ClassVar

from django.db import transaction

from inventory.checkpoints import checkpoint
from inventory.domain import Shortage, SoldOut
from inventory.models import Product
from inventory.rows import in_key_order, read_products, sale_transaction
from inventory.segments import decide_by_level, fold, levels, make, take_from_all, take_from_one
from inventory.strategies.base import Sale, Strategy


class SegmentedRows(Strategy):
    """Idea:
        One row has one queue. Spread the stock over 8 rows; a buyer takes from any that has enough and that
        nobody has locked (SKIP LOCKED). When there is none, lock all, gather, and spread the rest anew.

    Interleaving:
        A takes from row 3 and isn't committed yet; B skips it and takes from row 5: both flush at once. Rows
        1, 1, 1 are left and a cart wants 3: it waits for all of them, and is served.

    Verdict:
        Exact, with no undersell: a cart is refused only when all rows together, as committed, have too
        little. Rows are locked in one order, and those that are locked already are skipped, not waited for.

    Cost:
        One query more a sale. It pays while the flush of a commit is what the hot row waits for. The last
        units gather and queue as on one row, and the stock must be summed up to be shown.
    """

    name: ClassVar[str] = "segmented_rows"
    sound: ClassVar[bool] = True
    segments: ClassVar[int] = 8

    def sell(self, sale: Sale) -> None:
        """Look at the sum, then take from one row or from all."""
        with sale_transaction(self.wait):
            products = read_products(sale.lines)
            decide_by_level(sale.lines, products)
            for product, quantity in in_key_order(sale.lines, products):
                self._take(product, quantity)
            checkpoint("written")
            sale.record(products)

    def _take(self, product: Product, quantity: int) -> None:
        first = random.randrange(self.segments)  # noqa: S311
        if not take_from_one(product, quantity, first, self.segments) and not take_from_all(
            product, quantity, self.segments
        ):
            raise SoldOut([Shortage(product.sku, quantity, levels([product])[product.sku])])

    @transaction.atomic
    def prepare(self, products: Iterable[Product]) -> None:
        """Make the segments; the first buyer who finds them empty fills them."""
        make(products, self.segments)

    @transaction.atomic
    def forget(self, products: Iterable[Product]) -> None:
        """Put the stock back into the products' own rows."""
        fold(products)
