"""Reading stock. Nothing is decided by what these return: a sale decides under its own lock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from django.db import connections


def units_for_sale(skus: Sequence[str], using: str, *, location: int | None = None) -> dict[str, int]:
    """Return by SKU how many units are for sale; unknown SKUs are left out. One query.

    What is a bundle is for sale as often as its scarcest part allows.
    """
    if not skus:
        return {}
    connection = connections[using]
    statement = _SQL.format(now=_NOW[connection.vendor], skus=", ".join(["%s"] * len(skus)))
    parts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(statement, [location, location, *skus])
        for sku, per_unit, units, overdue in cursor.fetchall():
            parts[sku].append((int(units + overdue), per_unit))
    return {sku: min(units // per_unit for units, per_unit in each) for sku, each in parts.items()}


_NOW = {
    "postgresql": "statement_timestamp()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
}

# What has run out is for sale, whether it was swept or not: the next sale that needs it ends the reservation.
_SQL = """
SELECT item.sku, coalesce(part.quantity, 1),
       (SELECT coalesce(sum(CASE WHEN level.available + level.backorder_limit > level.safety_stock THEN
                                 level.available + level.backorder_limit - level.safety_stock ELSE 0 END), 0)
          FROM inventory_level level JOIN inventory_location location ON location.id = level.location_id
         WHERE level.item_id = coalesce(part.part_id, item.id) AND location.active
           AND location.id = coalesce(%s, location.id)),
       (SELECT coalesce(sum(movement.quantity), 0)
          FROM inventory_reservation reservation
          JOIN inventory_movement movement ON movement.entry_id = reservation.entry_id
          JOIN inventory_level level ON level.id = movement.level_id
          JOIN inventory_location location ON location.id = level.location_id
         WHERE reservation.state = 'live' AND reservation.expires_at <= {now} AND location.active
           AND level.item_id = coalesce(part.part_id, item.id) AND location.id = coalesce(%s, location.id))
  FROM inventory_item item LEFT JOIN inventory_component part ON part.item_id = item.id
 WHERE item.sku IN ({skus})
"""
