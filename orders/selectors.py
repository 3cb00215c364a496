"""What the HTTP surface reads, as plain data: services write, selectors read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from inventory.models import LAB_PREFIX, Product
from inventory.reservations import Reserved
from inventory.segments import in_all
from inventory.strategies import STRATEGIES, Strategy
from orders.models import Order, OrderItem
from orders.order_writer import moment

PAGE = 100


def products_for_sale(after: str = "") -> QuerySet[Any]:
    """Return a page of products in the order of their SKUs, without those of the oversell lab.

    Each has `on_hand_in_all` and `available_in_all`, which count the units in segments.

    Args:
        after: the last SKU of the page before; empty for the first page.
    """
    # Filtered by SKU rather than cut by offset: a page stays the same while products come and go before it.
    products = Product.objects.filter(sku__gt=after, active=True).exclude(sku__startswith=LAB_PREFIX)
    return in_all(products).order_by("sku")[:PAGE]


def find_order(order_id: str) -> Order | None:
    """Return the order of this id, or None; something that is no UUID is the id of no order."""
    try:
        return Order.objects.filter(pk=UUID(order_id)).first()
    except ValueError:
        return None


def product_data(product: Any) -> dict[str, Any]:
    """Return a product for sale as JSON data; money is a string: a JSON number would be read as a float."""
    return {
        "sku": product.sku,
        "name": product.name,
        "price": str(product.price),
        "on_hand": product.on_hand_in_all,
        "available": product.available_in_all,
    }


def reservation_data(made: Reserved) -> dict[str, Any]:
    """Return a reservation as JSON data."""
    return {
        "reservation": str(made.basket),
        "expires_at": moment(made.expires_at),
        "lines": [{"sku": line.sku, "quantity": line.quantity} for line in made.lines],
    }


def order_data(order: Order) -> dict[str, Any]:
    """Return an order and its lines as JSON data."""
    return {
        "id": str(order.pk),
        "state": order.state,
        "total": str(order.total),
        "strategy": order.strategy,
        "customer": order.customer,
        "created_at": moment(order.created_at),
        "pay_by": moment(order.pay_by),
        "lines": [
            {"sku": sku, "quantity": quantity, "unit_price": str(price)}
            for sku, quantity, price in sorted(
                OrderItem.objects.filter(order=order).values_list("product__sku", "quantity", "unit_price")
            )
        ],
    }


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy that a client may name, and the idea behind it in one sentence."""

    name: str
    sound: bool
    idea: str


def strategy_choices() -> list[StrategyChoice]:
    """Return the strategies that a client may name: with DEBUG on all that are configured, else none."""
    strategies = STRATEGIES.values() if settings.DEBUG else ()
    return [
        StrategyChoice(strategy.name, strategy.sound, _idea(strategy))
        for strategy in strategies
        if not strategy.unconfigured()
    ]


def _idea(strategy: type[Strategy]) -> str:
    """Return the first sentence of the *Idea* that opens every strategy's docstring."""
    idea = " ".join((strategy.__doc__ or "").removeprefix("Idea:").split())
    return idea.partition(". ")[0].rstrip(".") + "."
