"""Signals, sent after the commit."""

from __future__ import annotations

from django.dispatch import Signal

posted = Signal()
"""Stock has changed. Sent with `entries` (keys of `Entry`), `skus` and `using`: at most once.

What must not be missed reads the ledger, whose rows are written in the transaction of the change.
"""
