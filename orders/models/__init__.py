"""The shop's tables: the catalog, orders, and events. Stock is `inventory`'s."""

from orders.models.catalog import SKU_PATTERN, CustomerPurchase, Product, shop_currency
from orders.models.events import OrderEvent, PaymentEvent
from orders.models.ordering import Basket, IdempotencyKey, Order, OrderItem, Refund, Shipment

__all__ = [
    "SKU_PATTERN",
    "Basket",
    "CustomerPurchase",
    "IdempotencyKey",
    "Order",
    "OrderEvent",
    "OrderItem",
    "PaymentEvent",
    "Product",
    "Refund",
    "Shipment",
    "shop_currency",
]
