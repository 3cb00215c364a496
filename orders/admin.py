"""Orders, to be read and handled: they come into being at the checkout only."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet, Sum
from django.db.models.functions import Now
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy as _

from inventory.admin_parts import STYLES, ReadOnly, ReasonForm, badge, reason
from inventory.domain import Busy
from locking.admin.lookups import ListedLookups
from orders.admin_actions import PAY, SHIP, TAKE_BACK, carry_out, tell
from orders.lifecycle import TransitionRefused, cancel
from orders.models import IdempotencyKey, Order, OrderEvent, OrderItem, PaymentEvent, Shipment


class OrderItemInline(ReadOnly, admin.TabularInline):  # type: ignore[type-arg]  # not subscriptable
    """What was bought."""

    model = OrderItem
    fields = ("product", "name", "location", "quantity", "shipped", "returned", "unit_price", "line_total")
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
    date_hierarchy = "created_at"
    list_per_page = 50
    inlines = (OrderItemInline,)
    actions = ("pay_orders", "ship_orders", "take_back_orders", "cancel_orders")
    action_form = ReasonForm

    class Media:
        css = STYLES

    @admin.display(description=_("state"), ordering="state")
    def how(self, order: Order) -> str:
        """Return the state with its shape and colour."""
        tones = {"placed": "open", "paid": "good", "partly_shipped": "warn", "shipped": "good"}
        return badge(tones.get(order.state, "ended"), order.get_state_display())

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Who may change orders may cancel them."""
        return request.user.has_perm("orders.change_order")

    @admin.action(description=_("Cancel the selected orders and restock"), permissions=["cancel"])
    def cancel_orders(self, request: HttpRequest, orders: QuerySet[Order]) -> None:
        """Cancel each, with the reason in the history; those that can't be are told."""
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


@admin.register(Shipment)
class ShipmentAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """What has left the building, when, and who sent it."""

    list_display = ("created_at", "order", "product", "quantity", "location", "reference", "staff")
    list_select_related = ("item__product", "location", "staff")
    search_fields = ("=item__order__id", "=item__product__sku", "=reference")
    search_help_text = _("Order number, SKU or reference")
    date_hierarchy = "created_at"
    list_per_page = 50

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
    list_per_page = 50


class DeliveryFilter(admin.SimpleListFilter):
    """How far an event's delivery is."""

    title = _("delivery")
    parameter_name = "delivery"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [("open", _("not delivered")), ("failing", _("failing")), ("done", _("delivered"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OrderEvent]) -> QuerySet[OrderEvent]:
        """Return the events of the choice."""
        conditions = {
            "open": Q(delivered_at=None),
            "failing": Q(delivered_at=None) & ~Q(error=""),
            "done": Q(delivered_at__isnull=False),
        }
        return queryset.filter(conditions.get(self.value() or "", Q()))


@admin.register(OrderEvent)
class OrderEventAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """The outbox: what was delivered, what waits, and what fails."""

    list_display = ("id", "kind", "how", "order", "created_at", "attempts", "delivered_at")
    list_filter = (DeliveryFilter, "kind", "created_at")
    list_select_related = ("order",)
    search_fields = ("=order__id",)
    search_help_text = _("Order number")
    list_per_page = 50
    actions = ("retry_now",)

    class Media:
        css = STYLES

    @admin.display(description=_("delivery"))
    def how(self, event: OrderEvent) -> str:
        """Return how far the delivery is, with its shape."""
        if event.delivered_at is not None:
            return badge("good", _("delivered"))
        return badge("warn", _("failing")) if event.error else badge("open", _("not delivered"))

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Users with the permission to change events may have one retried."""
        return request.user.has_perm("orders.change_orderevent")

    @admin.action(description=_("Retry the delivery now"), permissions=["retry"])
    def retry_now(self, request: HttpRequest, events: QuerySet[OrderEvent]) -> None:
        """Make undelivered events due, whatever pause they are in."""
        due = events.filter(delivered_at=None).update(due_at=Now())
        self.message_user(request, _("%(due)s events are due now.") % {"due": due})


@admin.register(PaymentEvent)
class PaymentEventAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """The inbox: what the payment provider sent, and what it did."""

    list_display = ("received_at", "how", "kind", "event_id", "reference", "order")
    list_filter = ("outcome", "kind", "received_at")
    list_select_related = ("order",)
    search_fields = ("=event_id", "=reference", "=order__id")
    search_help_text = _("Event id, payment or order number")
    list_per_page = 50

    class Media:
        css = STYLES

    @admin.display(description=_("outcome"), ordering="outcome")
    def how(self, event: PaymentEvent) -> str:
        """Return the outcome with its shape."""
        tones = {
            "paid": "good",
            "too_late": "warn",
            "wrong_amount": "warn",
            "wrong_currency": "warn",
            "paid_twice": "warn",
        }
        return badge(tones.get(event.outcome, "ended"), event.get_outcome_display())
