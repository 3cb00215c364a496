"""Noticing that stock has become low, or is back: once per crossing, in your transaction."""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.db.models import Q, QuerySet

from inventory.clock import Now
from inventory.ledger import for_update, prepare_to_write

BATCH: Final = 500
"""Rows that one call marks each way; more are left to the next."""


def crossed(rows: QuerySet[Any], condition: Q, mark: str) -> tuple[list[Any], list[Any]]:
    """Mark the rows that `condition` has become true of, and unmark those that it no longer is.

    Each crossing is returned by one call only, however many run at once. Marks are written in the transaction
    that is open, so what you write in it, such as a row of an outbox, is written once for each crossing. Call
    it from a timer for all rows, or for a few SKUs when `inventory.signals.posted` names them.

    Args:
        rows: of your model, which has a StockField. condition: such as
            `Q(stock__available__lte=F("low_at"))`.
        mark: your model's field, a DateTimeField with null=True: since when the condition is true.

    Returns:
        The rows that it has become true of, and those that it no longer is.

    Example:
        >>> low = Q(stock__available__lte=3)  # doctest: +SKIP
        >>> begun, ended = crossed(Book.objects.all(), low, "low_since")  # doctest: +SKIP
    """
    with transaction.atomic(using=rows.db):
        prepare_to_write(rows.db)
        begun = _locked(rows.filter(condition, **{mark: None}))
        ended = _locked(rows.filter(~condition, **{f"{mark}__isnull": False}))
        for found, since in ((begun, Now()), (ended, None)):
            rows.filter(pk__in=[row.pk for row in found]).update(**{mark: since})
    return begun, ended


def _locked(rows: QuerySet[Any]) -> list[Any]:
    """Return rows locked, as they are now; those that another call has locked are left to it."""
    return list(for_update(rows.order_by("pk"), skip_locked=True, no_key=True)[:BATCH])
