"""Broken: check in memory, subtract in SQL."""

from __future__ import annotations

from uuid import UUID

from django.db.models import F

from orders.lab.cart import Cart
from orders.lab.models import Product
from orders.lab.strategies.base import Strategy, in_key_order


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

    name = "negative_stock"
    sound = False

    def sell(self, cart: Cart) -> UUID:
        """Read and check, then subtract whatever the stock is by now."""
        with self.transaction():
            products = self.read(cart)
            self.decide(cart, products)
            for product, units in in_key_order(cart, products):
                Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") - units)
            self.checkpoint("written")
            return self.record(cart, products)
