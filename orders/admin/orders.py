"""Orders, to be read and handled: they come into being at the checkout only."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, OuterRef, QuerySet, Subquery, Sum
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from inventory import Busy
from locking.admin.lookups import ListedLookups
from orders.admin.actions import CANCEL_UNITS, PAY, SHIP, TAKE_BACK, carry_out, tell
from orders.admin.parts import STYLES, ReadOnly, ReasonForm, badge, reason
from orders.after_sale.lifecycle import TransitionRefused, cancel
from orders.models import IdempotencyKey, Order, OrderItem, Shipment

_ITEMS = OrderItem.objects.filter(order=OuterRef("pk")).order_by().values("order")


class OrderItemInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]  # not subscriptable
    """What was bought."""

    model = OrderItem
    fields = ("product", "name", "quantity", "shipped", "returned", "cancelled", "unit_price", "line_total")
    readonly_fields = ("line_total",)
    extra = 0

    @admin.display(description=_("line total"))
    def line_total(self, item: OrderItem) -> Any:
        """Return quantity times price."""
        return item.quantity * item.unit_price


@admin.register(Order)
class OrderAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Orders with their number of units."""

    list_display = (
        "id",
        "created_at",
        "how",
        "customer",
        "units",
        "lines",
        "total",
        "currency",
        "pay_by",
        "strategy",
    )
    list_filter = ("state", "strategy", "created_at")
    search_fields = ("=id", "=items__product__sku", "=customer")
    search_help_text = _("Order number, SKU or customer")
    inlines = (OrderItemInline,)
    actions = ("pay_orders", "ship_orders", "take_back_orders", "cancel_units_of_orders", "cancel_orders")
    action_form = ReasonForm

    class Media:
        css = STYLES

    @admin.display(description=_("state"), ordering="state")
    def how(self, order: Order) -> str:
        """Return the state with its shape and color."""
        tones = {"placed": "open", "paid": "good", "partly_shipped": "warn", "shipped": "good"}
        return badge(tones.get(order.state, "ended"), order.get_state_display())

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Who may change orders may cancel them."""
        return request.user.has_perm("orders.change_order")

    @admin.action(description=_("Cancel the selected orders and restock"), permissions=["cancel"])
    def cancel_orders(self, request: HttpRequest, orders: QuerySet[Order]) -> None:
        """Cancel each, with the reason in the history; report those that can't be canceled."""
        why = reason(request)
        if not why:
            self.message_user(request, _("Say why: the history keeps it."), messages.ERROR)
            return
        for order in Order.objects.filter(pk__in=list(orders.values_list("pk", flat=True))):
            try:
                cancel(order.pk, record=partial(self.log_change, request, order, f"cancelled: {why}"))
            except (TransitionRefused, Busy) as refused:
                self.message_user(request, tell(order, refused), messages.WARNING)
            else:
                self.message_user(request, _("Cancelled %(order)s.") % {"order": order.pk})

    def has_pay_permission(self, request: HttpRequest) -> bool:
        """Who may say that money has come."""
        return request.user.has_perm("orders.pay_order")

    def has_ship_permission(self, request: HttpRequest) -> bool:
        """Who may let units leave."""
        return request.user.has_perm("orders.ship_order")

    def has_return_permission(self, request: HttpRequest) -> bool:
        """Who may take units back."""
        return request.user.has_perm("orders.return_order")

    @admin.action(description=_("Mark the selected orders as paid"), permissions=["pay"])
    def pay_orders(self, request: HttpRequest, orders: QuerySet[Order]) -> TemplateResponse | None:
        """Ask, then note the payment of each."""
        return carry_out(self, request, orders, PAY)

    @admin.action(description=_("Ship units of the selected orders"), permissions=["ship"])
    def ship_orders(self, request: HttpRequest, orders: QuerySet[Order]) -> TemplateResponse | None:
        """Ask how many of each item leave, then note the shipments."""
        return carry_out(self, request, orders, SHIP)

    @admin.action(description=_("Take back units of the selected orders"), permissions=["return"])
    def take_back_orders(self, request: HttpRequest, orders: QuerySet[Order]) -> TemplateResponse | None:
        """Ask how many of each item came back, then restock them."""
        return carry_out(self, request, orders, TAKE_BACK)

    @admin.action(description=_("Cancel units of the selected orders"), permissions=["cancel"])
    def cancel_units_of_orders(
        self, request: HttpRequest, orders: QuerySet[Order]
    ) -> TemplateResponse | None:
        """Ask how many of each item never leave, then put them back or write them off."""
        return carry_out(self, request, orders, CANCEL_UNITS)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Order]:
        """Return the orders with their units and lines, summed up for the rows of the page alone."""
        orders: QuerySet[Order] = super().get_queryset(request)
        units = Subquery(_ITEMS.annotate(units=Sum("quantity")).values("units"))
        lines = Subquery(_ITEMS.annotate(lines=Count("*")).values("lines"))
        return orders.annotate(_units=units, _lines=lines)

    @admin.display(description=_("units"))
    def units(self, order: Any) -> int:
        """Return the units of all lines."""
        return int(order._units or 0)

    @admin.display(description=_("lines"))
    def lines(self, order: Any) -> int:
        """Return the number of lines."""
        return int(order._lines or 0)


@admin.register(Shipment)
class ShipmentAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What has left the building, when, and who sent it."""

    list_display = ("created_at", "order", "product", "quantity", "reference", "staff")
    list_select_related = ("item__product", "staff")
    search_fields = ("=item__order__id", "=item__product__sku", "=reference")
    search_help_text = _("Order number, SKU or reference")

    @admin.display(description=_("order"), ordering="item__order")
    def order(self, shipment: Shipment) -> Any:
        """Return the order's number."""
        return shipment.item.order_id

    @admin.display(description=_("product"), ordering="item__product__sku")
    def product(self, shipment: Shipment) -> str:
        """Return what was sent."""
        return shipment.item.product.sku


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Which request has which answer."""

    list_display = ("created_at", "scope", "key", "status", "order")
    list_filter = ("status", "created_at")
    list_select_related = ("order",)
    search_fields = ("=key", "=scope", "=order__id")
    search_help_text = _("Key, customer or order number")
