"""Changes of stock that aren't sales. Each writes its movement in the same transaction."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from django.db import transaction
from django.db.models import F

from inventory.domain import Shortage
from inventory.locations import change_level, lock_levels, refuse_beyond_rest
from inventory.low_stock import notice_low_stock
from inventory.models import Product, StockLocation, StockMovement
from inventory.rows import lock_rows, sale_transaction, share_with_sales
from inventory.segments import fold, in_all
from inventory.strategies import STRATEGIES

Kind = StockMovement.Kind

_WRITTEN_BY = {
    Kind.SOLD: "orders.services.checkout",
    Kind.SHIPPED: "orders.fulfillment.ship",
    Kind.MOVED: "inventory.locations.move_stock",
}


@transaction.atomic
def create_product(
    sku: str,
    *,
    name: str = "",
    price: Decimal = Decimal("1.00"),
    currency: str | None = None,
    on_hand: int = 0,
    guarded: bool = True,
) -> Product:
    """Return a new product whose stock of `on_hand` units is accounted for by a `received` movement.

    Args:
        sku, name: the name is the SKU unless there is one. price: in `currency`.
        currency: three letters of ISO 4217; None: the shop's.
        on_hand: units. guarded: False for the oversell lab only.

    Raises:
        ValidationError: the product can't be; it says which field and why.

    Example:
        >>> create_product("mug", price=Decimal("7.50"), on_hand=10)  # doctest: +SKIP
        <Product: mug>
    """
    product = Product(sku=sku, name=name or sku, price=price, on_hand=on_hand, guarded=guarded)
    product.currency = currency or product.currency
    product.full_clean()
    product.save(force_insert=True)
    if on_hand:
        StockMovement.objects.create(
            product=product, kind=Kind.RECEIVED, quantity=on_hand, cause=f"initial:{product.pk}"
        )
    return product


@transaction.atomic
def change_stock(
    product: Product,
    kind: StockMovement.Kind,
    quantity: int,
    cause: str,
    *,
    shipped: int = 0,
    location: StockLocation | None = None,
) -> StockMovement:
    """Add `quantity` (negative: take) to the stock of `product`, once for each `cause`.

    Args:
        product: its `on_hand` is refreshed from the database.
        kind: received, restocked or adjusted; sales go through the checkout, shipments through
            `orders.fulfillment.ship`.
        quantity: units, signed.
        cause: what brought it about; the same cause twice is refused, so nothing is restocked twice.
        shipped: units that left the building with it; of restocked units that came back, minus their number.
        location: where units come to or leave from.

    Raises:
        IntegrityError: the cause was used before, or a guarded stock would fall below zero.
        NotThere: the location, or what is at none, has too few. ValueError: `kind` is sold, shipped or moved.
    """
    if kind in _WRITTEN_BY:
        raise ValueError(
            f"kind {kind.value!r} is written by {_WRITTEN_BY[kind]}; use 'adjusted' to correct a stock"
        )
    if quantity < 0:
        fold([product])  # what lies in segments can be taken, too
    Product.objects.filter(pk=product.pk).update(on_hand=F("on_hand") + quantity, version=F("version") + 1)
    if quantity < 0 and location is None:
        lock_levels(product)
        refuse_beyond_rest(product, -quantity)
    if kind in (Kind.RECEIVED, Kind.ADJUSTED) or shipped:
        change_level(product, location, quantity)
    movement = StockMovement.objects.create(
        product=product, kind=kind, quantity=quantity, shipped=shipped, cause=cause, location=location
    )
    product.refresh_from_db(fields=["on_hand", "version"])
    # Robust: the delivery is in the database, whether Redis answers or not; `reload_stock` does the same.
    transaction.on_commit(lambda: forget_copies([product]), robust=True)
    if product.low_stock_threshold is not None:
        transaction.on_commit(lambda: notice_low_stock([product.pk]), robust=True)
    return movement


def forget_copies(products: Iterable[Product]) -> None:
    """Let the next buyer load the new stock: a copy that is too low would refuse units that are there."""
    changed = list(products)
    for strategy in STRATEGIES.values():
        if strategy.keeps_stock:
            strategy().forget(changed)


def gather(shortages: Iterable[Shortage], wait: float | None) -> bool:
    """Put units back into the products' rows where others have spread them, if that ends every shortage.

    Segments and unit rows are seen by the strategies that made them only; a refusal of another one may be
    short of units that are there.

    Args:
        shortages: of a refusal. wait: seconds to wait for a row that others have locked.

    Returns:
        Whether it is worth trying again: there is enough, put back here or meanwhile by somebody else.

    Raises:
        Busy: the rows stayed locked.
    """
    wanted = {short.sku: short.requested for short in shortages}
    products = list(in_all(Product.objects.filter(sku__in=wanted)))
    if any(product.available_in_all < wanted[product.sku] for product in products):
        return False
    spread = [product for product in products if product.available_in_all > product.available]
    if spread:
        with sale_transaction(wait):
            fold(spread)
            transaction.on_commit(lambda: forget_copies(spread), robust=True)
    return True


def record_shipment(
    product: Product, quantity: int, cause: str, location: StockLocation | None = None
) -> StockMovement:
    """Write into the ledger that `quantity` sold units left the building; what is for sale stays as it is.

    Raises:
        IntegrityError: the cause was used before. NotThere: the location has too few, or units that were sold
            before they came in haven't come yet.
    """
    limit = share_with_sales(product.pk)
    if limit:
        lock_rows([product.pk])  # of two shipments of the last unit that is there the second sees the first
    levels = lock_levels(product)
    # Summed up only where units can be missing that were sold: elsewhere what is allocated is there.
    if location is None and (levels or limit):
        refuse_beyond_rest(product, quantity)
    change_level(product, location, -quantity)
    return StockMovement.objects.create(
        product=product, kind=Kind.SHIPPED, quantity=0, shipped=quantity, cause=cause, location=location
    )
