"""Which location each line of a paid order leaves from."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F, Sum

from inventory.locations import Offer, rule
from inventory.models import StockLevel
from orders.models import Order, OrderItem


def assign_locations(order: Order) -> None:
    """Choose a location for each line, in the transaction that notes the payment.

    A shop without locations has no levels, and that is all it is asked. Of two orders that are paid at the
    same time the second sees what was promised to the first.
    """
    levels = list(
        StockLevel.objects.select_for_update(of=("self",))
        .filter(product__order_items__order=order, location__active=True, units__gt=0)
        .select_related("location")
        .order_by("product_id", "pk")  # as shipments lock them
    )
    if not levels:
        return
    choose = rule()
    for item in order.items.select_related("product"):
        item.location = choose(item.product, item.quantity, _offers(item, levels))
        item.save(update_fields=["location"])


def _offers(item: OrderItem, levels: Sequence[StockLevel]) -> list[Offer]:
    """Return what the locations have of the item's product, less what other lines are to take from there."""
    here = sorted(
        (level for level in levels if level.product_id == item.product_id),
        key=lambda level: (level.location.priority, level.location.code),
    )
    offers = (Offer(level.location, level.units - _promised(level)) for level in here)
    return [offer for offer in offers if offer.units > 0]


def _promised(level: StockLevel) -> int:
    waiting = OrderItem.objects.filter(
        product=level.product_id, location=level.location_id, quantity__gt=F("shipped") + F("released")
    )
    units = Sum(F("quantity") - F("shipped") - F("released"), default=0)
    return int(waiting.aggregate(total=units)["total"])
