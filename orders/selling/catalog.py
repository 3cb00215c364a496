"""What a cart costs by the catalog, and whether it may be sold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from inventory import Line, UnknownSku
from orders.models import Product
from orders.selling.refusals import LimitReached, MixedCurrencies, NotForSale


@dataclass(frozen=True, slots=True)
class Bill:
    """What a cart costs: pairs of product and units, in order of the SKUs, and their total."""

    lines: tuple[tuple[Product, int], ...]
    total: Decimal
    currency: str


def priced(cart: Sequence[Line], *, promised: bool = False) -> Bill:
    """Return what a cart costs now; what was `promised` is sold though it isn't for sale any more.

    Raises:
        UnknownSku, NotForSale: naming every such product of the cart. MixedCurrencies.
    """
    products = {each.sku: each for each in Product.objects.filter(sku__in=[line.sku for line in cart])}
    if unknown := [line.sku for line in cart if line.sku not in products]:
        raise UnknownSku(unknown)
    if resting := [line.sku for line in cart if not (promised or products[line.sku].active)]:
        raise NotForSale(resting)
    currencies = {line.sku: products[line.sku].currency for line in cart}
    if len(set(currencies.values())) > 1:
        raise MixedCurrencies(currencies)
    lines = tuple((products[line.sku], line.quantity) for line in cart)
    total = sum((product.price * units for product, units in lines), Decimal(0))
    return Bill(lines, total, currencies[cart[0].sku])


def anonymous_over_limit(customer: str, bill: Bill) -> LimitReached | None:
    """Return the refusal of a limited product to an anonymous customer, who can't be recognized."""
    for product, units in bill.lines:
        if product.customer_limit is not None and not customer:
            return LimitReached(product.sku, product.customer_limit, 0, units)
    return None
