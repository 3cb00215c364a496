"""Refusals that are given again for a moment: a crowd that comes too late then costs neither server.

Off by default: each buyer hears of the stock as it is. With `SOLD_OUT_KEPT` a process that has just told one
buyer that a cart is sold out tells the next with the same cart so, without asking. For so many seconds after
that a restock may go unseen. Nobody is sold more by it: who isn't refused here is sold to as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from django.conf import settings

from inventory.domain import Line, Shortage, SoldOut

MOST: Final = 1000
"""Different carts that are remembered; beyond that all are forgotten, which costs a question each."""

Cart = tuple[Line, ...]

_kept: dict[Cart, tuple[float, tuple[Shortage, ...]]] = {}


@contextmanager
def remembered(cart: Cart) -> Iterator[None]:
    """Refuse `cart` if it was refused within `settings.SOLD_OUT_KEPT` seconds; keep a refusal of the body.

    They count from when the first buyer was told. Counted from the look at the stock they would often be over
    by then: in a crowd, and there alone this is of use, a buyer waits for longer than they last.

    Raises:
        SoldOut: the body's, or the one that is remembered.

    Example:
        >>> with remembered(cart):  # doctest: +SKIP
        ...     sell(cart)
    """
    if not settings.SOLD_OUT_KEPT:
        yield
        return
    until, shortages = _kept.get(cart, (0.0, ()))
    if monotonic() < until:
        raise SoldOut(shortages, promised=False)
    try:
        yield
    except SoldOut as refused:
        _keep(cart, monotonic() + settings.SOLD_OUT_KEPT, refused)
        raise


def _keep(cart: Cart, until: float, refused: SoldOut) -> None:
    if len(_kept) >= MOST:
        _kept.clear()
    _kept[cart] = (until, refused.shortages)
