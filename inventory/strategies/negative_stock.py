"""Broken: check in memory, subtract in SQL."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import F

from inventory.checkpoints import checkpoint
from inventory.models import Product
from inventory.rows import decide, in_key_order, read_products, sale_transaction
from inventory.strategies.base import Sale, Strategy


class NegativeStock(Strategy):
    """Idea:
        Subtracting in Python loses updates, so subtract in the database with F(). The check stays where it
        was.

    Interleaving:
        A reads 1, enough. B reads 1, enough. A subtracts: 0. B subtracts: -1. No update was lost, and the
        check was made on a stock that was gone.

    Verdict:
        Oversells, and here one sees it: the stock ends below zero. On a guarded product the database's CHECK
        refuses the second buyer; without one there is nothing to stop it.

    Cost:
        As cheap as the conditional UPDATE that would have been right.
    """

    name: ClassVar[str] = "negative_stock"
    sound: ClassVar[bool] = False

    def sell(self, sale: Sale) -> None:
        """Read and check, then subtract whatever the stock is by now."""
        with sale_transaction():
            products = read_products(sale.lines)
            decide(sale.lines, products)
            for product, quantity in in_key_order(sale.lines, products):
                Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") - quantity)
            checkpoint("written")
            sale.record(products)
