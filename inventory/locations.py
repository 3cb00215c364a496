"""Several warehouses: how many units are where, and which one a line leaves from.

Locations are about what is in the building, not about what is for sale: a sale knows none of them, and stays
one statement. A level is changed together with its movement. Units of no location are the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum
from django.utils.module_loading import import_string

from inventory.checkpoints import checkpoint
from inventory.domain import PickledWhole, ReferenceUsed
from inventory.models import Product, StockLevel, StockLocation, StockMovement
from inventory.rows import lock_against_shipments


class NotThere(PickledWhole, ValueError):
    """A location has fewer units than are to leave it.

    Args:
        sku: the product. location: its code; empty for units of no location. wanted: units that are to leave.
        there: units that are there.
    """

    def __init__(self, sku: str, location: str, wanted: int, there: int) -> None:
        self.sku, self.location, self.wanted, self.there = sku, location, wanted, there
        where = f"at {location}" if location else "without a location"
        super().__init__(
            f"{sku}: {wanted} are to leave, and only {there} are {where}; name another location, or move or "
            "count stock first"
        )


@dataclass(frozen=True)
class Offer:
    """A location that could serve a line: `units` of the product are there and promised to no other line."""

    location: StockLocation
    units: int


Rule = Callable[[Product, int, Sequence[Offer]], StockLocation | None]


def first_with_enough(product: Product, quantity: int, offers: Sequence[Offer]) -> StockLocation | None:
    """Return the first location, by priority, that has the whole line; failing that, the fullest.

    Args:
        product: what is to leave. quantity: units of the line.
        offers: the active locations with some of it, in the order of their priorities.
    """
    for offer in offers:
        if offer.units >= quantity:
            return offer.location
    return max(offers, key=lambda offer: offer.units).location if offers else None


def rule() -> Rule:
    """Return what chooses a line's location: the setting STOCK_LOCATION_RULE names it."""
    chosen: Rule = import_string(settings.STOCK_LOCATION_RULE)
    return chosen


def change_level(product: Product, location: StockLocation | None, units: int) -> None:
    """Add `units` (negative: take) at a location, in the transaction that writes their movement.

    Raises:
        NotThere: fewer are there.
    """
    if location is None or not units:
        return
    level, _ = StockLevel.objects.get_or_create(product=product, location=location)
    enough = StockLevel.objects.filter(pk=level.pk, units__gte=-units)
    if not enough.update(units=F("units") + units):
        level.refresh_from_db()
        raise NotThere(product.sku, location.code, -units, level.units)


def lock_levels(product: Product) -> dict[int, int]:
    """Lock the levels of a product until the transaction ends; return their units by location."""
    levels = StockLevel.objects.select_for_update().filter(product=product).order_by("pk")
    return {level.location_id: level.units for level in levels}


def units_at(product: Product, location: StockLocation | None) -> int:
    """Return the units of a product at a location; None: those in the building that are at none."""
    if location is None:
        return _rest(product)
    levels = StockLevel.objects.filter(product=product, location=location)
    return int(levels.aggregate(total=Sum("units", default=0))["total"])


def _rest(product: Product) -> int:
    from inventory.stocktake import with_rest  # it changes stock, which changes levels

    return int(with_rest(Product.objects.filter(pk=product.pk)).get().at_no_location)


@transaction.atomic
def move_stock(
    product: Product,
    units: int,
    source: StockLocation | None,
    target: StockLocation | None,
    reference: str,
) -> bool:
    """Move `units` from one location to another; None stands for units of no location.

    Args:
        product: what is moved. units: at least 1. source, target: two different ones.
        reference: names the transfer. The same one again changes nothing, so a form that is sent twice moves
            once; with other units or locations it is refused.

    Returns:
        Whether they were moved now, and not before.

    Raises:
        ValueError: units or locations can't be. ReferenceUsed: the reference names another transfer.
        NotThere: the source has fewer; nothing is moved.
    """
    if units < 1 or source == target:
        raise ValueError(f"{units} units from {source} to {target}: move at least 1, between two locations")
    lock_against_shipments(product.pk)  # levels may not be there yet; units of no location have none
    causes = {way: f"moved:{reference}:{way}:{product.sku}" for way in ("from", "to")}
    if _moved_before(causes, units, source, target, reference):
        return False
    lock_levels(product)
    if source is None:
        refuse_beyond_rest(product, units)
    for location, left, way in ((source, units, "from"), (target, -units, "to")):
        change_level(product, location, -left)
        StockMovement.objects.create(
            product=product,
            kind=StockMovement.Kind.MOVED,
            quantity=0,
            shipped=left,
            location=location,
            cause=causes[way],
        )
    checkpoint("written", sku=product.sku)
    return True


def _moved_before(
    causes: dict[str, str],
    units: int,
    source: StockLocation | None,
    target: StockLocation | None,
    reference: str,
) -> bool:
    moved = {move.cause: move for move in StockMovement.objects.filter(cause__in=causes.values())}
    if not moved:
        return False
    left, came = moved[causes["from"]], moved[causes["to"]]
    if (left.shipped, left.location, came.location) != (units, source, target):
        raise ReferenceUsed(reference, f"{left.shipped} units from {left.location} to {came.location}")
    return True


def refuse_beyond_rest(product: Product, units: int) -> None:
    """Raise NotThere unless so many units are in the building beside those at locations.

    Levels are locked, or the product is: of two who take units of no location the second sees the first.
    """
    rest = _rest(product)
    if rest < units:
        raise NotThere(product.sku, "", units, rest)
