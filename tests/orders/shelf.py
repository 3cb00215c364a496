"""What is on the shelf, and how tests fill it."""

from __future__ import annotations

from uuid import uuid4

from django.db.models import Sum

from inventory import stock
from inventory.models import Level


def balance(sku: str, state: str) -> int:
    """Return the units of an item in a state, at all locations."""
    return int(Level.objects.filter(item__sku=sku).aggregate(units=Sum(state))["units"] or 0)


def left(sku: str = "mug") -> int:
    """Return the units that are for sale, negative where some were sold before they came in."""
    return balance(sku, "available")


def reserved(sku: str = "mug") -> int:
    """Return the units of live reservations."""
    return balance(sku, "reserved")


def receive(units: int, sku: str = "mug", **kwargs: str) -> None:
    """Bring units in."""
    stock.receive(sku, units, cause=f"test:{uuid4()}", **kwargs)


def lose(units: int, sku: str = "mug") -> None:
    """Take units off the shelf."""
    stock.adjust(sku, -units, cause=f"test:{uuid4()}")
