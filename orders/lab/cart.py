"""What a buyer wants, and the ways in which it can end without an order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID, uuid4

SKU_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MOST_UNITS: Final = 10_000

T = TypeVar("T")


class InvalidCart(ValueError):
    """What was asked for can't be an order."""


@dataclass(frozen=True)
class Cart:
    """What one buyer wants, all or nothing.

    Args:
        wanted: units by SKU, in the order of the basket.
        id: of the order that it becomes, chosen beforehand: a ledger beside the database asks by it whether
            the order was made.

    Raises:
        InvalidCart: naming the value and the reason.

    Example:
        >>> Cart({"pen": 1, "mug": 2}).skus
        ['mug', 'pen']
    """

    wanted: Mapping[str, int]
    id: UUID = field(default_factory=uuid4)

    def __post_init__(self) -> None:
        if not isinstance(self.wanted, Mapping) or not self.wanted:
            raise InvalidCart(f"cart {self.wanted!r}: must be a mapping of SKUs to units, e.g. {{'mug': 1}}")
        for sku, units in self.wanted.items():
            if not isinstance(sku, str) or not re.fullmatch(SKU_PATTERN, sku):
                raise InvalidCart(f"sku {sku!r}: must be 1 to 64 letters, digits, '.', '_' or '-'")
            if type(units) is not int or not 1 <= units <= MOST_UNITS:
                raise InvalidCart(f"units of {sku}: must be a whole number from 1 to {MOST_UNITS}")

    @property
    def skus(self) -> list[str]:
        """The SKUs in one order for all carts, whatever the order of the basket."""
        return sorted(self.wanted)


@dataclass(frozen=True)
class Shortage:
    """A line that can't be served: `requested` units were asked for, `available` are there."""

    sku: str
    requested: int
    available: int


class SoldOut(Exception):
    """There isn't enough: a final answer. `shortages` has every short line."""

    def __init__(self, shortages: Iterable[Shortage]) -> None:
        self.shortages = tuple(shortages)
        said = ", ".join(f"{s.sku} ({s.available} of {s.requested})" for s in self.shortages)
        super().__init__(f"not enough stock: {said or 'the CHECK of the table refused'}")


class Busy(Exception):
    """The stock was busy for too long: try again after `retry_after` seconds. It never means sold out."""

    def __init__(self, reason: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(f"{reason}; try again in {retry_after:g} s")


class UnknownProduct(Exception):
    """There is no such product. `skus` has every one that is unknown."""

    def __init__(self, skus: Iterable[str]) -> None:
        self.skus = tuple(skus)
        super().__init__(f"unknown product: {', '.join(self.skus)}")


def shortages(wanted: Mapping[str, int], left: Mapping[str, int]) -> list[Shortage]:
    """Return the lines of which there is less than is wanted."""
    return [Shortage(sku, n, max(0, left[sku])) for sku, n in sorted(wanted.items()) if left[sku] < n]


def required(skus: Iterable[str], found: Mapping[str, T]) -> dict[str, T]:
    """Return those of `found` that `skus` name; raise UnknownProduct, naming all, if any is missing."""
    wanted = list(skus)
    if missing := [sku for sku in wanted if sku not in found]:
        raise UnknownProduct(missing)
    return {sku: found[sku] for sku in wanted}
