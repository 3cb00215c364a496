"""Sound: a product's stock in several rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.domain import Line
from inventory.models import Product
from inventory.rows import in_key_order, lock_products, read_products, sale_transaction
from inventory.segments import decide_by_level, fold, take_from_all, take_from_one
from inventory.strategies.base import Sale, Strategy

Read = Callable[[Sequence[Line]], Mapping[str, Product]]
Take = Callable[[Product, int], None]


class SegmentedRows(Strategy):
    """Idea:
        One row has one queue. Spread the stock over 8 rows; a buyer takes from any that has enough and that
        nobody has locked (SKIP LOCKED). When there is none, begin again: lock all, gather, spread the rest.

    Interleaving:
        A takes from row 3 and isn't committed yet; B skips it and takes from row 5: both flush at once. Rows
        1, 1, 1 are left and a cart wants 3: it waits for all of them, and is served.

    Verdict:
        Exact, with no undersell: a cart is refused only when all rows together, as committed, have too
        little. Who takes from one row waits for nobody; who gathers locks the product's own row first.

    Cost:
        One query more a sale. It pays while the flush of a commit is what the hot row waits for. The last
        units take two tries and queue as on one row, and the stock must be summed up to be shown.
    """

    name: ClassVar[str] = "segmented_rows"
    sound: ClassVar[bool] = True
    segments: ClassVar[int] = 8

    def sell(self, sale: Sale) -> None:
        """Take each line from one row without waiting; where none has enough, begin again and gather."""
        try:
            self._sell(sale, read_products, self._take_from_one)
        except _NoneHasEnough:
            self._sell(sale, lock_products, self._take_from_all)

    def _sell(self, sale: Sale, read: Read, take: Take) -> None:
        with sale_transaction(self.wait):
            products = read(sale.lines)
            decide_by_level(sale.lines, products)
            for product, quantity in in_key_order(sale.lines, products):
                take(product, quantity)
            checkpoint("written")
            sale.record(products)

    def _take_from_one(self, product: Product, quantity: int) -> None:
        first = random.randrange(self.segments)  # noqa: S311
        if not take_from_one(product, quantity, first, self.segments):
            raise _NoneHasEnough

    def _take_from_all(self, product: Product, quantity: int) -> None:
        take_from_all(product, quantity, self.segments)

    def forget(self, products: Iterable[Product]) -> None:
        """Put the stock back into the products' own rows."""
        fold(products)


class _NoneHasEnough(Exception):
    """No single row that is free has enough."""
