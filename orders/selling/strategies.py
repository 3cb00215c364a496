"""The strategies that this project has set up: the aliases of INVENTORY."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from django.conf import settings
from django.utils.translation import gettext

from inventory import Stock
from inventory.conf import aliases


class UnknownStrategy(ValueError):
    """No strategy of this name is set up."""


@cache
def _stock(name: str) -> Stock:
    return Stock(name)


def seller(name: str | None) -> tuple[str, Stock]:
    """Return a strategy's name and the stock that sells by it; None: the setting CHECKOUT_STRATEGY.

    Raises:
        UnknownStrategy: INVENTORY has no such alias.
    """
    name = str(settings.CHECKOUT_STRATEGY) if name is None else name
    if name not in settings.INVENTORY:
        raise UnknownStrategy(f"strategy {name!r}: unknown; known are {', '.join(names())}")
    return name, _stock(name)


def names() -> list[str]:
    """Return the strategies by which this project can sell."""
    return [name for name in aliases() if name != "default"]


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy that a client may name, and the idea behind it, in the reader's language."""

    name: str
    idea: str


def choices() -> list[StrategyChoice]:
    """Return the strategies that a client may name: with DEBUG on all that are set up, else none."""
    return [StrategyChoice(name, _idea(_stock(name))) for name in names()] if settings.DEBUG else []


def _idea(stock: Stock) -> str:
    text = (type(stock.strategy).__doc__ or "").partition("Interleaving:")[0].removeprefix("Idea:")
    return gettext(" ".join(text.split()))
