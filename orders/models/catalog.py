"""What is for sale, and how many units of it each customer has bought."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from inventory.fields import StockField
from orders.currencies import is_whole, written

SKU_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z"
"""Nothing that would need quoting in an address."""


def shop_currency() -> str:
    """Return the currency of new products, the setting CURRENCY."""
    return str(settings.CURRENCY)


class Product(models.Model):
    """Something for sale: what it is called and costs. How many there are is `stock`'s."""

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
        validators=[RegexValidator(r"^[A-Z]{3}\Z", _("Three capital letters, such as EUR"))],
        help_text=_("Of its price, by ISO 4217; an order has one."),
    )
    active = models.BooleanField(
        pgettext_lazy("product", "active"),
        default=True,
        db_default=True,
        help_text=_("It is for sale; otherwise orders are refused."),
    )
    customer_limit = models.PositiveIntegerField(
        _("limit per customer"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("Units that one customer may have in all; empty: as many as there are."),
    )
    low_stock_threshold = models.PositiveIntegerField(
        _("low-stock threshold"),
        null=True,
        blank=True,
        help_text=_("Publish an event when no more than this are for sale; empty: never."),
    )
    low_stock_since = models.DateTimeField(_("low since"), null=True, editable=False)
    sold_out_since = models.DateTimeField(_("sold out since"), null=True, editable=False)
    stock = StockField(sku="sku", related_name="product", verbose_name=_("stock"))

    class Meta:
        ordering = ("sku",)
        verbose_name = _("product")
        verbose_name_plural = _("products")
        indexes = (
            models.Index(
                fields=("id",), condition=Q(low_stock_threshold__isnull=False), name="product_with_threshold"
            ),
        )
        constraints = (
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
        """Units that can be sold or reserved; with `select_related("stock")` it asks for nothing."""
        return int(self.stock.available)

    @property
    def written_price(self) -> str:
        """Its price as people read it, without the currency's letters."""
        return written(self.price, self.currency)


class CustomerPurchase(models.Model):
    """How many units of a product one customer has bought, less those that went back."""

    customer = models.CharField(_("customer"), max_length=100)
    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="purchases", verbose_name=_("product")
    )
    units = models.PositiveIntegerField(_("units"))

    class Meta:
        ordering = ("customer", "pk")
        verbose_name = _("customer's purchases")
        verbose_name_plural = _("customers' purchases")
        constraints = (
            models.UniqueConstraint(name="purchase_once_a_customer", fields=("customer", "product")),
            models.CheckConstraint(name="purchase_has_customer", condition=~Q(customer="")),
        )

    def __str__(self) -> str:
        return f"{self.customer}: {self.units} × {self.product_id}"
