"""What the stock tells others."""

from __future__ import annotations

from django.dispatch import Signal

low_stock = Signal()
"""Sent once when no more than `low_stock_threshold` units of a product are available, after the commit.

Args:
    sender: `Product`.
    product: as it is by then.
    available: units that could be sold or reserved.
"""

back_in_stock = Signal()
"""Sent once when units of a product are available again after there were none, after the commit.

Only products with a `low_stock_threshold` are watched; 0 is enough.

Args:
    sender: `Product`.
    product: as it is by then.
    available: units that could be sold or reserved.
"""
