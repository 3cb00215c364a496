"""Refuse sold-out products from memory: a crowd that comes too late costs no server anything.

Each process remembers what the database has refused, for `settings.SOLD_OUT_MEMORY` seconds from the moment
*before* it was asked. So the setting bounds for how long stock that is back can be refused. Every sale is
decided by the database as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Final

from django.conf import settings

from inventory import Line, Shortage, SoldOut

MOST: Final = 1000
"""Products that are remembered."""

_left: dict[str, tuple[int, float]] = {}


def refuse(cart: Sequence[Line]) -> None:
    """Refuse a cart that is known to be short.

    Raises:
        SoldOut: with what was left when the database was asked.
    """
    if not _left:
        return
    now, short = monotonic(), []
    for sku, quantity in cart:
        units, until = _left.get(sku, (quantity, 0.0))
        if units < quantity and now < until:
            short.append(Shortage(sku, quantity, units))
    if short:
        raise SoldOut(short)


def remember(shortages: Iterable[Shortage], asked: float) -> None:
    """Remember a refusal of the database, which was asked at `asked` (`monotonic`)."""
    kept = settings.SOLD_OUT_MEMORY
    if kept > 0:
        if len(_left) > MOST:
            _left.clear()
        _left.update({short.sku: (short.available, asked + kept) for short in shortages})


def forget(skus: Iterable[str] | None = None) -> None:
    """Forget what is left of these products; None: of all."""
    for sku in list(_left) if skus is None else skus:
        _left.pop(sku, None)


def stock_changed(sender: object, skus: Iterable[str], **_: object) -> None:
    """Forget products whose stock has changed in this process; others hear of it when their time is over."""
    forget(skus)
