"""Products and their stock, written by SQL: a thousand of them in one statement, and no model to trust."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

_DELIVER = """
WITH made AS (
    INSERT INTO inventory_product
           (sku, name, price, on_hand, reserved, version, guarded, strategy)
    SELECT sku, 'load test', 1, units, 0, 0, true, ''
      FROM unnest(%s::text[], %s::int[]) AS wanted (sku, units)
    RETURNING id, sku, on_hand
)
INSERT INTO inventory_stockmovement (product_id, kind, quantity, cause, created_at)
SELECT id, 'received', on_hand, 'initial:' || sku, now() FROM made WHERE on_hand > 0
"""


def deliver(database: psycopg.Connection, units: Mapping[str, int]) -> None:
    """Make new products with so many units each, accounted for by movements."""
    database.execute(_DELIVER, [list(units), list(units.values())])
