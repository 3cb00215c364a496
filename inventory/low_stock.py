"""Noticing that a product runs low, or is back: once each time, after the commit that made it so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection
from django.dispatch import Signal

from inventory.models import Product
from inventory.segments import UNITS_INSIDE
from inventory.signals import back_in_stock, low_stock

_AVAILABLE = f"(on_hand - reserved + {UNITS_INSIDE})"
# Who changes a mark sends the signal; of two who notice together the second finds it changed. Rows are locked
# in the order of their keys, as carts lock them.
_ROWS = """
SELECT id FROM inventory_product AS product
 WHERE (%(all)s OR id = ANY(%(keys)s::bigint[])) AND {} ORDER BY id FOR NO KEY UPDATE
"""
_LOW = f"low_stock_since IS NULL AND low_stock_threshold IS NOT NULL AND {_AVAILABLE} <= low_stock_threshold"
_NOT_LOW = (
    f"low_stock_since IS NOT NULL AND (low_stock_threshold IS NULL OR {_AVAILABLE} > low_stock_threshold)"
)
_SOLD_OUT = f"sold_out_since IS NULL AND low_stock_threshold IS NOT NULL AND {_AVAILABLE} <= 0"
_BACK = f"sold_out_since IS NOT NULL AND {_AVAILABLE} > 0"


def _mark(column: str, value: str, rows: str) -> str:
    return f"""
UPDATE inventory_product AS product SET {column} = {value}
 WHERE id IN ({_ROWS.format(rows)}) RETURNING id, {_AVAILABLE}
"""  # noqa: S608


_NOW = "statement_timestamp()"
_MARKS: tuple[tuple[str, Signal | None], ...] = (
    (_mark("low_stock_since", "NULL", _NOT_LOW), None),
    (_mark("low_stock_since", _NOW, _LOW), low_stock),
    (_mark("sold_out_since", "NULL", _BACK), back_in_stock),
    (_mark("sold_out_since", _NOW, _SOLD_OUT), None),
)
"""Statements that bring the marks up to date, and the signal for each product that one of them changes."""


def notice_low_stock(keys: Sequence[int] | None = None) -> int:
    """Send `low_stock` and `back_in_stock` for the products that have become so; return how many signals.

    Args:
        keys: of these products; None: of all.
    """
    which: dict[str, Any] = {"all": keys is None, "keys": list(keys or ())}
    changed: list[tuple[Signal, dict[int, int]]] = []
    with connection.cursor() as cursor:
        for statement, signal in _MARKS:
            cursor.execute(statement, which)
            if signal is not None:
                changed.append((signal, dict(cursor.fetchall())))
    return sum(_send(signal, available) for signal, available in changed)


def _send(signal: Signal, available: dict[int, int]) -> int:
    for product in Product.objects.filter(pk__in=available).order_by("pk"):
        signal.send_robust(Product, product=product, available=int(available[product.pk]))
    return len(available)
