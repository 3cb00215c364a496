"""The outbox and the inbox."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from locking.admin.lookups import ListedLookups
from orders.admin.parts import STYLES, ReadOnly, badge
from orders.events.signals import SIGNALS
from orders.models import OrderEvent, PaymentEvent


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


def delivery(event: OrderEvent) -> str:
    """Return how far the delivery is: an event for which no code listens was delivered to none."""
    if event.delivered_at is not None:
        heard = event.kind in SIGNALS and SIGNALS[event.kind].has_listeners(OrderEvent)
        return badge("good", _("delivered")) if heard else badge("ended", _("no receiver"))
    return badge("warn", _("failing")) if event.error else badge("open", _("not delivered yet"))


@admin.register(OrderEvent)
class OrderEventAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """The outbox: what was delivered, what waits, and what fails."""

    list_display = ("id", "kind", "how", "about", "created_at", "attempts", "delivered_at")
    list_filter = (DeliveryFilter, "kind", "created_at")
    list_select_related = ("order", "product")
    search_fields = ("=order__number", "=order__id", "=product__sku")
    search_help_text = _("Order number or SKU")
    actions = ("retry_now",)

    class Media:
        css = STYLES

    @admin.display(description=_("delivery"))
    def how(self, event: OrderEvent) -> str:
        """Return how far the delivery is, with its shape."""
        return delivery(event)

    @admin.display(description=_("about"))
    def about(self, event: OrderEvent) -> str:
        """Return the number of its order, or its product."""
        return str(event.order or event.product)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Users with the permission to change events may have one retried."""
        return request.user.has_perm("orders.change_orderevent")

    @admin.action(description=_("Retry the delivery now"), permissions=["retry"])
    def retry_now(self, request: HttpRequest, events: QuerySet[OrderEvent]) -> None:
        """Make undelivered events due, whatever pause they are in."""
        due = events.filter(delivered_at=None).update(due_at=Now())
        said = ngettext("%(due)s event is due now.", "%(due)s events are due now.", due)
        self.message_user(request, said % {"due": due})


@admin.register(PaymentEvent)
class PaymentEventAdmin(ListedLookups, ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable
    """The inbox: what the payment provider sent, and what it did."""

    list_display = ("received_at", "how", "kind", "event_id", "reference", "order")
    list_filter = ("outcome", "kind", "received_at")
    list_select_related = ("order",)
    search_fields = ("=event_id", "=reference", "=order__number", "=order__id")
    search_help_text = _("Event id, payment or order number")

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
