"""Why the shop refuses an order, whatever the stock: final answers all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal


class Refused(Exception):
    """The base of the shop's refusals. Nothing was written."""

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by attributes: worker processes hand errors on."""
        return _blank, (type(self),), {**vars(self), "args": self.args}


def _blank(error: type[Refused]) -> Refused:
    return error.__new__(error)


class LimitReached(Refused):
    """One customer may not have so many of a product.

    Args:
        sku: the limited product. limit: units that one customer may have in all.
        bought: units that this one has already, reserved ones included; 0 for an anonymous customer.
        requested: units of this order.
    """

    def __init__(self, sku: str, limit: int, bought: int, requested: int) -> None:
        self.sku, self.limit, self.bought, self.requested = sku, limit, bought, requested
        super().__init__(
            f"{sku}: {requested} requested, {bought} bought or reserved, and one customer may have {limit}"
        )


class NotForSale(Refused):
    """Products that can't be ordered at present. `skus` has every one of the cart."""

    def __init__(self, skus: Iterable[str]) -> None:
        self.skus = tuple(skus)
        super().__init__(f"not for sale: {', '.join(self.skus)}; take them out of the order")


class MixedCurrencies(Refused):
    """The cart's prices are in several currencies, and an order has one total.

    Args:
        currencies: by SKU, of the whole cart.
    """

    def __init__(self, currencies: Mapping[str, str]) -> None:
        self.currencies = dict(currencies)
        named = ", ".join(f"{sku} in {currency}" for sku, currency in self.currencies.items())
        super().__init__(f"one order can't be paid in several currencies: {named}; order them apart")


class PriceChanged(Refused):
    """The order would cost something else than the customer expects.

    Args:
        expected, total: what was agreed, and what it costs now, each with its currency.
    """

    def __init__(self, expected: tuple[Decimal, str], total: tuple[Decimal, str]) -> None:
        self.expected, self.total = expected, total
        super().__init__(
            f"expected {expected[0]} {expected[1]}, and it costs {total[0]} {total[1]}".replace("  ", " ")
        )


class RepeatedKey(Refused):
    """The client's key has an answer already, and that answer counts.

    Args:
        scope, key: which key.
    """

    def __init__(self, scope: str, key: str) -> None:
        self.scope, self.key = scope, key
        super().__init__(f"the idempotency key {key!r} was used before")
