"""Orders and their items, parcels, reserved baskets, and the keys of requests."""

from __future__ import annotations

import uuid
from decimal import Decimal

from django.conf import settings
from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from orders.models.catalog import Product, shop_currency

_NEXT_NUMBER = Func(Value("orders_order_number"), function="nextval", output_field=models.BigIntegerField())


class Order(models.Model):
    """What someone bought."""

    class State(models.TextChoices):
        """How far the order has come."""

        PLACED = "placed", _("placed")
        PAID = "paid", _("paid")
        PARTLY_SHIPPED = "partly_shipped", _("partly shipped")
        SHIPPED = "shipped", _("shipped")
        RETURNED = "returned", _("returned")
        CANCELLED = "cancelled", _("cancelled")
        EXPIRED = "expired", _("expired")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    number = models.BigIntegerField(
        _("number"), unique=True, editable=False, db_default=_NEXT_NUMBER, help_text=_("What people call it.")
    )
    state = models.CharField(_("state"), max_length=20, choices=State.choices, default=State.PLACED)
    customer = models.CharField(_("customer"), max_length=100, blank=True, default="")
    scope = models.CharField(
        _("scope"),
        max_length=100,
        blank=True,
        default="",
        db_default="",
        help_text=_("The authenticated caller whose order it is; empty: any caller's who knows its id."),
    )
    pay_by = models.DateTimeField(
        _("pay by"), null=True, blank=True, help_text=_("Unpaid, it expires then and its units go back.")
    )
    paid_at = models.DateTimeField(_("paid at"), null=True, editable=False)
    # Wide enough for the largest order: MAX_LINES lines of MAX_QUANTITY units at the highest price.
    total = models.DecimalField(_("total"), max_digits=18, decimal_places=2)
    currency = models.CharField(_("currency"), max_length=3, default=shop_currency)
    strategy = models.CharField(_("strategy"), max_length=40, help_text=_("How the stock was taken."))
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False, db_index=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        indexes = (
            models.Index(fields=("pay_by",), condition=Q(state="placed"), name="order_unpaid_by_end"),
            models.Index(
                fields=("scope", "-created_at", "-id"), condition=~Q(scope=""), name="order_of_scope_by_date"
            ),
        )
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        constraints = (
            models.CheckConstraint(name="order_total_not_negative", condition=Q(total__gte=0)),
            models.CheckConstraint(
                name="order_state_is_known",
                condition=Q(
                    state__in=(
                        "placed",
                        "paid",
                        "partly_shipped",
                        "shipped",
                        "returned",
                        "cancelled",
                        "expired",
                    )
                ),
            ),
        )
        permissions = (
            ("pay_order", "Can mark orders as paid"),
            ("ship_order", "Can ship orders"),
            ("return_order", "Can take back returned units"),
            ("refund_order", "Can refund orders"),
        )

    def __str__(self) -> str:
        return str(self.number)


class OrderItem(models.Model):
    """So many units of one product at the price of that moment."""

    # An order with units in the ledger is cancelled, never deleted: its units would be committed for ever.
    order = models.ForeignKey(
        Order, on_delete=models.PROTECT, related_name="items", db_index=False, verbose_name=_("order")
    )
    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="order_items", verbose_name=_("product")
    )
    name = models.CharField(
        _("name"), max_length=200, default="", help_text=_("Of the product when it was ordered.")
    )
    quantity = models.PositiveIntegerField(_("quantity"))
    unit_price = models.DecimalField(_("unit price"), max_digits=10, decimal_places=2)
    shipped = models.PositiveIntegerField(
        _("shipped"), default=0, db_default=0, help_text=_("Units that left the building.")
    )
    returned = models.PositiveIntegerField(
        _("returned"), default=0, db_default=0, help_text=_("Units of those that came back.")
    )
    cancelled = models.PositiveIntegerField(
        _("cancelled"),
        default=0,
        db_default=0,
        help_text=_("Units that are never shipped: cancelled, expired or lost."),
    )

    class Meta:
        ordering = ("pk",)
        verbose_name = pgettext_lazy("order", "item")  # one of the inventory is another
        verbose_name_plural = pgettext_lazy("order", "items")
        constraints = (
            models.UniqueConstraint(name="item_product_once_an_order", fields=("order", "product")),
            models.CheckConstraint(name="item_quantity_positive", condition=Q(quantity__gt=0)),
            models.CheckConstraint(name="item_unit_price_not_negative", condition=Q(unit_price__gte=0)),
            models.CheckConstraint(
                name="item_shipped_was_bought", condition=Q(quantity__gte=F("shipped") + F("cancelled"))
            ),
            models.CheckConstraint(name="item_returned_was_shipped", condition=Q(returned__lte=F("shipped"))),
        )

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product_id}"

    @property
    def line_total(self) -> Decimal:
        """Quantity times price."""
        return self.quantity * self.unit_price

    @property
    def open(self) -> int:
        """Units that are sold and still in the building."""
        return self.quantity - self.shipped - self.cancelled

    @property
    def returnable(self) -> int:
        """Units that were shipped and haven't come back."""
        return self.shipped - self.returned


class Shipment(models.Model):
    """So many units of one item that left the building together with others of the same reference."""

    item = models.ForeignKey(
        OrderItem, models.PROTECT, related_name="shipments", verbose_name=pgettext_lazy("order", "item")
    )
    quantity = models.PositiveIntegerField(_("quantity"))
    reference = models.CharField(
        _("reference"), max_length=60, help_text=_("Of the parcel; nothing leaves twice.")
    )
    staff = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        verbose_name=_("staff"),
    )
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False, db_index=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        verbose_name = _("shipment")
        verbose_name_plural = _("shipments")
        constraints = (
            models.UniqueConstraint(name="shipment_once_a_reference", fields=("item", "reference")),
            models.CheckConstraint(name="shipment_quantity_positive", condition=Q(quantity__gt=0)),
        )

    def __str__(self) -> str:
        return f"{self.quantity} × {self.item_id} ({self.reference})"


class Refund(models.Model):
    """Money of an order that went back to the customer."""

    order = models.ForeignKey(
        Order, on_delete=models.PROTECT, related_name="refunds", db_index=False, verbose_name=_("order")
    )
    amount = models.DecimalField(_("amount"), max_digits=18, decimal_places=2)
    reference = models.CharField(
        _("reference"), max_length=60, help_text=_("Of the refund; nothing is refunded twice.")
    )
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False)

    class Meta:
        ordering = ("pk",)
        verbose_name = _("refund")
        verbose_name_plural = _("refunds")
        constraints = (
            models.UniqueConstraint(name="refund_once_a_reference", fields=("order", "reference")),
            models.CheckConstraint(name="refund_amount_positive", condition=Q(amount__gt=0)),
        )

    def __str__(self) -> str:
        return f"{self.amount} ({self.reference})"


class Basket(models.Model):
    """What the shop knows of a reservation: whose it is, and what was agreed to be paid."""

    # The reservation's row may be archived away; what is left is forgotten by a task.
    reservation = models.OneToOneField(
        "inventory.Reservation",
        primary_key=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="basket",
        verbose_name=_("reservation"),
    )
    customer = models.CharField(_("customer"), max_length=100, blank=True, default="")
    scope = models.CharField(_("scope"), max_length=100, blank=True, default="")
    total = models.DecimalField(_("total"), max_digits=18, decimal_places=2)
    currency = models.CharField(_("currency"), max_length=3)
    lines = models.JSONField(_("lines"), help_text=_("SKU, product, quantity and the agreed unit price."))
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False, db_index=True)

    class Meta:
        verbose_name = _("basket")
        verbose_name_plural = _("baskets")
        indexes = (models.Index(fields=("customer",), condition=~Q(customer=""), name="basket_of_customer"),)

    def __str__(self) -> str:
        return str(self.reservation_id)


class IdempotencyKey(models.Model):
    """The answer to a request that a client may send again: an order, a reservation or a refusal.

    A successful one is written in the transaction of its order or reservation: never one without the other.
    """

    scope = models.CharField(_("scope"), max_length=100, blank=True, default="", help_text=_("Whose key."))
    key = models.CharField(_("key"), max_length=255)
    fingerprint = models.CharField(_("fingerprint"), max_length=64, help_text=_("Of the request's content."))
    status = models.PositiveSmallIntegerField(_("status"))
    body = models.JSONField(_("body"))
    order = models.ForeignKey(
        Order, null=True, on_delete=models.CASCADE, related_name="idempotency_keys", verbose_name=_("order")
    )
    reservation = models.UUIDField(
        _("reservation"), null=True, editable=False, help_text=_("That was made with it.")
    )
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False, db_index=True)

    class Meta:
        ordering = ("-created_at", "-pk")
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        constraints = (models.UniqueConstraint(name="idempotency_key_once", fields=("scope", "key")),)

    def __str__(self) -> str:
        return self.key
