"""Stock in several rows of a product: what is in them is no longer in `Product.on_hand`.

Locks are taken in one order: of the products by key, and of one product first its segments by number, then
its own row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db import connection
from django.db.models import F, Sum

from inventory.checkpoints import checkpoint
from inventory.domain import Line, Shortage, SoldOut
from inventory.models import Product, StockSegment
from inventory.rows import locked_rows

_FROM_ONE = """
UPDATE inventory_stocksegment SET units = units - %(wanted)s WHERE id = (
    SELECT id FROM inventory_stocksegment WHERE product_id = %(product)s AND units >= %(wanted)s
    ORDER BY (number + %(first)s) %% %(width)s LIMIT 1 FOR UPDATE SKIP LOCKED)
"""
_CREATE = """
INSERT INTO inventory_stocksegment (product_id, number, units)
SELECT %s, number, 0 FROM generate_series(0, %s - 1) AS number ON CONFLICT DO NOTHING
"""
_SPREAD = "UPDATE inventory_stocksegment SET units = %s + (number < %s)::int WHERE product_id = %s"


def levels(products: Iterable[Product]) -> dict[str, int]:
    """Return by SKU the units of each product, those in its segments included, as committed now."""
    keys = [product.pk for product in products]
    rows = Product.objects.filter(pk__in=keys).annotate(inside=Sum("segments__units"))
    return {product.sku: product.available + (product.inside or 0) for product in rows}


def decide_by_level(lines: Sequence[Line], products: Mapping[str, Product]) -> None:
    """Raise SoldOut, with every short line, unless row and segments have enough available for each line."""
    refuse_by_level(lines, products)
    checkpoint("decided")


def refuse_by_level(lines: Sequence[Line], products: Mapping[str, Product]) -> None:
    """`decide_by_level` before any lock is waited for: no step of a sale, it only spares the line."""
    level = levels(products.values())
    shortages = [
        Shortage(line.sku, line.quantity, max(0, level[line.sku]))
        for line in lines
        if level[line.sku] < line.quantity
    ]
    if shortages:
        raise SoldOut(shortages)


def take_from_one(product: Product, wanted: int, first: int, width: int) -> bool:
    """Take from one segment that has enough and that nobody has locked, from `first` on; never wait."""
    with connection.cursor() as cursor:
        given = {"wanted": wanted, "product": product.pk, "first": first, "width": width}
        cursor.execute(_FROM_ONE, given)
        return bool(cursor.rowcount)


def take_from_number(product: Product, wanted: int, number: int) -> bool:
    """Take from the segment `number`, if it has enough."""
    enough = StockSegment.objects.filter(product=product, number=number, units__gte=wanted)
    return enough.update(units=F("units") - wanted) == 1


def take_from_all(product: Product, wanted: int, width: int) -> bool:
    """Lock all segments, take from all of them and from the product's own row, and spread what is left.

    Returns:
        False, and nothing changed, when all together have too little.
    """
    units = _locked(product, width)
    if units < wanted:
        units += _drained(product)
    if units < wanted:
        return False
    each, rest = divmod(units - wanted, width)
    with connection.cursor() as cursor:
        cursor.execute(_SPREAD, [each, rest, product.pk])
    return True


def make(products: Iterable[Product], width: int) -> None:
    """Make the segments beforehand, empty: buyers that all met none would make them against one another."""
    for product in sorted(products, key=lambda product: product.pk):
        _locked(product, width)


def fold(products: Iterable[Product], width: int = 0) -> None:
    """Put the units of the segments back into the products' rows; inside a transaction."""
    for product in sorted(products, key=lambda product: product.pk):
        units = _locked(product, width)
        Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") + units, version=F("version") + 1)
        StockSegment.objects.filter(product=product).delete()


def _locked(product: Product, width: int) -> int:
    """Return the units of all segments, locked; those that aren't there yet are made."""
    segments = StockSegment.objects.filter(product=product).order_by("number").select_for_update()
    found = list(segments)
    if len(found) < width:
        with connection.cursor() as cursor:
            cursor.execute(_CREATE, [product.pk, width])
        found = list(segments.all())
    return sum(segment.units for segment in found)


def _drained(product: Product) -> int:
    """Take what the product's own row has available."""
    own = locked_rows().get(pk=product.pk).available
    Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") - own, version=F("version") + 1)
    return own
