"""Strategies lead sales: what is locked, when the transaction begins, who commits for whom."""

from inventory.strategies.base import Sale, Strategy

__all__ = ["Sale", "Strategy"]
