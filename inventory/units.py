"""Stock in one row per unit: taken without waiting, refilled from the product's row when too few are free.

A unit row that is there is for sale; taking it deletes it. A product has at most a pool of them, so that a
large stock costs no table of its size: the rest stays in `Product.on_hand`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from django.db import connection
from django.db.models import F

from inventory.checkpoints import checkpoint
from inventory.domain import Line
from inventory.models import Product
from inventory.rows import decide
from inventory.segments import fold
from inventory.statements import prepared_cursor
from inventory.strategies.base import Sale

# All lines or nothing, and the claims that say for whom, in one statement that waits for nobody. Outside a
# transaction it is its own, whose commit need not wait for the disk: see `pending_claims`.
_TAKE = """
WITH wanted AS (SELECT * FROM unnest(%s::bigint[], %s::int[]) AS line (product_id, quantity)),
free AS MATERIALIZED (
    SELECT unit.id FROM wanted, LATERAL (
        SELECT id FROM inventory_stockunit WHERE product_id = wanted.product_id
         LIMIT wanted.quantity FOR UPDATE SKIP LOCKED) AS unit),
enough AS (SELECT (SELECT count(*) FROM free) = (SELECT sum(quantity) FROM wanted) AS yes),
taken AS (DELETE FROM inventory_stockunit
           WHERE id IN (SELECT id FROM free) AND (SELECT yes FROM enough))
INSERT INTO inventory_stockclaim (sale, product_id, quantity, created_at)
SELECT %s, product_id, quantity, statement_timestamp() FROM wanted
 WHERE (SELECT yes FROM enough) AND set_config('synchronous_commit', 'off', true) IS NOT NULL
"""
_FILL = "INSERT INTO inventory_stockunit (product_id) SELECT %s FROM generate_series(1, %s)"


def claim_units(sale: Sale, products: Mapping[str, Product]) -> bool:
    """Take the unit rows of every line that nobody has locked, and write the sale's claims; never wait.

    Returns:
        False, and nothing taken, when too few are free.
    """
    quantities = [line.quantity for line in sale.lines]
    with prepared_cursor() as cursor:
        cursor.execute(_TAKE, [[products[line.sku].pk for line in sale.lines], quantities, sale.id])
        claimed = bool(cursor.rowcount)
    if claimed:
        checkpoint("written")
    return claimed


def refill(lines: Sequence[Line], products: Mapping[str, Product], pool: int) -> None:
    """Bring each product's unit rows to `pool`, or to what its line wants; the products' rows are locked.

    Waits for those who take units at this moment: what they leave is all that there is.

    Raises:
        SoldOut: row, segments and unit rows together have too little.
    """
    fold(products.values())
    for product in products.values():
        product.refresh_from_db(fields=["on_hand", "reserved"])
    decide(lines, products)
    for line in lines:
        product = products[line.sku]
        units = min(product.available, max(pool, line.quantity))
        Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") - units, version=F("version") + 1)
        with connection.cursor() as cursor:
            cursor.execute(_FILL, [product.pk, units])
