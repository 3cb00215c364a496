"""Where the units of products are, as the admin's pages about them list it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from inventory.admin_parts import Row
from inventory.models import StockLocation


@dataclass(frozen=True)
class Place:
    """What one number of a page is about: a product at a location, or where it has none.

    Attributes:
        product: the product. location: None for units of no location. units: that must be there.
    """

    product: Any
    location: StockLocation | None
    units: int

    @property
    def key(self) -> str:
        """A name for fields of it."""
        where = f"-{self.location.pk}" if self.location else ""
        return f"{self.product.pk}{where}"

    def as_row(self, request: HttpRequest, prefix: str, most: int) -> Row:
        """Return the line that asks for its number: at most `most`, in a field of this prefix."""
        cells = (self.product, self.product.name, self.location or "–", self.units)
        field = prefix + self.key
        return Row(cells, field, request.POST.get(field, ""), most)


def places_of(products: QuerySet[Any]) -> Iterator[Place]:
    """Return the places of each product, those without a location last; `in_building` is annotated."""
    for product in products:
        levels = list(product.levels.select_related("location"))
        for level in levels:
            yield Place(product, level.location, level.units)
        yield Place(product, None, product.in_building - sum(level.units for level in levels))
