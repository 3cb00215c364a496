"""Noticing that a product runs low: once each time it does, after the commit that made it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection

from inventory.models import Product
from inventory.signals import low_stock

# Units in segments and unit rows are on hand, too.
_AVAILABLE = """
(on_hand - reserved +
 coalesce((SELECT sum(units) FROM inventory_stocksegment WHERE product_id = product.id), 0) +
 (SELECT count(*) FROM inventory_stockunit WHERE product_id = product.id))
"""
# Who sets the mark tells; of two who notice together the second finds it set. Rows are locked in the order of
# their keys, as carts lock them.
_ROWS = """
SELECT id FROM inventory_product AS product
 WHERE (%(all)s OR id = ANY(%(keys)s::bigint[])) AND {} ORDER BY id FOR NO KEY UPDATE
"""
_LOW = f"low_stock_since IS NULL AND low_stock_threshold IS NOT NULL AND {_AVAILABLE} <= low_stock_threshold"
_NOT_LOW = (
    f"low_stock_since IS NOT NULL AND (low_stock_threshold IS NULL OR {_AVAILABLE} > low_stock_threshold)"
)
_MARK = f"""
UPDATE inventory_product AS product SET low_stock_since = statement_timestamp()
 WHERE id IN ({_ROWS.format(_LOW)}) RETURNING id, {_AVAILABLE}
"""  # noqa: S608
_UNMARK = f"UPDATE inventory_product SET low_stock_since = NULL WHERE id IN ({_ROWS.format(_NOT_LOW)})"  # noqa: S608


def notice_low_stock(keys: Sequence[int] | None = None) -> int:
    """Send `low_stock` for each product that has become low; return how many.

    Args:
        keys: of these products; None: of all.
    """
    which: dict[str, Any] = {"all": keys is None, "keys": list(keys or ())}
    with connection.cursor() as cursor:
        cursor.execute(_UNMARK, which)
        cursor.execute(_MARK, which)
        low = dict(cursor.fetchall())
    for product in Product.objects.filter(pk__in=low).order_by("pk"):
        low_stock.send_robust(Product, product=product, available=int(low[product.pk]))
    return len(low)
