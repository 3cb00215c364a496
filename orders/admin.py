"""Orders, to be read: they come into being at the checkout only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet, Sum
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from orders.models import Order, OrderItem


class ReadOnly:
    """Looking is all that anyone may do."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Orders are placed at the checkout."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What was sold was sold."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The ledger has its movements, which would then have no order."""
        return False


class OrderItemInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]  # not subscriptable
    """What was bought."""

    model = OrderItem
    fields = ("product", "quantity", "unit_price", "line_total")
    readonly_fields = ("line_total",)
    extra = 0

    @admin.display(description=_("line total"))
    def line_total(self, item: OrderItem) -> Any:
        """Return quantity times price."""
        return item.quantity * item.unit_price


@admin.register(Order)
class OrderAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Orders with their number of units."""

    list_display = ("id", "created_at", "state", "units", "lines", "total", "strategy")
    list_filter = ("state", "strategy", "created_at")
    search_fields = ("=id", "=items__product__sku")
    search_help_text = _("Order number or SKU")
    date_hierarchy = "created_at"
    list_per_page = 50
    inlines = (OrderItemInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Order]:
        """Return the orders with their units and lines."""
        orders: QuerySet[Order] = super().get_queryset(request)
        return orders.annotate(_units=Sum("items__quantity"), _lines=Count("items"))

    @admin.display(description=_("units"), ordering="_units")
    def units(self, order: Any) -> int:
        """Return the units of all lines."""
        return int(order._units or 0)

    @admin.display(description=_("lines"), ordering="_lines")
    def lines(self, order: Any) -> int:
        """Return the number of lines."""
        return int(order._lines)
