"""Products and the ledger of their stock. What must hold always is a constraint in the database."""

from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any, Final, Never

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from inventory.currencies import is_whole, written
from inventory.domain import MAX_UNITS, SKU_PATTERN
from inventory.strategy_models import NamedLock, StockClaim, StockSegment, StockUnit

__all__ = [
    "LAB_PREFIX",
    "CustomerPurchase",
    "ImmutableRow",
    "NamedLock",
    "Product",
    "StockClaim",
    "StockLevel",
    "StockLocation",
    "StockMovement",
    "StockReservation",
    "StockSegment",
    "StockUnit",
    "Stocktake",
]

LAB_PREFIX: Final = "lab-"
"""The oversell lab's SKUs begin with it. Only they may be unguarded, only their rows may be cleared away."""


def shop_currency() -> str:
    """Return the currency of new products, the setting CURRENCY."""
    return str(settings.CURRENCY)


class Product(models.Model):
    """Something for sale. `on_hand` changes only together with a `StockMovement`."""

    sku = models.CharField(
        _("SKU"),
        max_length=64,
        unique=True,
        validators=[RegexValidator(SKU_PATTERN, _("Letters, digits, . _ -"))],
    )
    name = models.CharField(_("name"), max_length=200)
    price = models.DecimalField(
        _("price"), max_digits=10, decimal_places=2, validators=[MinValueValidator(Decimal(0))]
    )
    currency = models.CharField(
        _("currency"),
        max_length=3,
        default=shop_currency,
        db_default="EUR",
        validators=[RegexValidator(r"^[A-Z]{3}\Z", _("Three capital letters, such as EUR"))],
        help_text=_("Of its price, by ISO 4217; an order has one."),
    )
    active = models.BooleanField(
        pgettext_lazy("product", "active"),
        default=True,
        db_default=True,
        help_text=_("It is for sale; otherwise orders are refused."),
    )
    on_hand = models.IntegerField(_("on hand"), default=0, help_text=_("Units there are to sell."))
    reserved = models.PositiveIntegerField(
        _("reserved"), default=0, editable=False, help_text=_("Units of those on hand that are promised.")
    )
    backorder_limit = models.PositiveIntegerField(
        _("backorder limit"),
        default=0,
        db_default=0,
        validators=[MaxValueValidator(MAX_UNITS)],
        help_text=_("Units that may be sold beyond those that are there, to be shipped once they come in."),
    )
    low_stock_threshold = models.PositiveIntegerField(
        _("low-stock threshold"),
        null=True,
        blank=True,
        help_text=_("Tell when no more than this are available; empty: never."),
    )
    low_stock_since = models.DateTimeField(_("low since"), null=True, editable=False)
    sold_out_since = models.DateTimeField(_("sold out since"), null=True, editable=False)
    customer_limit = models.PositiveIntegerField(
        _("limit a customer"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("Units that one customer may have in all; empty: as many as there are."),
    )
    strategy = models.CharField(
        _("strategy"),
        max_length=40,
        blank=True,
        default="",
        help_text=_("How its stock is taken; empty: as the setting CHECKOUT_STRATEGY says."),
    )
    version = models.PositiveBigIntegerField(
        _("version"), default=0, editable=False, help_text=_("Rises with each change of stock.")
    )
    guarded = models.BooleanField(
        _("guarded"), default=True, editable=False, help_text=_("The database refuses a stock below zero.")
    )

    class Meta:
        ordering = ("sku",)
        verbose_name = _("product")
        verbose_name_plural = _("products")
        permissions = (
            ("count_product", "Can enter a stocktake"),
            ("move_product", "Can move units between locations"),
        )
        constraints = (
            models.CheckConstraint(
                name="product_on_hand_not_negative",
                condition=Q(on_hand__gte=-F("backorder_limit")) | Q(guarded=False),
            ),
            models.CheckConstraint(
                name="product_reserved_is_on_hand",
                condition=Q(reserved=0)
                | Q(reserved__lte=F("on_hand") + F("backorder_limit"))
                | Q(guarded=False),
            ),
            # Without this a slip could take the guard off real stock.
            models.CheckConstraint(
                name="product_unguarded_only_in_lab",
                condition=Q(guarded=True) | Q(sku__startswith=LAB_PREFIX),
            ),
            # Above it what is available would be no integer: neither a sale nor a delivery could be written.
            models.CheckConstraint(
                name="product_backorder_limit_can_be_added", condition=Q(backorder_limit__lte=MAX_UNITS)
            ),
            models.CheckConstraint(name="product_currency_is_iso", condition=Q(currency__regex="^[A-Z]{3}$")),
            models.CheckConstraint(name="product_price_not_negative", condition=Q(price__gte=0)),
            models.CheckConstraint(
                name="product_sku_is_plain", condition=Q(sku__regex=SKU_PATTERN.replace(r"\Z", "$"))
            ),
        )

    def __str__(self) -> str:
        return self.sku

    def clean(self) -> None:
        """Refuse a price that is finer than its currency: no payment could be of that amount."""
        price = self.price
        if not isinstance(price, Decimal) or not price.is_finite():
            return  # the field says what is wrong
        if is_whole(self.currency) and price != price.to_integral_value():
            message = _("%(currency)s is counted in whole units: %(price)s can't be paid.")
            raise ValidationError({"price": message % {"currency": self.currency, "price": self.price}})

    @property
    def available(self) -> int:
        """Units that can be sold or reserved, those that may be sold before they come in among them."""
        return self.on_hand - self.reserved + self.backorder_limit

    @property
    def written_price(self) -> str:
        """Its price as people read it, without the currency's letters."""
        return written(self.price, self.currency)


class StockLocation(models.Model):
    """A warehouse, or a part of one, that units are in and leave from."""

    code = models.CharField(
        _("code"),
        max_length=64,
        unique=True,
        validators=[RegexValidator(SKU_PATTERN, _("Letters, digits, . _ -"))],
    )
    name = models.CharField(_("name"), max_length=200, blank=True, default="")
    priority = models.PositiveSmallIntegerField(
        _("priority"), default=0, help_text=_("Lines leave from the smallest number that has enough.")
    )
    active = models.BooleanField(
        _("active"), default=True, help_text=_("Lines of new orders may leave from it.")
    )

    class Meta:
        ordering = ("priority", "code")
        verbose_name = _("stock location")
        verbose_name_plural = _("stock locations")

    def __str__(self) -> str:
        return self.code


class StockLevel(models.Model):
    """How many units of a product are at a location, whether they are sold or not."""

    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="levels", verbose_name=_("product")
    )
    location = models.ForeignKey(
        StockLocation, on_delete=models.PROTECT, related_name="levels", verbose_name=_("location")
    )
    units = models.PositiveIntegerField(_("units"), default=0)

    class Meta:
        ordering = ("product", "location")
        verbose_name = _("stock level")
        verbose_name_plural = _("stock levels")
        constraints = (models.UniqueConstraint(name="level_once_a_location", fields=("product", "location")),)

    def __str__(self) -> str:
        return f"{self.units} × {self.product_id} at {self.location_id}"


class ImmutableRow(ValidationError):
    """A ledger is added to, never changed: write a movement that corrects the wrong one."""


def _refuse(verb: str) -> Never:
    raise ImmutableRow(f"a stock movement can't be {verb}; write an 'adjusted' movement that corrects it")


class MovementQuerySet(models.QuerySet["StockMovement"]):
    """Reads and adds; everything else is refused here already, and by a trigger in the database."""

    def update(self, **kwargs: Any) -> int:
        """Refuse."""
        _refuse("changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        """Refuse."""
        _refuse("deleted")


class StockMovement(models.Model):
    """One change of one product's stock: who took or brought how much, and because of what.

    `quantity` changes what is for sale, `shipped` what is in the building. A sale changes the first, and the
    shipment of its units the second: in between they are allocated. See docs/adr/0030.
    """

    class Kind(models.TextChoices):
        """Why stock changed."""

        RECEIVED = "received", _("received")
        SOLD = "sold", _("sold")
        RESTOCKED = "restocked", _("restocked")
        ADJUSTED = "adjusted", _("adjusted")
        SHIPPED = "shipped", _("shipped")
        MOVED = "moved", _("moved")

    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="movements", verbose_name=_("product")
    )
    kind = models.CharField(_("kind"), max_length=10, choices=Kind.choices)
    quantity = models.IntegerField(
        _("quantity"), help_text=_("Added to the stock: negative when units leave.")
    )
    shipped = models.IntegerField(
        _("shipped"),
        default=0,
        db_default=0,
        help_text=_("Units that left the building with it; negative: that came back."),
    )
    cause = models.CharField(
        _("cause"), max_length=200, unique=True, help_text=_("What brought it about; nothing counts twice.")
    )
    location = models.ForeignKey(
        StockLocation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="movements",
        db_index=False,  # a sale has none, and mustn't pay for an index
        verbose_name=_("location"),
        help_text=_("Where units came to or left from; a sale has none."),
    )
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False, db_index=True)

    objects = MovementQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at", "-pk")
        verbose_name = _("stock movement")
        verbose_name_plural = _("stock movements")
        # What is in the building is summed up from these: a sale, of which there are most, isn't among them.
        indexes = (
            models.Index(fields=("product",), condition=~Q(kind="sold"), name="movement_of_counted_units"),
            models.Index(
                fields=("location",), condition=Q(location__isnull=False), name="movement_of_location"
            ),
        )
        constraints = (
            models.CheckConstraint(
                name="movement_sign_fits_kind",
                condition=(
                    Q(kind="sold", quantity__lt=0, shipped=0)
                    | Q(kind="received", quantity__gt=0, shipped=0)
                    | Q(kind="restocked", quantity__gt=0, shipped__in=(0, -F("quantity")))
                    | (Q(kind="adjusted", shipped=0) & ~Q(quantity=0))
                    | Q(kind="shipped", quantity=0, shipped__gt=0)
                    | (Q(kind="moved", quantity=0) & ~Q(shipped=0))
                ),
            ),
            models.CheckConstraint(name="movement_has_cause", condition=~Q(cause="")),
        )

    def __str__(self) -> str:
        return f"{self.quantity or -self.shipped:+d} {self.get_kind_display()} ({self.cause})"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert; refuse to change a row that is there."""
        if not self._state.adding:
            _refuse("changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refuse."""
        _refuse("deleted")


class Stocktake(models.Model):
    """A count of one product's units in the building, and how many the shop expected there."""

    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="stocktakes", verbose_name=_("product")
    )
    counted = models.PositiveIntegerField(_("counted"))
    expected = models.IntegerField(_("expected"), help_text=_("Units for sale and units not shipped yet."))
    reason = models.CharField(_("reason"), max_length=200)
    reference = models.CharField(
        _("reference"), max_length=60, help_text=_("Names it; nothing counts twice.")
    )
    location = models.ForeignKey(
        StockLocation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="stocktakes",
        verbose_name=_("location"),
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
        verbose_name = _("stocktake")
        verbose_name_plural = _("stocktakes")
        constraints = (
            models.UniqueConstraint(
                name="stocktake_once_a_reference",
                fields=("product", "reference"),
                condition=Q(location=None),
            ),
            models.UniqueConstraint(
                name="stocktake_once_a_location", fields=("product", "location", "reference")
            ),
            models.CheckConstraint(name="stocktake_has_reason", condition=~Q(reason="")),
        )

    def __str__(self) -> str:
        return f"{self.counted} × {self.product_id} ({self.reference})"


class StockReservation(models.Model):
    """So many units of one product promised to one basket until a moment.

    While it is live its units are counted in the product's `reserved`. It ends once: used by an order,
    released by its customer, or expired.
    """

    class State(models.TextChoices):
        """What became of it."""

        LIVE = "live", _("live")
        USED = "used", _("used")
        RELEASED = "released", _("released")
        EXPIRED = "expired", _("expired")

    basket = models.UUIDField(
        _("basket"), default=uuid.uuid4, editable=False, help_text=_("Products reserved together share it.")
    )
    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="reservations", verbose_name=_("product")
    )
    quantity = models.PositiveIntegerField(_("quantity"))
    customer = models.CharField(_("customer"), max_length=100, blank=True, default="")
    scope = models.CharField(
        _("scope"),
        max_length=100,
        blank=True,
        default="",
        db_default="",
        help_text=_("The authenticated caller whose reservation it is; empty: anybody's who knows its id."),
    )
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.LIVE)
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        ordering = ("-created_at", "-pk")
        verbose_name = _("reservation")
        verbose_name_plural = _("reservations")
        indexes = (
            models.Index(fields=("expires_at",), condition=Q(state="live"), name="reservation_live_by_end"),
        )
        constraints = (
            models.UniqueConstraint(name="reservation_product_once_a_basket", fields=("basket", "product")),
            models.CheckConstraint(name="reservation_quantity_positive", condition=Q(quantity__gt=0)),
            models.CheckConstraint(
                name="reservation_state_is_known",
                condition=Q(state__in=("live", "used", "released", "expired")),
            ),
        )

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product_id} ({self.state})"


class CustomerPurchase(models.Model):
    """How many units of a product one customer has: bought, returns taken off, and reserved."""

    customer = models.CharField(_("customer"), max_length=100)
    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="purchases", verbose_name=_("product")
    )
    units = models.PositiveIntegerField(_("units"))
    reserved = models.PositiveIntegerField(
        _("reserved"), default=0, db_default=0, help_text=_("Units of live reservations.")
    )

    class Meta:
        ordering = ("customer", "pk")
        verbose_name = _("customer's purchases")
        verbose_name_plural = _("customers' purchases")
        constraints = (
            models.UniqueConstraint(name="purchase_once_a_customer", fields=("customer", "product")),
            models.CheckConstraint(name="purchase_has_customer", condition=~Q(customer="")),
        )

    def __str__(self) -> str:
        return f"{self.customer}: {self.units}+{self.reserved} × {self.product_id}"
