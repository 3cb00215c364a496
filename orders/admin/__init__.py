"""The shop as its staff see it."""

from orders.admin import events, orders, products

__all__ = ["events", "orders", "products"]
