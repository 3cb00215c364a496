"""Which location each line of a paid order leaves from, and comes back to."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import F, Q, Sum

from inventory.locations import Offer, rule
from inventory.models import StockLevel, StockLocation, StockMovement
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


def returned_to(order: Order, item: OrderItem, units: int) -> list[tuple[StockLocation | None, int]]:
    """Return where `units` of an item come back to: where they left from, as the ledger says.

    Args:
        order: its row is locked by this transaction. item: one of its items. units: at most its returnable.
    """
    causes = Q(cause__startswith=f"shipped:{order.pk}:") | Q(cause__startswith=f"returned:{order.pk}:")
    movements = StockMovement.objects.filter(causes, product=item.product_id).order_by()
    outside = dict(movements.values_list("location").annotate(units=Sum("shipped")))
    levels = StockLevel.objects.filter(product=item.product_id).select_related("location")
    parts = []
    # By key, as shipments lock the levels.
    for location in (None, *(level.location for level in levels.order_by("pk"))):
        part = min(units, outside.get(location and location.pk, 0))
        if part > 0:
            parts.append((location, part))
            units -= part
    return parts
