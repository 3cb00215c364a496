"""Products and their stock, written by SQL: a thousand of them in one statement, and no model to trust."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

_DELIVER = """
WITH wanted AS (SELECT * FROM unnest(%s::text[], %s::bigint[]) AS t (sku, units)),
place AS (
    INSERT INTO inventory_location (code, name, priority, active) VALUES ('default', '', 0, true)
    ON CONFLICT (code) DO UPDATE SET code = excluded.code RETURNING id),
item AS (INSERT INTO inventory_item (sku) SELECT sku FROM wanted RETURNING id, sku),
product AS (
    INSERT INTO orders_product (sku, name, price, currency, active, stock_id)
    SELECT sku, 'load test', 1, 'EUR', true, id FROM item),
level AS (
    INSERT INTO inventory_level (item_id, location_id, available, reserved, committed, unavailable,
                                 backorder_limit, safety_stock)
    SELECT item.id, place.id, 0, 0, 0, 0, 0, 0 FROM item, place RETURNING id, item_id),
entry AS (
    INSERT INTO inventory_entry (cause, kind, fingerprint, actor, created_at)
    SELECT 'initial:' || sku, 1, 0, '', now() FROM wanted WHERE units > 0 RETURNING id, cause)
INSERT INTO inventory_movement (entry_id, level_id, source, target, quantity)
SELECT entry.id, level.id, 0, 1, units
  FROM wanted JOIN entry ON cause = 'initial:' || sku JOIN item USING (sku) JOIN level ON item_id = item.id
"""


def deliver(database: psycopg.Connection, units: Mapping[str, int]) -> None:
    """Make new products with so many units each, accounted for by the ledger."""
    database.execute(_DELIVER, [list(units), list(units.values())])
