"""What the HTTP surface reads, as plain data: services write, selectors read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet

from inventory.models import LAB_PREFIX, Product
from inventory.reservations import Reserved
from inventory.segments import in_all
from inventory.strategies import STRATEGIES
from orders.models import Order, OrderItem
from orders.order_writer import moment, order_body
from orders.race.explain import explanation

PAGE = 100


def products_for_sale(after: str = "", limit: int = PAGE) -> QuerySet[Any]:
    """Return up to `limit` products in the order of their SKUs, without those of the oversell lab.

    Each has `on_hand_in_all` and `available_in_all`, which count the units in segments. They are for showing:
    with a replica they may be some moments old, and only the checkout decides.

    Args:
        after: the last SKU of the page before; empty for the first page.
    """
    # Filtered by SKU rather than cut by offset: a page stays the same while products come and go before it.
    products = Product.objects.using(settings.PRODUCTS_DATABASE).filter(sku__gt=after, active=True)
    products = products.exclude(sku__startswith=LAB_PREFIX)
    return in_all(products).order_by("sku")[:limit]


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
        "on_hand": product.on_hand_in_all,
        "available": product.available_in_all,
    }


def reservation_data(made: Reserved) -> dict[str, Any]:
    """Return a reservation as JSON data."""
    return {
        "reservation": str(made.basket),
        "state": made.state,
        "expires_at": moment(made.expires_at),
        "lines": [{"sku": line.sku, "quantity": line.quantity} for line in made.lines],
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
    return [order_body(order, lines[order.pk]) for order in orders]


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy that a client may name, and the idea behind it, in the reader's language."""

    name: str
    sound: bool
    idea: str


def strategy_choices() -> list[StrategyChoice]:
    """Return the strategies that a client may name: with DEBUG on all that are configured, else none."""
    strategies = STRATEGIES.values() if settings.DEBUG else ()
    return [
        StrategyChoice(strategy.name, strategy.sound, explanation(strategy)["idea"])
        for strategy in strategies
        if not strategy.unconfigured()
    ]
