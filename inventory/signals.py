"""What the stock tells others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.dispatch import Signal


class RobustSignal(Signal):
    """Django's, whose `send_robust` outlives the failure of a receiver without a name, such as a partial.

    Django 5.2 to 6.1 log a failure with the receiver's `__qualname__`, and raise where there is none.
    """

    def _log_robust_failure(self, receiver: Callable[..., Any], err: Exception) -> None:
        named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
        super()._log_robust_failure(named, err)  # type: ignore[misc]


low_stock = RobustSignal()
"""Sent once when no more than `low_stock_threshold` units of a product are available, after the commit.

Args:
    sender: `Product`.
    product: as it is by then.
    available: units that could be sold or reserved.
"""

back_in_stock = RobustSignal()
"""Sent once when units of a product are available again after there were none, after the commit.

Only products with a `low_stock_threshold` are watched; 0 is enough.

Args:
    sender: `Product`.
    product: as it is by then.
    available: units that could be sold or reserved.
"""
