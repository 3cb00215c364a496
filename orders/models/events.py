"""What is kept of events: those that the shop publishes, and those that a payment provider sends."""

from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class OrderEvent(models.Model):
    """The outbox: one event of an order or a product, written in the transaction that made it happen.

    `orders.events.relay` delivers it at least once. Within one order ids rise in the order of the commits,
    because every event is written while the order's row is locked.
    """

    class Kind(models.TextChoices):
        """What happened."""

        PLACED = "placed", _("placed")
        PAID = "paid", _("paid")
        SHIPPED = "shipped", _("shipped")
        RETURNED = "returned", _("returned")
        CANCELLED = "cancelled", _("cancelled")
        EXPIRED = "expired", _("expired")
        PAYMENT_REFUSED = "payment_refused", _("payment refused")
        UNITS_CANCELLED = "units_cancelled", _("units cancelled")
        REFUNDED = "refunded", _("refunded")
        LOW_STOCK = "low_stock", _("low stock")
        BACK_IN_STOCK = "back_in_stock", _("back in stock")

    order = models.ForeignKey(
        "orders.Order",
        null=True,
        on_delete=models.CASCADE,
        related_name="events",
        db_index=False,  # `event_of_order` begins with it
        verbose_name=_("order"),
    )
    product = models.ForeignKey(
        "orders.Product",
        null=True,
        on_delete=models.CASCADE,
        related_name="events",
        db_index=False,  # `event_of_product` begins with it
        verbose_name=_("product"),
    )
    kind = models.CharField(_("kind"), max_length=20, choices=Kind.choices)
    data = models.JSONField(_("data"), default=dict, blank=True, help_text=_("What belongs to this kind."))
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False)
    due_at = models.DateTimeField(
        _("due"),
        db_default=Now(),
        editable=False,
        help_text=_("It is delivered, or tried again, from then on."),
    )
    delivered_at = models.DateTimeField(_("delivered"), null=True, editable=False)
    attempts = models.PositiveIntegerField(_("attempts"), default=0, db_default=0, editable=False)
    error = models.TextField(_("error"), blank=True, default="", db_default="", editable=False)

    class Meta:
        ordering = ("-pk",)
        verbose_name = _("order event")
        verbose_name_plural = _("order events")
        indexes = (
            models.Index(fields=("order", "id"), condition=Q(order__isnull=False), name="event_of_order"),
            models.Index(
                fields=("product", "id"), condition=Q(product__isnull=False), name="event_of_product"
            ),
            BrinIndex(fields=("created_at",), name="event_by_date"),  # costs a sale next to nothing
            models.Index(fields=("due_at",), condition=Q(delivered_at=None), name="event_undelivered"),
        )
        constraints = (
            models.CheckConstraint(
                name="event_of_order_or_product", condition=Q(order=None) ^ Q(product=None)
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} ({self.pk})"

    @property
    def subject(self) -> str:
        """What it is about."""
        return f"order {self.order_id}" if self.order_id else f"product {self.product_id}"


class PaymentEvent(models.Model):
    """The inbox: an event that the payment provider has sent, and what it did, once.

    Written in the transaction that changes the order, under the provider's id: the same event again finds it.
    """

    class Outcome(models.TextChoices):
        """What the event did."""

        PAID = "paid", _("paid")
        ALREADY_PAID = "already_paid", _("already paid")
        TOO_LATE = "too_late", _("too late")
        WRONG_AMOUNT = "wrong_amount", _("wrong amount")
        WRONG_CURRENCY = "wrong_currency", _("wrong currency")
        PAID_TWICE = "paid_twice", _("paid twice")
        IGNORED = "ignored", _("ignored")

    event_id = models.CharField(_("event id"), max_length=255, unique=True, help_text=_("The provider's."))
    kind = models.CharField(_("kind"), max_length=100)
    reference = models.CharField(
        _("payment"), max_length=255, blank=True, default="", help_text=_("The provider's id of the payment.")
    )
    order = models.ForeignKey(
        "orders.Order",
        null=True,
        on_delete=models.CASCADE,
        related_name="payment_events",
        verbose_name=_("order"),
    )
    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome.choices)
    received_at = models.DateTimeField(
        pgettext_lazy("when", "received"), db_default=Now(), editable=False, db_index=True
    )

    class Meta:
        ordering = ("-received_at", "-pk")
        verbose_name = _("payment event")
        verbose_name_plural = _("payment events")

    def __str__(self) -> str:
        return f"{self.event_id} ({self.outcome})"
