"""Noticing that a product runs low, or is back: an event in the outbox each time."""

from __future__ import annotations

from typing import Final

from django.db.models import F, Q
from django.db.models.functions import Now

from orders.events.outbox import publish
from orders.models import OrderEvent, Product
from orders.transactions import change

BATCH: Final = 500
"""Products of one transaction."""

_LOW = Q(stock__available__lte=F("low_stock_threshold"))
_SOLD_OUT = Q(stock__available__lte=0)
_TO_MARK = (
    (_LOW & Q(low_stock_since=None))
    | (~_LOW & Q(low_stock_since__isnull=False))
    | (_SOLD_OUT & Q(sold_out_since=None))
    | (~_SOLD_OUT & Q(sold_out_since__isnull=False))
)


def notice_low_stock() -> int:
    """Mark products that have become low or are back, and publish that; return how many events.

    Only products with a `low_stock_threshold` are looked at. Mark and event are one transaction, so an event
    is published once, whatever dies in between.
    """
    published = 0
    with change("low-stock"):
        watched = Product.objects.filter(_TO_MARK, low_stock_threshold__isnull=False)
        keys = list(watched.order_by("pk").values_list("pk", flat=True)[:BATCH])
        rows = Product.objects.select_for_update(of=("self",), no_key=True, skip_locked=True)
        for product in rows.filter(pk__in=keys).select_related("stock").order_by("pk"):
            published += _mark(product)
    return published


def _mark(product: Product) -> int:
    """Write the marks of a locked product, and the events of what has changed."""
    available, threshold = product.available, product.low_stock_threshold
    low = threshold is not None and available <= threshold
    kinds = []
    if low and product.low_stock_since is None:
        kinds.append(OrderEvent.Kind.LOW_STOCK)
    if available > 0 and product.sold_out_since is not None:
        kinds.append(OrderEvent.Kind.BACK_IN_STOCK)
    Product.objects.filter(pk=product.pk).update(
        low_stock_since=(product.low_stock_since or Now()) if low else None,
        sold_out_since=(product.sold_out_since or Now()) if available <= 0 else None,
    )
    for kind in kinds:
        publish(kind, product=product.pk, available=available)
    return len(kinds)
