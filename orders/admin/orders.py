"""Orders, to be read and handled: they come into being at the checkout only."""

from __future__ import annotations

import re
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _

from locking.admin.lookups import ListedLookups
from orders.admin.actions import STEPS, action_of, carry_out
from orders.admin.parts import STYLES, ReadOnly, badge
from orders.admin.timeline import timeline
from orders.after_sale.lifecycle import items_of
from orders.after_sale.refunds import refunded
from orders.models import IdempotencyKey, Order, OrderItem, Shipment

_ITEMS = OrderItem.objects.filter(order=OuterRef("pk")).order_by().values("order")

_NUMBER: Final = re.compile(r"#?([0-9]{1,18})")
"""A number of an order, as people type it."""


@admin.register(Order)
class OrderAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """Orders with their number of units."""

    change_form_template = "orders/admin_order.html"
    list_display = (
        "written_number",
        "created_at",
        "how",
        "customer",
        "units",
        "lines",
        "price",
        "due",
        "strategy",
    )
    list_filter = ("state", "strategy", "created_at")
    search_fields = ("=id", "=items__product__sku", "=customer")
    search_help_text = _("Order number, id, SKU or customer")
    fields = readonly_fields = (
        "how",
        "customer",
        "total",
        "currency",
        "refunded",
        "created_at",
        "pay_by",
        "paid_at",
        "strategy",
        "id",
        "scope",
    )
    actions = tuple(map(action_of, STEPS))

    class Media:
        css = STYLES

    @admin.display(description=_("number"), ordering="number")
    def written_number(self, order: Order) -> str:
        """Return the number without the separators of a quantity."""
        return str(order)

    @admin.display(description=_("total"), ordering="total")
    def price(self, order: Order) -> str:
        """Return the total with its currency."""
        return f"{order.total} {order.currency}"

    @admin.display(description=_("pay by"), ordering="pay_by")
    def due(self, order: Order) -> Any:
        """Return until when an order that isn't paid can be."""
        return order.pay_by if order.state == Order.State.PLACED else None

    @admin.display(description=_("state"), ordering="state")
    def how(self, order: Order) -> str:
        """Return the state with its shape and color."""
        tones = {"placed": "open", "paid": "good", "partly_shipped": "warn", "shipped": "good"}
        return badge(tones.get(order.state, "ended"), order.get_state_display())

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Let users who may change orders cancel them."""
        return request.user.has_perm("orders.change_order")

    def has_pay_permission(self, request: HttpRequest) -> bool:
        """Let users with `pay_order` record a payment."""
        return request.user.has_perm("orders.pay_order")

    def has_ship_permission(self, request: HttpRequest) -> bool:
        """Let users with `ship_order` ship units."""
        return request.user.has_perm("orders.ship_order")

    def has_return_permission(self, request: HttpRequest) -> bool:
        """Let users with `return_order` take units back."""
        return request.user.has_perm("orders.return_order")

    def has_refund_permission(self, request: HttpRequest) -> bool:
        """Let users with `refund_order` refund money."""
        return request.user.has_perm("orders.refund_order")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show an order with its steps and its timeline; a step comes back here."""
        order = self.get_object(request, object_id)
        if order is None or not self.has_view_permission(request, order):
            return super().change_view(request, object_id, form_url, extra_context)
        allowed = [name for name in self.get_actions(request) if name in STEPS]
        if request.method == "POST":
            name = request.POST.get("action", "")
            if name not in allowed:
                raise PermissionDenied
            asked = carry_out(self, request, Order.objects.filter(pk=order.pk), STEPS[name])
            return asked or redirect(request.path)
        items = items_of(order.pk)
        steps = [(name, STEPS[name]) for name in allowed]
        context = {
            "title": _("Order %(order)s") % {"order": order},
            "subtitle": None,
            "items": items,
            "steps": [(name, step.title) for name, step in steps if step.fits(order, items)],
            "timeline": timeline(order),
        }
        return super().change_view(request, object_id, form_url, context | (extra_context or {}))

    @admin.display(description=_("refunded"))
    def refunded(self, order: Order) -> Any:
        """Return what went back of its money."""
        return refunded(order)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Order], search_term: str
    ) -> tuple[QuerySet[Order], bool]:
        """Find a number by its index, however it is typed."""
        number = _NUMBER.fullmatch(search_term.strip())
        if number is None:
            return super().get_search_results(request, queryset, search_term)
        term = search_term.strip()
        with_sku = OrderItem.objects.filter(product__sku=term).values("order")
        return queryset.filter(Q(number=number[1]) | Q(customer=term) | Q(pk__in=with_sku)), False

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
    list_select_related = ("item__product", "item__order", "staff")
    search_fields = ("=item__order__number", "=item__order__id", "=item__product__sku", "=reference")
    search_help_text = _("Order number, SKU or reference")

    @admin.display(description=_("order"), ordering="item__order")
    def order(self, shipment: Shipment) -> Any:
        """Return the order's number."""
        return str(shipment.item.order)

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
    search_fields = ("=key", "=scope", "=order__number", "=order__id")
    search_help_text = _("Key, customer or order number")
