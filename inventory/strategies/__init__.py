"""Every way to sell, by name: a plain dict, so that adding one is a file and a line."""

from __future__ import annotations

from inventory.strategies.base import Sale, Strategy
from inventory.strategies.conditional_update import ConditionalUpdate
from inventory.strategies.lost_update import LostUpdate
from inventory.strategies.row_lock import RowLock

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy for strategy in (LostUpdate, RowLock, ConditionalUpdate)
}

__all__ = ["STRATEGIES", "Sale", "Strategy", "UnknownStrategy", "get_strategy"]


class UnknownStrategy(ValueError):
    """There is no strategy of that name."""


def get_strategy(name: str) -> Strategy:
    """Return the strategy called `name`, ready to sell.

    Raises:
        UnknownStrategy: naming those that there are.

    Example:
        >>> get_strategy("row_lock").sound
        True
    """
    try:
        return STRATEGIES[name]()
    except (KeyError, TypeError):
        known = ", ".join(STRATEGIES)
        raise UnknownStrategy(f"unknown strategy {name!r}; there are {known}") from None
