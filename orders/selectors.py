"""What the HTTP surface reads, as plain data: services write, selectors read."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils.translation import gettext

from inventory.models import Product
from inventory.reservations import Reserved
from inventory.segments import in_all
from inventory.strategies import STRATEGIES
from orders.models import Order, OrderItem
from orders.order_writer import moment, order_body
from orders.schemas import ItemData, OrderData, ProductData, ReservationData

PAGE = 100


def products_for_sale(after: str = "") -> QuerySet[Any]:
    """Return a page of products in the order of their SKUs.

    Each has `on_hand_in_all` and `available_in_all`, which count the units in segments. They are for showing:
    with a replica they may be some moments old, and only the checkout decides.

    Args:
        after: the last SKU of the page before; empty for the first page.
    """
    # Filtered by SKU rather than cut by offset: a page stays the same while products come and go before it.
    products = Product.objects.using(settings.PRODUCTS_DATABASE).filter(sku__gt=after, active=True)
    return in_all(products).order_by("sku")[:PAGE]


@dataclass(frozen=True)
class Cursor:
    """Where a page of orders begins: after the order of this date and id, newest first."""

    created_at: datetime
    order_id: UUID

    def __str__(self) -> str:
        text = f"{self.created_at.isoformat()}|{self.order_id}"
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the cursor that `text` stands for.

        Raises:
            ValueError: it stands for none.
        """
        date, _, order_id = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)).decode().partition("|")
        created_at = datetime.fromisoformat(date)
        if created_at.utcoffset() != timedelta(0):
            raise ValueError(f"{date}: is not in UTC")
        return cls(created_at, UUID(order_id))


def page_of_orders(scope: str | None, after: Cursor | None) -> list[Order]:
    """Return a page of orders, the newest first.

    Args:
        scope: of this caller only; None: of all.
        after: what the page before ended with; None for the first page. Orders placed meanwhile change no
            later page.
    """
    orders = Order.objects.all() if scope is None else Order.objects.filter(scope=scope)
    if after is not None:
        same = Q(created_at__lt=after.created_at) | Q(pk__lt=after.order_id)
        orders = orders.filter(same, created_at__lte=after.created_at)
    return list(orders.order_by("-created_at", "-pk")[:PAGE])


def product_data(product: Any) -> ProductData:
    """Return a product for sale as JSON data; money is a string: a JSON number would be read as a float."""
    return {
        "sku": product.sku,
        "name": product.name,
        "price": str(product.price),
        "currency": product.currency,
        "on_hand": product.on_hand_in_all,
        "available": product.available_in_all,
    }


def reservation_data(made: Reserved) -> ReservationData:
    """Return a reservation as JSON data."""
    return {
        "reservation": str(made.basket),
        "state": cast("Any", made.state),
        "expires_at": moment(made.expires_at),
        "lines": [{"sku": line.sku, "quantity": line.quantity} for line in made.lines],
    }


def order_data(order: Order) -> OrderData:
    """Return an order and its lines as JSON data."""
    return orders_data([order])[0]


def orders_data(orders: Sequence[Order]) -> list[OrderData]:
    """Return orders and their lines as JSON data, in one query for all lines."""
    lines: dict[UUID, list[ItemData]] = {order.pk: [] for order in orders}
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
        StrategyChoice(strategy.name, strategy.sound, _idea(strategy))
        for strategy in strategies
        if not strategy.unconfigured()
    ]


def _idea(strategy: type) -> str:
    text = (strategy.__doc__ or "").partition("Interleaving:")[0].removeprefix("Idea:")
    return gettext(" ".join(text.split()))
