"""Clearing the lab: its orders, items, movements and products, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from inventory.lab import clearing
from inventory.models import LAB_PREFIX
from orders.models import Order, OrderItem


def clear(skus: Sequence[str]) -> None:
    """Delete the lab's products `skus` and every order of them, in one transaction.

    Raises:
        NotALabProduct: a SKU isn't the lab's.
        ProtectedError: an order of the lab's product also holds a real one; nothing is deleted.
    """
    with clearing(skus):
        Order.objects.filter(pk__in=_lab_orders(skus).values("pk")).delete()


def _lab_orders(skus: Sequence[str]) -> QuerySet[Order]:
    real_items = OrderItem.objects.exclude(product__sku__startswith=LAB_PREFIX)
    return Order.objects.filter(items__product__sku__in=skus).exclude(items__in=real_items)
