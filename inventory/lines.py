"""What a caller asks for: SKUs and quantities, checked before any I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Final, NamedTuple

from inventory.exceptions import InvalidLines

MAX_QUANTITY: Final = 1_000_000_000
"""Units of one line. Balances are 64-bit, so that sums of lines never overflow."""

MAX_LINES: Final = 1000
MAX_SKU: Final = 200
MAX_CAUSE: Final = 200

MAX_SECONDS: Final = 7 * 24 * 3600
"""Seconds of a reservation: stock that can't be bought for longer isn't reserved, it is gone."""


class Line(NamedTuple):
    """So many units of one item."""

    sku: str
    quantity: int


Lines = Mapping[str, int] | Iterable[Line | tuple[str, int]]
"""What the verbs take: `{"mug": 2, "pen": 1}`, or pairs."""


def read_lines(lines: Lines | str, quantity: int | None = None) -> tuple[Line, ...]:
    """Return the lines of a call in order of their SKUs.

    Args:
        lines: a mapping of SKU to quantity, an iterable of pairs, or one SKU.
        quantity: units, where `lines` is one SKU.

    Raises:
        InvalidLines: a SKU or quantity that can't be one, a SKU that is there twice, no line at all.

    Example:
        >>> read_lines({"pen": 1, "mug": 2})
        (Line(sku='mug', quantity=2), Line(sku='pen', quantity=1))
    """
    if isinstance(lines, str):
        pairs: list[tuple[str, int]] = [(lines, quantity)]  # type: ignore[list-item]  # checked below
    elif quantity is not None:
        raise InvalidLines(f"give a quantity beside one SKU only, not beside {lines!r}")
    else:
        pairs = _pairs(lines)
    if not pairs:
        raise InvalidLines("no lines: name at least one SKU with its quantity")
    if len(pairs) > MAX_LINES:
        raise InvalidLines(f"{len(pairs)} lines are too many for one call; {MAX_LINES} is the limit")
    checked = sorted(Line(check_sku(sku), check_quantity(sku, units)) for sku, units in pairs)
    for line, following in pairwise(checked):
        if line.sku == following.sku:
            raise InvalidLines(f"{line.sku!r} is there twice; add its quantities up into one line")
    return tuple(checked)


def _pairs(lines: object) -> list[tuple[str, int]]:
    try:
        given = list(lines.items() if isinstance(lines, Mapping) else lines)  # type: ignore[call-overload]
        return [(sku, units) for sku, units in given]
    except (TypeError, ValueError):
        raise InvalidLines(
            f"lines are a dict of SKU to quantity, such as {{'mug': 2}}, or pairs, not {lines!r}"
        ) from None


def check_sku(sku: object) -> str:
    """Return `sku`, or raise InvalidLines where no item can have it."""
    if not isinstance(sku, str):
        raise InvalidLines(f"a SKU is a str, not {sku!r}")
    if not sku or len(sku) > MAX_SKU:
        raise InvalidLines(f"a SKU has 1 to {MAX_SKU} characters, not {len(sku)}: {sku[:20]!r}")
    if not sku.isprintable() or sku != sku.strip():
        raise InvalidLines(f"a SKU has no control characters and no spaces around it: {sku!r}")
    return sku


def check_quantity(sku: object, quantity: object, least: int = 1) -> int:
    """Return `quantity`, or raise InvalidLines where it isn't a whole number from `least` up."""
    if isinstance(quantity, bool) or not isinstance(quantity, int):
        raise InvalidLines(f"{sku}: a quantity is a whole number of units, not {quantity!r}")
    if not least <= quantity <= MAX_QUANTITY:
        raise InvalidLines(f"{sku}: a quantity is from {least} to {MAX_QUANTITY}, not {quantity}")
    return quantity


def check_cause(cause: object) -> str:
    """Return `cause`, or raise InvalidLines where it names nothing."""
    if not isinstance(cause, str) or not cause.strip() or len(cause) > MAX_CAUSE or "\0" in cause:
        raise InvalidLines(
            f"a cause is a text of 1 to {MAX_CAUSE} characters that names this change, "
            f"such as 'order-17', not {cause!r}"
        )
    return cause


def check_seconds(seconds: object) -> float:
    """Return how long a reservation lasts, in seconds, given as a number or a timedelta."""
    value = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise InvalidLines(
            f"a reservation lasts more than 0 and at most {MAX_SECONDS} seconds, not {seconds!r}"
        )
    return float(value)


def fingerprint(kind: int, lines: Iterable[tuple[object, ...]]) -> int:
    """Return 64 bits that tell one change of stock from another with the same cause."""
    text = repr((int(kind), sorted(map(tuple, lines)))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)
