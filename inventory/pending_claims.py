"""Units claimed for a sale whose order is not there yet: out of the product's row, in a row of their own.

A claim ends in one of two ways, and each deletes its row, so that only one of them can happen: the order's
transaction deletes it, or it is given back to the product.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from inventory.domain import Busy
from inventory.models import Product, StockClaim
from inventory.progress import CONNECTION_ERRORS, SaleProgress
from inventory.rows import Products, limit_row_waits, sale_transaction
from inventory.strategies.base import Sale

logger = logging.getLogger(__name__)

Claim = Callable[[Sale, SaleProgress], Products]
"""Takes the units of a sale and writes its claims, in a transaction of its own whose progress it notes."""


def sell_in_two(sale: Sale, claim: Claim, wait: float) -> None:
    """Claim the units, COMMIT; then turn the claims into the order, COMMIT. Give them back if that fails.

    Args:
        sale: what is sold. claim: the first transaction; it returns the products that it read.
        wait: seconds for a row lock in the second one, and in giving back.

    Raises:
        RuntimeError: called inside an open transaction.
    """
    if connection.in_atomic_block:
        raise RuntimeError("a sale in two transactions can't be made inside an open one")
    progress = SaleProgress()
    try:
        products = claim(sale, progress)
        with sale_transaction(wait):
            consume(sale)
            sale.record(products)
    except BaseException:
        if progress.written:  # and perhaps committed, although nobody was told so
            _give_back_or_leave(sale, wait)
        raise


def _give_back_or_leave(sale: Sale, wait: float) -> None:
    try:
        give_back(sale.id, wait)  # finds none if the order was committed after all
    except CONNECTION_ERRORS as lost:
        logger.warning("%s; the claim of %s is left to reconcile", lost, sale.id)


def commit_asynchronously() -> None:
    """Let this transaction's commit return before it is flushed: a crash of the server may undo it.

    PostgreSQL replays commits in their order. A later commit that was flushed therefore proves this one.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")


def write_claims(sale: Sale, products: Mapping[str, Product]) -> None:
    """Note what the sale has taken."""
    StockClaim.objects.bulk_create(
        StockClaim(sale=sale.id, product=products[line.sku], quantity=line.quantity) for line in sale.lines
    )


def consume(sale: Sale) -> None:
    """Turn the sale's claims into its order, which is written in the same transaction.

    Raises:
        Busy: a reconciliation has given them back.
    """
    if StockClaim.objects.filter(sale=sale.id).delete()[0] != len(sale.lines):
        raise Busy("the claim lasted too long and was given back", retry_after=0)


def give_back(sale: UUID, wait: float | None = None) -> bool:
    """Return the sale's claimed units to their products; False when it has none.

    Args:
        sale: its id. wait: seconds to wait for a row that others have locked; None: without end.

    Raises:
        OperationalError: the rows stayed locked; the claims are there still.
    """
    with transaction.atomic():
        commit_asynchronously()
        if wait is not None:
            limit_row_waits(wait)
        claims = list(StockClaim.objects.filter(sale=sale).select_for_update().order_by("product_id"))
        for claim in claims:
            returned = {"on_hand": F("on_hand") + claim.quantity, "version": F("version") + 1}
            Product.objects.filter(pk=claim.product_id).update(**returned)
        StockClaim.objects.filter(sale=sale).delete()
    return bool(claims)


def give_back_older_than(seconds: float) -> int:
    """Return the claims of dead buyers; where there is a claim, there is no order. Returns how many sales."""
    old = StockClaim.objects.filter(created_at__lte=Now() - timedelta(seconds=seconds))
    return sum(give_back(sale) for sale in old.values_list("sale", flat=True).distinct().order_by("sale"))
