"""The words of a sale: lines, shortages, and the ways in which it can end without an order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

SKU_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
"""Nothing that would need quoting in the name of a lock, a Redis key or an address."""

MAX_QUANTITY: Final = 10_000
"""Units of one product in one order."""

MAX_UNITS: Final = 1_000_000_000
"""Units on hand, and units that may be sold beyond them: their sum is still an integer of PostgreSQL."""

MAX_LINES: Final = 100
"""Lines of one order, before duplicates are merged: each is a row to lock."""

_sku = re.compile(SKU_PATTERN)


class PickledWhole(Exception):
    """Pickled by its attributes, not by a call with its message: it survives the way to another process."""

    def __reduce__(self) -> tuple[object, ...]:
        return _blank, (type(self),), {**vars(self), "args": self.args}


def _blank(error: type[PickledWhole]) -> PickledWhole:
    return error.__new__(error)


class InvalidCart(PickledWhole, ValueError):
    """What was asked for can't be an order.

    Attributes:
        field: `lines`, `sku` or `quantity`.
        value: what was given.
        reason: why it can't be, and what would.
    """

    def __init__(self, field: str, value: object, reason: str) -> None:
        self.field = field
        self.value = value
        self.reason = reason
        super().__init__(f"{field} {_shortened(value)}: {reason}")


def _shortened(value: object, limit: int = 80) -> str:
    # repr() of an int beyond 4300 digits raises: the message must survive what it complains about.
    if isinstance(value, int) and abs(value) > 10**limit:
        return f"<int of {value.bit_length()} bits>"
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


class ReferenceUsed(PickledWhole, ValueError):
    """The reference stands for something else already; nothing was done.

    Args:
        reference: as it was given. known: what it stands for.
    """

    def __init__(self, reference: str, known: str) -> None:
        self.reference, self.known = reference, known
        super().__init__(
            f"reference {reference!r}: stands for {known} already; nothing was done, choose another reference"
        )


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """So many units of one product.

    Args:
        sku: the product's number, 1 to 64 letters, digits, dots, hyphens and underscores.
        quantity: units, 1 to `MAX_QUANTITY`.

    Raises:
        InvalidCart: naming the field, the value and the reason.

    Example:
        >>> Line("mug", 2)
        Line(sku='mug', quantity=2)
    """

    sku: str
    quantity: int

    def __post_init__(self) -> None:
        if not isinstance(self.sku, str) or not _sku.match(self.sku):
            raise InvalidCart(
                "sku", self.sku, "must be 1 to 64 letters, digits, '.', '_' or '-', e.g. 'mug-01'"
            )
        if isinstance(self.quantity, bool) or not isinstance(self.quantity, int):
            raise InvalidCart("quantity", self.quantity, "must be a whole number, e.g. 1")
        if not 1 <= self.quantity <= MAX_QUANTITY:
            raise InvalidCart("quantity", self.quantity, f"must be between 1 and {MAX_QUANTITY}")


def merge_lines(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines of a cart with duplicates added up, in the order of their SKUs.

    Two lines of one SKU checked apart would each find enough for itself; and carts that lock in the order of
    the basket deadlock. `lines` is consumed exactly once, so a generator is welcome.

    Raises:
        InvalidCart: no lines, too many, something that is no Line, or too many units in the sum.

    Example:
        >>> merge_lines([Line("pen", 1), Line("mug", 2), Line("pen", 3)])
        (Line(sku='mug', quantity=2), Line(sku='pen', quantity=4))
    """
    return tuple(sorted(merge_in_order(lines)))


def merge_in_order(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines with duplicates added up, in the order of the basket.

    Raises:
        InvalidCart: as `merge_lines`.
    """
    merged: dict[str, Line] = {}
    for line in _some(lines):
        before = merged.get(line.sku)
        merged[line.sku] = Line(line.sku, before.quantity + line.quantity) if before else line
    return tuple(merged.values())


def _some(lines: Iterable[Line]) -> list[Line]:
    # One more than allowed is enough to know, and an endless generator must not hang the checkout.
    if not isinstance(lines, Iterable):
        raise InvalidCart("lines", lines, "must be a list of Line(sku, quantity)")
    some = list(islice(lines, MAX_LINES + 1))
    if not some:
        raise InvalidCart("lines", some, "an order needs at least one line")
    if len(some) > MAX_LINES:
        raise InvalidCart(
            "lines", f"{len(some)} or more", f"an order has at most {MAX_LINES} lines; split it"
        )
    for line in some:
        if not isinstance(line, Line):
            raise InvalidCart("lines", line, "each line must be a Line(sku, quantity)")
    return some


@dataclass(frozen=True, slots=True)
class Shortage:
    """A line that can't be served: `requested` units of `sku` were asked for, `available` are there."""

    sku: str
    requested: int
    available: int


class SoldOut(PickledWhole):
    """There isn't enough: a final answer.

    Args:
        shortages: every line that is short.
        promised: whether some of the missing units are kept for baskets, or that isn't known; their time may
            have run out. False only where somebody has looked.
    """

    def __init__(self, shortages: Iterable[Shortage], promised: bool = True) -> None:
        self.shortages = tuple(shortages)
        self.promised = promised
        wanted = ", ".join(f"{s.sku} ({s.available} of {s.requested})" for s in self.shortages)
        super().__init__(f"not enough stock: {wanted}")


class LimitReached(PickledWhole):
    """One customer may not have so many of a product: a final answer, and no matter of the stock.

    Args:
        sku: the limited product.
        limit: units that one customer may have in all.
        bought: units that this one has already, reserved ones included; 0 where nobody said who it is.
        requested: units of this order.
    """

    def __init__(self, sku: str, limit: int, bought: int, requested: int) -> None:
        self.sku, self.limit, self.bought, self.requested = sku, limit, bought, requested
        super().__init__(
            f"{sku}: {requested} requested, {bought} bought or reserved, and one customer may have {limit}"
        )


class Busy(PickledWhole):
    """The stock was busy for too long: try again. It never means sold out.

    Args:
        reason: who waited for what, for how long.
        retry_after: seconds after which another try makes sense.
    """

    def __init__(self, reason: str, retry_after: float = 1.0) -> None:
        self.reason = reason
        self.retry_after = retry_after
        super().__init__(f"{reason}; try again in {retry_after:g} s")


class NotForSale(PickledWhole):
    """Products that nobody can order at present. `skus` has every one of the cart."""

    def __init__(self, skus: Iterable[str]) -> None:
        self.skus = tuple(skus)
        super().__init__(f"not for sale: {', '.join(self.skus)}; take them out of the order")


class MixedCurrencies(PickledWhole):
    """The cart's prices are in several currencies, and an order has one total.

    Args:
        currencies: by SKU, of the whole cart.
    """

    def __init__(self, currencies: Mapping[str, str]) -> None:
        self.currencies = dict(currencies)
        named = ", ".join(f"{sku} in {currency}" for sku, currency in self.currencies.items())
        super().__init__(f"one order can't be paid in several currencies: {named}; order them apart")


class UnknownProduct(PickledWhole):
    """There is no such product. `skus` has every one that is unknown."""

    def __init__(self, skus: Iterable[str]) -> None:
        self.skus = tuple(skus)
        super().__init__(f"unknown product: {', '.join(self.skus)}")
