"""Noticing that a product runs low, or is back: an event in the outbox each time."""

from __future__ import annotations

from django.db.models import F, Q

from inventory.watch import crossed
from orders.events.outbox import publish
from orders.models import OrderEvent, Product
from orders.transactions import change

_LOW = Q(stock__available__lte=F("low_stock_threshold"))
_SOLD_OUT = Q(stock__available__lte=0)


def notice_low_stock() -> int:
    """Mark products that have become low or are back, and publish that; return how many events.

    Only products with a `low_stock_threshold` are looked at. Mark and event are one transaction, so an event
    is published once, whatever dies in between.
    """
    watched = Product.objects.filter(low_stock_threshold__isnull=False).select_related("stock")
    with change("low-stock"):
        low, _ = crossed(watched, _LOW, "low_stock_since")
        _, back = crossed(watched, _SOLD_OUT, "sold_out_since")
        for kind, products in ((OrderEvent.Kind.LOW_STOCK, low), (OrderEvent.Kind.BACK_IN_STOCK, back)):
            for product in products:
                publish(kind, product=product.pk, available=product.available)
    return len(low) + len(back)
