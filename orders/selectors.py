"""What the pages and the JSON interface read, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import F, OuterRef, Q, QuerySet, Subquery, Sum

from inventory.models import Level
from orders.models import Order, OrderItem, Product
from orders.selling.reservations import Reserved
from orders.selling.writing import moment

PAGE = 100

_LEVELS = Level.objects.filter(item=OuterRef("stock")).order_by().values("item")
ON_HAND = Subquery(_LEVELS.annotate(units=Sum(F("available") + F("reserved"))).values("units"))
"""Units that aren't sold, summed up for the rows of the page alone."""


def products_for_sale(after: str = "", limit: int = PAGE) -> QuerySet[Any]:
    """Return up to `limit` products with their stock, in the order of their SKUs.

    With a replica the numbers may be some moments old; only the checkout decides.

    Args:
        after: the last SKU of the page before; empty for the first page.
    """
    # Filtered by SKU rather than cut by offset: a page stays the same while products come and go before it.
    products = Product.objects.using(settings.PRODUCTS_DATABASE).filter(sku__gt=after, active=True)
    return products.select_related("stock").annotate(on_hand=ON_HAND).order_by("sku")[:limit]


def page_of_orders(scope: str | None, after: tuple[datetime, UUID] | None, limit: int) -> list[Order]:
    """Return up to `limit` orders, the newest first.

    Args:
        scope: of this caller only; None: of all.
        after: date and id of the last order on the page before; None for the first page. Orders placed
            meanwhile change no later page.
    """
    orders = Order.objects.all() if scope is None else Order.objects.filter(scope=scope)
    if after is not None:
        created_at, order_id = after
        same = Q(created_at__lt=created_at) | Q(pk__lt=order_id)
        orders = orders.filter(same, created_at__lte=created_at)
    return list(orders.order_by("-created_at", "-pk")[:limit])


def product_data(product: Any) -> dict[str, Any]:
    """Return a product for sale as JSON data; money is a string: a JSON number would be read as a float."""
    return {
        "sku": product.sku,
        "name": product.name,
        "price": str(product.price),
        "currency": product.currency,
        "on_hand": int(product.on_hand or 0),
        "available": product.available,
    }


def reservation_data(made: Reserved) -> dict[str, Any]:
    """Return a reservation as JSON data."""
    return {
        "reservation": str(made.id),
        "state": made.state,
        "expires_at": moment(made.expires_at),
        "total": str(made.total),
        "currency": made.currency,
        "lines": [
            {"sku": line.sku, "quantity": line.quantity, "unit_price": made.prices[line.sku]}
            for line in made.lines
        ],
    }


def order_data(order: Order) -> dict[str, Any]:
    """Return an order and its lines as JSON data."""
    return orders_data([order])[0]


def orders_data(orders: Sequence[Order]) -> list[dict[str, Any]]:
    """Return orders and their lines as JSON data, in one query for all lines."""
    lines: dict[UUID, list[dict[str, Any]]] = {order.pk: [] for order in orders}
    items = OrderItem.objects.filter(order__in=lines).order_by("product__sku").select_related("product")
    for item in items:
        lines[item.order_id].append(
            {
                "sku": item.product.sku,
                "name": item.name,
                "quantity": item.quantity,
                "unit_price": str(item.unit_price),
                "shipped": item.shipped,
            }
        )
    return [_data(order, lines[order.pk]) for order in orders]


def _data(order: Order, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `orders.selling.writing` answers for a new order, as it is now."""
    return {
        "id": str(order.pk),
        "number": str(order.number),
        "state": order.state,
        "total": str(order.total),
        "currency": order.currency,
        "strategy": order.strategy,
        "customer": order.customer,
        "created_at": moment(order.created_at),
        "pay_by": moment(order.pay_by),
        "lines": lines,
    }
