"""Noticing that a product runs low, or is back: once each time, after the commit that made it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.db import connection
from django.dispatch import Signal

from inventory.models import Product
from inventory.segments import UNITS_INSIDE
from inventory.signals import back_in_stock, low_stock

WAIT: Final = 10.0
"""Seconds to wait for a row that others have locked: a buyer waits here, whose order is placed."""

_AVAILABLE = f"(on_hand - reserved + {UNITS_INSIDE})"
_IS_LOW = f"coalesce({_AVAILABLE} <= low_stock_threshold, false)"  # without a threshold it never is
_IS_SOLD_OUT = f"({_AVAILABLE} <= 0 AND (low_stock_threshold IS NOT NULL OR sold_out_since IS NOT NULL))"

# Who changes a mark sends the signal; of two who notice together the second finds it changed. Rows are locked
# in the order of their keys, as carts lock them.
_MARK = f"""
WITH changed AS MATERIALIZED (
    SELECT id AS key, low_stock_since AS low_before, sold_out_since AS sold_out_before
      FROM inventory_product AS product
     WHERE (%(all)s OR id = ANY(%(keys)s::bigint[]))
       AND (SELECT set_config('lock_timeout', %(wait)s, true)) IS NOT NULL
       AND ((low_stock_since IS NOT NULL) <> {_IS_LOW} OR (sold_out_since IS NOT NULL) <> {_IS_SOLD_OUT})
     ORDER BY id FOR NO KEY UPDATE)
UPDATE inventory_product AS product
   SET low_stock_since = CASE WHEN {_IS_LOW} THEN coalesce(low_stock_since, statement_timestamp()) END,
       sold_out_since = CASE WHEN {_IS_SOLD_OUT} THEN coalesce(sold_out_since, statement_timestamp()) END
  FROM changed WHERE id = key
RETURNING id, {_AVAILABLE},
          low_before IS NULL AND low_stock_since IS NOT NULL,
          sold_out_before IS NOT NULL AND sold_out_since IS NULL
"""  # noqa: S608


def notice_low_stock(keys: Sequence[int] | None = None) -> int:
    """Send `low_stock` and `back_in_stock` for the products that have become so; return how many signals.

    Args:
        keys: of these products; None: of all.

    Raises:
        OperationalError: a row stayed locked for `WAIT` seconds; nothing was sent.
    """
    which: dict[str, Any] = {"all": keys is None, "keys": list(keys or ()), "wait": f"{WAIT * 1000:.0f}ms"}
    with connection.cursor() as cursor:
        cursor.execute(_MARK, which)
        marked = cursor.fetchall()
    low = {key: available for key, available, is_low, _ in marked if is_low}
    back = {key: available for key, available, _, is_back in marked if is_back}
    return _send(low_stock, low) + _send(back_in_stock, back)


def _send(signal: Signal, available: dict[int, int]) -> int:
    if not available:
        return 0
    for product in Product.objects.filter(pk__in=available).order_by("pk"):
        signal.send_robust(Product, product=product, available=int(available[product.pk]))
    return len(available)
