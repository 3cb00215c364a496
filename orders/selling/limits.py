"""How many units of a product one customer may have, bought and reserved.

A count locks the customer's row, and compares after that: of two that come at once the second waits for the
first and sees what it left. Levels of stock are locked before customers' rows, but see docs/adr/0073.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection
from django.db.models.functions import Now

from orders.models import Basket, OrderItem
from orders.selling.catalog import Bill, anonymous_over_limit
from orders.selling.refusals import LimitReached

_LOCK = """
INSERT INTO orders_customerpurchase AS had (customer, product_id, units)
SELECT %s, product_id, 0 FROM unnest(%s::bigint[]) AS product_id ORDER BY product_id
ON CONFLICT (customer, product_id) DO UPDATE SET units = had.units RETURNING product_id, units
"""
_UNCOUNT = """
WITH less AS (
    SELECT product_id, units FROM unnest(%s::bigint[], %s::int[]) AS t(product_id, units)),
locked AS MATERIALIZED (
    SELECT id FROM orders_customerpurchase WHERE customer = %s AND product_id IN (SELECT product_id FROM less)
     ORDER BY product_id FOR UPDATE)
UPDATE orders_customerpurchase AS had SET units = had.units - less.units
  FROM less WHERE customer = %s AND had.product_id = less.product_id AND had.id IN (SELECT id FROM locked)
"""


def refuse_reserving_beyond_limits(customer: str, bill: Bill) -> None:
    """Refuse to reserve more than the customer may have, in the current transaction.

    Raises:
        LimitReached: an anonymous customer gets none of a limited product.
    """
    if refusal := anonymous_over_limit(customer, bill):
        raise refusal
    limited = {product.pk: (product, units) for product, units in bill.lines if product.customer_limit}
    if not limited:
        return
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [customer, list(limited)])
        counts = cursor.fetchall()
    for key, bought in counts:
        product, units = limited[key]
        refuse_beyond_limit(customer, key, product.sku, product.customer_limit or 0, bought, units)


def refuse_beyond_limit(
    customer: str, product_id: int, sku: str, limit: int, bought: int, requested: int
) -> None:
    """Refuse units beyond a product's limit; the customer's row is locked.

    Args:
        bought: units that the customer had bought before. requested: units of this call.

    Raises:
        LimitReached: with live reservations it would be too many.
    """
    has = bought + reserved_by(customer, product_id)
    if has + requested > limit:
        raise LimitReached(sku, limit, has, requested)


def reserved_by(customer: str, product_id: int) -> int:
    """Return the units of a product in the customer's live reservations."""
    live = Basket.objects.filter(
        customer=customer, reservation__state="live", reservation__expires_at__gt=Now()
    )
    return sum(
        line["quantity"]
        for lines in live.values_list("lines", flat=True)
        for line in lines
        if line["product"] == product_id
    )


def uncount(customer: str, units: Iterable[tuple[OrderItem, int]]) -> None:
    """Take units off what the customer has bought, in the current transaction."""
    less = {item.product_id: n for item, n in units if n}
    if customer and less:
        with connection.cursor() as cursor:
            cursor.execute(_UNCOUNT, [list(less), list(less.values()), customer, customer])
