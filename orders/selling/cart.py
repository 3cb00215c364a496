"""What a cart may be: the shop's own limits, before any I/O."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from inventory import InvalidLines, Line

MAX_QUANTITY: Final = 10_000
"""Units of one product in one order."""

MAX_LINES: Final = 100
"""Lines of one order, before duplicates are merged."""


def merge_lines(lines: Iterable[tuple[str, int]]) -> tuple[Line, ...]:
    """Return the lines of a cart in the order of their SKUs, duplicates added up.

    Two lines of one SKU decided apart would each find enough for itself. `lines` is consumed exactly once, so
    a generator is welcome.

    Raises:
        InvalidLines: no lines, too many, something that is no line, or too many units.

    Example:
        >>> merge_lines([Line("pen", 1), Line("mug", 2), Line("pen", 3)])
        (Line(sku='mug', quantity=2), Line(sku='pen', quantity=4))
    """
    merged: dict[str, int] = {}
    for sku, quantity in _some(lines):
        if not isinstance(sku, str):
            raise InvalidLines(f"a SKU is a str, not {sku!r}")
        _check_quantity(sku, quantity)
        if sku in merged:
            quantity += merged[sku]
            _check_quantity(sku, quantity)
        merged[sku] = quantity
    return tuple([Line(sku, merged[sku]) for sku in sorted(merged)])


def _check_quantity(sku: str, quantity: object) -> None:
    if isinstance(quantity, bool) or not isinstance(quantity, int):
        raise InvalidLines(f"{sku[:80]!r}: a quantity is a whole number of units, not {quantity!r:.80}")
    if not 1 <= quantity <= MAX_QUANTITY:
        shown = quantity if abs(quantity) < 10**12 else f"a number of {quantity.bit_length()} bits"
        raise InvalidLines(f"{sku[:80]!r}: a quantity is from 1 to {MAX_QUANTITY} in one order, not {shown}")


def _some(lines: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    # One more than allowed is enough to know, and an endless generator must not hang the checkout.
    try:
        some = [(sku, quantity) for sku, quantity in islice(lines, MAX_LINES + 1)]
    except (TypeError, ValueError):
        raise InvalidLines(f"lines are pairs of SKU and quantity, not {lines!r:.80}") from None
    if not some:
        raise InvalidLines("an order needs at least one line")
    if len(some) > MAX_LINES:
        raise InvalidLines(f"an order has at most {MAX_LINES} lines; split it")
    return some
