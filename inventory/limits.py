"""How many units of a product one customer has, bought or reserved, and how many one may have.

Counted in the transaction that sells or reserves, by one statement that also compares: of two that come at
once the second waits for the first one's row and is compared with what that left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.db import connection

from inventory.domain import LimitReached
from inventory.models import CustomerPurchase, Product

# Every customer's units are counted, of products without a limit too: one may be set later.
_COUNT = """
INSERT INTO inventory_customerpurchase AS had (customer, product_id, units, reserved)
SELECT %(customer)s, product, bought, reserved
  FROM unnest(%(products)s::bigint[], %(bought)s::int[], %(reserved)s::int[], %(limits)s::int[])
    AS t(product, bought, reserved, most)
 WHERE bought + reserved <= most ORDER BY product
ON CONFLICT (customer, product_id) DO UPDATE
   SET units = had.units + excluded.units, reserved = had.reserved + excluded.reserved
 WHERE had.units + had.reserved + excluded.units + excluded.reserved <=
       (%(limits)s::int[])[array_position(%(products)s::bigint[], excluded.product_id)]
RETURNING product_id
"""
_UNCOUNT = """
UPDATE inventory_customerpurchase SET units = units - %s, reserved = reserved - %s
 WHERE customer = %s AND product_id = %s
"""
_NO_LIMIT = 2**31 - 1

Units = Sequence[tuple[Product, int]]


def count_units(customer: str, units: Units, *, reserved: bool = False) -> LimitReached | None:
    """Count units for a customer in the current transaction, all or none.

    Args:
        customer: whose they are; of a limited product an anonymous customer gets none, because one can't
            be told from another.
        units: pairs of product and units, in the order of the products' keys.
        reserved: they are reserved, not bought.

    Returns:
        The refusal, or None: counted.
    """
    counted = _count(customer, units, reserved) if customer else set()
    if refusal := over_limit(customer, units, counted):
        uncount_units(customer, [pair for pair in units if pair[0].pk in counted], reserved=reserved)
    return refusal


def over_limit(customer: str, units: Units, counted: Collection[int]) -> LimitReached | None:
    """Return the refusal of the first product that a limit keeps from this customer, or None.

    Args:
        customer: as for `count_units`. units: all that are wanted.
        counted: keys of the products whose units were counted.
    """
    if customer:
        refused = [pair for pair in units if pair[0].pk not in counted]
    else:
        refused = [pair for pair in units if pair[0].customer_limit is not None]
    return _refusal(customer, *refused[0]) if refused else None


def uncount_units(customer: str, units: Units, *, reserved: bool = False) -> None:
    """Take `units` off what the customer has, in the current transaction; nobody in particular has none."""
    if not customer:
        return
    with connection.cursor() as cursor:
        for product, n in units:
            cursor.execute(_UNCOUNT, [*_split(n, reserved), customer, product.pk])


def _count(customer: str, units: Units, reserved: bool) -> set[int]:
    """Count units where the limit allows it; return the keys of the products that were counted."""
    limits = [product.customer_limit for product, _ in units]
    values: dict[str, Any] = {
        "customer": customer,
        "products": [product.pk for product, _ in units],
        "bought": [_split(n, reserved)[0] for _, n in units],
        "reserved": [_split(n, reserved)[1] for _, n in units],
        "limits": [_NO_LIMIT if limit is None else limit for limit in limits],
    }
    with connection.cursor() as cursor:
        cursor.execute(_COUNT, values)
        return {row[0] for row in cursor.fetchall()}


def _split(units: int, reserved: bool) -> tuple[int, int]:
    return (0, units) if reserved else (units, 0)


def _refusal(customer: str, product: Product, requested: int) -> LimitReached:
    row = CustomerPurchase.objects.filter(customer=customer, product=product).first()
    has = row.units + row.reserved if row else 0
    return LimitReached(product.sku, product.customer_limit or 0, has, requested)
