"""Stock in several rows of a product: what is in them is no longer in `Product.on_hand`.

Locks are taken in one order: first the products' own rows by key, then their segments by product and number.
Only who has locked a product's row makes its segments, takes them away, or waits for all of them.

Who takes from a single segment has no place in that line and doesn't wait. Having found none, it must not
even go on in the same transaction: PostgreSQL locks a row before it looks whether that still has enough, and
keeps the lock when it has not. Anyone who then waits for the other rows may wait in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Count, F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from inventory.checkpoints import checkpoint
from inventory.domain import Line, Shortage, SoldOut
from inventory.models import Product, StockClaim, StockSegment, StockUnit
from inventory.rows import lock_rows, locked_rows

_FROM_ONE = """
UPDATE inventory_stocksegment SET units = units - %(wanted)s WHERE id = (
    SELECT id FROM inventory_stocksegment WHERE product_id = %(product)s AND units >= %(wanted)s
    ORDER BY (number - %(first)s + %(width)s) %% %(width)s LIMIT 1 FOR UPDATE SKIP LOCKED)
"""
_CREATE = """
INSERT INTO inventory_stocksegment (product_id, number, units)
SELECT %s, number, 0 FROM generate_series(0, %s - 1) AS number ON CONFLICT DO NOTHING
"""
_SPREAD = "UPDATE inventory_stocksegment SET units = %s + (number < %s)::int WHERE product_id = %s"


UNITS_INSIDE: Final = """
(coalesce((SELECT sum(units) FROM inventory_stocksegment WHERE product_id = product.id), 0)
 + (SELECT count(*) FROM inventory_stockunit WHERE product_id = product.id))
"""
"""SQL: units of `product` that are in its segments and in rows of their own, so no longer in its own row."""

_INSIDE = StockSegment.objects.filter(product=OuterRef("pk")).order_by().values("product")
_IN_UNITS = StockUnit.objects.filter(product=OuterRef("pk")).order_by().values("product")
_UNITS_INSIDE = Coalesce(Subquery(_INSIDE.annotate(total=Sum("units")).values("total")), 0) + Coalesce(
    Subquery(_IN_UNITS.annotate(total=Count("*")).values("total")), 0
)


def in_all(products: QuerySet[Product]) -> QuerySet[Any]:
    """Annotate `on_hand_in_all` and `available_in_all`: the product's row, its segments and its unit rows."""
    return products.annotate(
        on_hand_in_all=F("on_hand") + _UNITS_INSIDE,
        available_in_all=F("on_hand") - F("reserved") + F("backorder_limit") + _UNITS_INSIDE,
    )


def levels(products: Iterable[Product]) -> dict[str, int]:
    """Return by SKU what is available of each product in all, as committed now."""
    rows = in_all(Product.objects.filter(pk__in=[product.pk for product in products]))
    return {product.sku: product.available_in_all for product in rows}


def is_short(shortages: Iterable[Shortage]) -> bool:
    """Return whether the database itself has too little for one of these, units of claims counted as there.

    A claim's sale isn't finished: as long as it may fail, its units aren't sold.
    """
    wanted = {short.sku: short.requested for short in shortages}
    claimed = StockClaim.objects.filter(product=OuterRef("pk")).order_by().values("product")
    units = Coalesce(Subquery(claimed.annotate(total=Sum("quantity")).values("total")), 0)
    rows = in_all(Product.objects.filter(sku__in=wanted)).annotate(unsold=F("available_in_all") + units)
    unsold = dict(rows.values_list("sku", "unsold"))
    return any(unsold.get(sku, 0) < quantity for sku, quantity in wanted.items())


def decide_by_level(lines: Sequence[Line], products: Mapping[str, Product]) -> None:
    """Raise SoldOut, with every short line, unless row and segments have enough available for each line."""
    refuse_by_level(lines, products)
    checkpoint("decided")


def refuse_by_level(lines: Sequence[Line], products: Mapping[str, Product]) -> None:
    """`decide_by_level` before any lock is waited for: no step of a sale, it only spares the queue."""
    level = levels(products.values())
    shortages = [
        Shortage(line.sku, line.quantity, max(0, level[line.sku]))
        for line in lines
        if level[line.sku] < line.quantity
    ]
    if shortages:
        raise SoldOut(shortages)


def take_from_one(product: Product, wanted: int, first: int, width: int) -> bool:
    """Take from one segment that has enough and that nobody has locked, from `first` on; never wait.

    Returns:
        False when there is none. End the transaction before waiting for anything: see the top of this module.
    """
    with connection.cursor() as cursor:
        given = {"wanted": wanted, "product": product.pk, "first": first, "width": width}
        cursor.execute(_FROM_ONE, given)
        return bool(cursor.rowcount)


def take_from_number(product: Product, wanted: int, number: int) -> bool:
    """Take from the segment `number`, if it has enough."""
    enough = StockSegment.objects.filter(product=product, number=number, units__gte=wanted)
    return enough.update(units=F("units") - wanted) == 1


def take_from_all(product: Product, wanted: int, width: int) -> None:
    """Lock the product's row and all its segments, take from all of them, and spread what is left.

    Args:
        product: of a cart with several, all have been locked beforehand: see `inventory.rows.lock_rows`.
        wanted: units. width: segments that there are to be; missing ones are made.

    Raises:
        SoldOut: all together have too little.
    """
    own = locked_rows().get(pk=product.pk).available
    there = own + _locked(product.pk, width)
    if there < wanted:
        raise SoldOut([Shortage(product.sku, wanted, max(0, there))])
    if own:
        Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") - own, version=F("version") + 1)
    each, rest = divmod(there - wanted, width)
    with connection.cursor() as cursor:
        cursor.execute(_SPREAD, [each, rest, product.pk])


@transaction.atomic(savepoint=False)
def fold(products: Iterable[Product]) -> None:
    """Put the units of segments and unit rows back into the products' rows."""
    keys = sorted(product.pk for product in products)
    lock_rows(keys)
    for key in keys:
        # A deletion waits for those who take a unit at this moment, and they wait for nobody.
        if units := _locked(key) + StockUnit.objects.filter(product=key).delete()[0]:
            Product.objects.filter(pk=key).update(on_hand=F("on_hand") + units, version=F("version") + 1)
    StockSegment.objects.filter(product__in=keys).delete()


def _locked(product_id: int, width: int = 0) -> int:
    """Return the units of all segments of a product whose row is locked; lock them, make missing ones."""
    segments = StockSegment.objects.filter(product=product_id).order_by("number").select_for_update()
    found = list(segments)
    if len(found) < width:
        with connection.cursor() as cursor:
            cursor.execute(_CREATE, [product_id, width])
    return sum(segment.units for segment in found)
