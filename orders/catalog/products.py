"""New products and what comes in of them."""

from __future__ import annotations

from decimal import Decimal

from django.db import transaction

from inventory import stock
from orders.models import Product


@transaction.atomic
def create_product(
    sku: str,
    *,
    name: str = "",
    price: Decimal = Decimal("1.00"),
    currency: str | None = None,
    on_hand: int = 0,
) -> Product:
    """Return a new product with `on_hand` units for sale.

    Args:
        name: the SKU unless there is one. price: in `currency`.
        currency: three letters of ISO 4217; None: the shop's.

    Raises:
        ValidationError: the product can't be; it says which field and why.

    Example:
        >>> create_product("mug", price=Decimal("7.50"), on_hand=10)  # doctest: +SKIP
        <Product: mug>
    """
    product = Product(sku=sku, name=name or sku, price=price)
    product.currency = currency or product.currency
    product.full_clean()
    product.save(force_insert=True)
    if on_hand:
        stock.receive(sku, on_hand, cause=f"initial:{product.pk}")
    return product
