"""The lab's products: made to be oversold, then cleared away. The ledger's one narrow door is here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal

from django.db import connection, transaction

from inventory.models import LAB_PREFIX, Product
from inventory.services import create_product


class NotALabProduct(ValueError):
    """The lab was asked to touch real stock."""


def require_lab_skus(skus: Sequence[str]) -> None:
    """Raise NotALabProduct unless each of `skus` belongs to the lab."""
    foreign = [sku for sku in skus if not sku.startswith(LAB_PREFIX)]
    if foreign:
        raise NotALabProduct(f"{foreign[0]!r} isn't the lab's: its SKUs begin with {LAB_PREFIX!r}")


def create_lab_product(
    sku: str, on_hand: int, *, guarded: bool = False, price: Decimal = Decimal("1.00")
) -> Product:
    """Return a product to race for, by default without the CHECK that would stop a negative stock."""
    require_lab_skus([sku])
    return create_product(sku, name=f"Lab: {sku}", price=price, on_hand=on_hand, guarded=guarded)


@contextmanager
def clearing(skus: Sequence[str]) -> Iterator[None]:
    """Delete the products `skus` with their movements at the end of the block, in one transaction with its
    body.

    The body deletes what else refers to them, orders above all: see `orders.lab.clearing`.

    Raises:
        NotALabProduct: before anything is touched.
    """
    require_lab_skus(skus)
    with transaction.atomic():
        yield
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL holdfast.lab = 'on'")
            cursor.execute(
                "DELETE FROM inventory_stockmovement WHERE product_id IN "
                "(SELECT id FROM inventory_product WHERE sku = ANY(%s))",
                [list(skus)],
            )
            cursor.execute("SET LOCAL holdfast.lab = 'off'")
            # A fence stays for ever, because a late holder may come; nobody comes back for these products.
            names = [f"sku:{sku}" for sku in skus]
            cursor.execute("DELETE FROM locking_fence WHERE name = ANY(%s)", [names])
            cursor.execute("DELETE FROM inventory_namedlock WHERE name = ANY(%s)", [names])
        Product.objects.filter(sku__in=skus).delete()
