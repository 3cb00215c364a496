"""Reading stock. Nothing is decided by what these return: a sale decides under its own lock."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections

from inventory.fields import for_sale


def units_for_sale(skus: Sequence[str], using: str, *, location: int | None = None) -> dict[str, int]:
    """Return by SKU how many units are for sale; unknown SKUs are left out. One query."""
    if not skus:
        return {}
    connection = connections[using]
    units, places = for_sale("item.id", connection.vendor, location), ", ".join(["%s"] * len(skus))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT item.sku, {units} FROM inventory_item item WHERE item.sku IN ({places})",  # noqa: S608
            list(skus),
        )
        return {sku: int(found) for sku, found in cursor.fetchall()}
