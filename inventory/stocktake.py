"""Counting what is in the building, and correcting the stock by the difference.

In the building are the units for sale and those that are sold and not shipped yet. The ledger alone says how
many that must be: what came in, corrections, less what left. Sales under way change neither side.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from django.db import transaction
from django.db.models import Case, F, OuterRef, Q, QuerySet, Subquery, Sum, When
from django.db.models.functions import Coalesce

from inventory.checkpoints import checkpoint
from inventory.domain import MAX_UNITS, PickledWhole, ReferenceUsed
from inventory.locations import lock_levels
from inventory.models import Product, StockLevel, StockLocation, StockMovement, Stocktake
from inventory.segments import fold
from inventory.services import change_stock

Kind = StockMovement.Kind

REFERENCE: Final = re.compile(r"[A-Za-z0-9._-]{1,60}\Z")
MAX_COUNT: Final = MAX_UNITS

_CHANGE = Case(When(kind__in=(Kind.RECEIVED, Kind.ADJUSTED), then=F("quantity")), default=0) - F("shipped")
_MOVED = StockMovement.objects.filter(~Q(kind=Kind.SOLD), product=OuterRef("pk")).order_by().values("product")
_IN_BUILDING = Coalesce(Subquery(_MOVED.annotate(total=Sum(_CHANGE)).values("total")), 0)
_LEVELS = StockLevel.objects.filter(product=OuterRef("pk")).order_by().values("product")
_AT_LOCATIONS = Coalesce(Subquery(_LEVELS.annotate(total=Sum("units")).values("total")), 0)


class CountTooLow(PickledWhole, ValueError):
    """Fewer units were counted than are sold and not shipped, or reserved.

    Args:
        sku: the product. counted: units that were found. needed: units that must be found at least, so
            that there are enough in all for what is sold or reserved.
    """

    def __init__(self, sku: str, counted: int, needed: int) -> None:
        self.sku, self.counted, self.needed = sku, counted, needed
        super().__init__(
            f"{sku}: {counted} counted, and at least {needed} must be there for what is sold but not "
            "shipped, or reserved; count again, or cancel orders and release reservations first"
        )


def with_count(products: QuerySet[Product]) -> QuerySet[Any]:
    """Annotate `in_building`: the units that a physical count must find."""
    return products.annotate(in_building=_IN_BUILDING)


def with_rest(products: QuerySet[Product]) -> QuerySet[Any]:
    """Annotate `at_no_location`: the units in the building that are at no location.

    One statement, so both numbers are of one moment: a shipment between two would be counted once only.
    """
    return products.annotate(at_no_location=_IN_BUILDING - _AT_LOCATIONS)


@transaction.atomic
def take_stock(
    product: Product,
    counted: int,
    *,
    reason: str,
    reference: str,
    location: StockLocation | None = None,
    staff: Any = None,
    record: Callable[[Stocktake], object] | None = None,
) -> Stocktake:
    """Enter a count, and correct the stock by what it differs from the shop's own.

    Args:
        product: what was counted.
        counted: units in the building, those of orders that aren't shipped yet included.
        reason: why it was counted; kept with it.
        reference: names this count, 1 to 60 letters, digits, '.', '_' or '-'. The same one again changes
            nothing, so a form that is sent twice counts once; with another number it is refused.
        location: where it was counted; None: everything that is at no location, in a shop without them all.
        staff: the user who counted, if one did.
        record: writes what belongs to the count, in its transaction; not called for a repetition.

    Returns:
        The count, with what was expected.

    Raises:
        ValueError: counted, reason or reference can't be. ReferenceUsed: it names another count.
        CountTooLow: fewer than are sold or reserved: nothing is changed.
    """
    _check(counted, reason, reference)
    fold([product])  # locks the product's row: of two counts the second sees the first
    checkpoint("locked", sku=product.sku)
    if made := Stocktake.objects.filter(product=product, location=location, reference=reference).first():
        if made.counted != counted:
            raise ReferenceUsed(reference, f"a count of {made.counted}")
        return made
    levels = lock_levels(product)  # before the count is read: a shipment that is under way ends first
    row = with_rest(Product.objects.filter(pk=product.pk)).get()
    expected = row.at_no_location if location is None else levels.get(location.pk, 0)
    difference = counted - expected
    if difference < 0 and row.available + difference < 0:
        raise CountTooLow(row.sku, counted, expected - row.available)
    checkpoint("decided", sku=product.sku)
    if difference:
        where = f":{location.code}" if location else ""
        cause = f"stocktake:{reference}:{row.sku}{where}"
        change_stock(product, Kind.ADJUSTED, difference, cause, location=location)
    made = Stocktake.objects.create(
        product=product,
        counted=counted,
        expected=expected,
        location=location,
        reason=reason,
        reference=reference,
        staff=staff,
    )
    if record is not None:
        record(made)
    return made


def _check(counted: int, reason: str, reference: str) -> None:
    if isinstance(counted, bool) or not isinstance(counted, int) or not 0 <= counted <= MAX_COUNT:
        raise ValueError(f"counted {counted!r}: must be a whole number, 0 to {MAX_COUNT}")
    if not reason.strip() or len(reason) > 200:
        raise ValueError(f"reason {reason[:40]!r}: must have 1 to 200 characters")
    if not REFERENCE.match(reference):
        raise ValueError(f"reference {reference[:80]!r}: must be 1 to 60 letters, digits, '.', '_' or '-'")
