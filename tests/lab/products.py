"""Products of the lab for tests, how one is bought, and how many there were at the start."""

from __future__ import annotations

import itertools
from decimal import Decimal
from functools import partial
from uuid import UUID

from orders.lab.cart import Cart
from orders.lab.models import Product
from orders.lab.strategies import get_strategy

INITIAL: dict[str, int] = {}
"""Units at the start, by SKU: the lab keeps no ledger."""

_numbers = itertools.count()


def make(on_hand: int = 1, sku: str = "", *, guarded: bool = False) -> Product:
    """Return a new product; with one unit, two buyers want it and one must go without."""
    sku = sku or f"product-{next(_numbers)}"
    INITIAL[sku] = on_hand
    return Product.objects.create(sku=sku, name=sku, price=Decimal("2.50"), on_hand=on_hand, guarded=guarded)


def sell(strategy: str, wanted: dict[str, int]) -> UUID:
    """Sell a cart by a strategy; return the order's id."""
    return get_strategy(strategy).sell(Cart(wanted))


def buying(strategy: str, wanted: dict[str, int]) -> partial[UUID]:
    """Return what a buyer does."""
    return partial(sell, strategy, wanted)
