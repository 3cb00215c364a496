"""What all strategies behind a gate have in common: everything but the sale itself."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar

from inventory.domain import Line, NotForSale, UnknownProduct
from inventory.models import Product
from inventory.stock_reservation import StockReservation
from inventory.strategies.base import Reconciled, Strategy


class ReservingStrategy(Strategy):
    """A strategy with a copy of the stock in Redis, spread over so many shards."""

    keeps_stock: ClassVar[bool] = True
    segments: ClassVar[int]
    gate: ClassVar[StockReservation]

    def __init_subclass__(cls) -> None:
        """Give each strategy, and each variant of one, keys of its own."""
        cls.gate = StockReservation(cls.name, shards=cls.segments)

    def prepare(self, products: Iterable[Product]) -> None:
        """Read the stock into Redis anew, but that of products which nobody may buy."""
        skus = [product.sku for product in products]
        self.gate.drop(skus)
        for sku in skus:  # each by itself: together they would be a cart, in one currency and all for sale
            with suppress(NotForSale, UnknownProduct):
                self.gate.load([Line(sku, 1)])

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the stock from Redis; the next buyer reads it from the database."""
        self.gate.drop(product.sku for product in products)

    def reconcile(self, older_than: float = 30.0) -> Reconciled:
        """Settle what dead buyers left."""
        return self.gate.reconcile(older_than)

    def drift(self, products: Iterable[Product]) -> dict[str, int]:
        """Return by SKU how many units Redis has too many."""
        return self.gate.drift([product.sku for product in products])
