"""Tables that single strategies need beside the products: names to lock, stock in parts or units, claims."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class NamedLock(models.Model):
    """A name that a transaction can lock: `lock_table` locks a row that stays, `unique_row` inserts one."""

    name = models.CharField(_("name"), max_length=100, primary_key=True)

    class Meta:
        verbose_name = _("named lock")
        verbose_name_plural = _("named locks")

    def __str__(self) -> str:
        return self.name


class StockSegment(models.Model):
    """A part of a product's stock in a row of its own. These units are no longer in `Product.on_hand`."""

    product = models.ForeignKey(
        "inventory.Product", on_delete=models.CASCADE, related_name="segments", verbose_name=_("product")
    )
    number = models.PositiveSmallIntegerField(_("number"))
    units = models.PositiveIntegerField(_("units"))

    class Meta:
        ordering = ("product", "number")
        verbose_name = _("stock segment")
        verbose_name_plural = _("stock segments")
        constraints = (
            models.UniqueConstraint(name="segment_once_a_product", fields=("product", "number")),
            models.CheckConstraint(name="segment_units_not_negative", condition=Q(units__gte=0)),
        )

    def __str__(self) -> str:
        return f"{self.product_id}/{self.number}: {self.units}"


class StockUnit(models.Model):
    """One unit of a product in a row of its own. It is no longer in `Product.on_hand`, and for sale."""

    product = models.ForeignKey(
        "inventory.Product", on_delete=models.CASCADE, related_name="units", verbose_name=_("product")
    )

    class Meta:
        verbose_name = _("stock unit")
        verbose_name_plural = _("stock units")

    def __str__(self) -> str:
        return f"{self.product_id}#{self.pk}"


class StockClaim(models.Model):
    """Units that have left `Product.on_hand` for a sale whose order isn't committed yet."""

    sale = models.UUIDField(_("sale"))
    product = models.ForeignKey(
        "inventory.Product", on_delete=models.CASCADE, related_name="claims", verbose_name=_("product")
    )
    quantity = models.PositiveIntegerField(_("quantity"))
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False, db_index=True)

    class Meta:
        verbose_name = _("stock claim")
        verbose_name_plural = _("stock claims")
        constraints = (
            models.UniqueConstraint(name="claim_product_once_a_sale", fields=("sale", "product")),
            models.CheckConstraint(name="claim_quantity_positive", condition=Q(quantity__gt=0)),
        )

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product_id}"
