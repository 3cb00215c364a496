"""Sound, with the database's last word: stock in Redis, spread over several keys."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import ClassVar

from inventory import stock_store
from inventory.checkpoints import checkpoint
from inventory.models import Product
from inventory.rows import find_products, read_products, sale_transaction, subtract_all
from inventory.strategies.base import Sale, Strategy


class Segmented(Strategy):
    """Idea:
        Spread 100 units over 5 keys of 20. Each buyer begins at a random one, skips those that are drained,
        and spans several when no single one has enough.

    Interleaving:
        Segments 1, 1, 1 are left and A wants 3: a scheme of one key a buyer refuses A with 3 units unsold.
        Here one script looks at all of them, so A is served, and B, at whatever segment it begins, finds
        nothing.

    Verdict:
        Exact, with no undersell: one atomic script sees every segment of every line and takes all or nothing.
        Crash, flush and repair are as in `redis_script`: Redis may end too low until `prepare`, the database
        never does.

    Cost:
        On one Redis server segments gain nothing, for it runs one script at a time, and cost five keys a
        look. They pay where each has its own lock, or its own shard: there, no script sees all of them at
        once.
    """

    name: ClassVar[str] = "segmented"
    sound: ClassVar[bool] = True
    keeps_stock: ClassVar[bool] = True
    segments: ClassVar[int] = 5

    def sell(self, sale: Sale) -> None:
        """Take from the segments, then from the database; give back to the segments if that fails."""
        with stock_store.returned_on_failure(self._take(sale)):
            checkpoint("decided")
            with sale_transaction(self.wait):
                products = read_products(sale.lines)
                subtract_all(sale.lines, products)
                sale.record(products)

    def _take(self, sale: Sale) -> stock_store.Taken:
        keys = [key for line in sale.lines for key in self._keys(line.sku)]
        first = random.randrange(self.segments)  # noqa: S311
        args = [self.segments, first, *(line.quantity for line in sale.lines)]
        return stock_store.take(
            "take_segments", sale.lines, keys, args, lambda: self._stock(find_products(sale.lines).values())
        )

    def prepare(self, products: Iterable[Product]) -> None:
        """Rebuild the segments in Redis from the database."""
        stock_store.load(self._stock(products), overwrite=True)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the segments from Redis; the next buyer loads them again."""
        stock_store.drop(key for product in products for key in self._keys(product.sku))

    def _stock(self, products: Iterable[Product]) -> dict[str, int]:
        return {key: units for product in products for key, units in self._split(product)}

    def _keys(self, sku: str) -> list[str]:
        return [f"{{stock}}:{sku}:{segment}" for segment in range(self.segments)]

    def _split(self, product: Product) -> Iterable[tuple[str, int]]:
        each, rest = divmod(max(0, product.available), self.segments)
        return ((key, each + (i < rest)) for i, key in enumerate(self._keys(product.sku)))
