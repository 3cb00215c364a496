"""How finely a currency is counted and written, by Stripe's lists: https://docs.stripe.com/currencies."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

WITHOUT_DECIMALS: Final = frozenset([
    "BIF", "CLP", "DJF", "GNF", "JPY", "KMF", "KRW", "MGA", "PYG", "RWF", "VND", "VUV", "XAF", "XOF",
    "XPF",
])  # fmt: skip
WITH_DECIMALS_THAT_ARE_ZERO: Final = frozenset(["ISK", "UGX"])
"""Counted in whole units and written in hundredths, for the sake of what was written before."""
WITH_THREE_DECIMALS: Final = frozenset(["BHD", "JOD", "KWD", "OMR", "TND"])


def is_whole(currency: str) -> bool:
    """Return whether a currency (ISO 4217, three capital letters) is counted in whole units."""
    return currency in WITHOUT_DECIMALS or currency in WITH_DECIMALS_THAT_ARE_ZERO


def decimals(currency: str) -> int:
    """Return with how many decimals amounts of a currency are written (ISO 4217, three capital letters)."""
    if currency in WITHOUT_DECIMALS:
        return 0
    return 3 if currency in WITH_THREE_DECIMALS else 2


def written(amount: Decimal, currency: str) -> str:
    """Return an amount as people read it: with its currency's decimals, or all of a finer one's.

    Example:
        >>> written(Decimal("150.00"), "JPY"), written(Decimal("1.50"), "KWD")
        ('150', '1.500')
    """
    exact = amount.quantize(Decimal(1).scaleb(0 if is_whole(currency) else -decimals(currency)))
    return str(exact if exact == amount else amount)


def smallest_units(amount: Decimal, currency: str) -> Decimal:
    """Return an amount in the smallest units of its currency, as providers of payments write it.

    Args:
        amount: such as a price.
        currency: as for `decimals`.

    Returns:
        A whole number, unless the amount is finer than its currency, which can't be paid.

    Example:
        >>> smallest_units(Decimal("9.90"), "EUR"), smallest_units(Decimal("9.90"), "JPY")
        (Decimal('990'), Decimal('9.90'))
    """
    return amount.scaleb(decimals(currency))
