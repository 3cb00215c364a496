"""The lesson's own shop, product, order and order item; what single strategies need; the runs of the lab."""

from __future__ import annotations

import secrets
import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

from django.db import models
from django.db.models import F, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

GUARD = "lab_on_hand_not_negative"
KEPT = 50
"""Runs whose events are kept."""

LONGEST = timedelta(minutes=20)
"""No run goes on for so long: one that has no end by then died with its server."""


class ProductQuerySet(models.QuerySet["Product"]):
    """Products."""

    def with_left(self) -> models.QuerySet[Any]:
        """Annotate `left`: the units of the row itself, of its segments and of its unit rows."""
        segments, units = _total(StockSegment, models.Sum("units")), _total(StockUnit, models.Count("*"))
        return self.annotate(left=F("on_hand") + segments + units)


def _total(parts: type[models.Model], total: models.Aggregate) -> Coalesce:
    rows = parts._default_manager.filter(product=OuterRef("pk")).order_by().values("product")
    return Coalesce(Subquery(rows.annotate(total=total).values("total")), 0)


class Product(models.Model):
    """Something that there is a number of. Without the guard its stock may fall below zero."""

    sku = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=200)
    price = models.DecimalField(max_digits=10, decimal_places=2, default=Decimal("1.00"))
    on_hand = models.IntegerField(default=0)
    version = models.PositiveBigIntegerField(default=0, editable=False)
    guarded = models.BooleanField(default=True)

    objects = ProductQuerySet.as_manager()

    class Meta:
        constraints = (models.CheckConstraint(name=GUARD, condition=Q(guarded=False) | Q(on_hand__gte=0)),)

    def __str__(self) -> str:
        return self.sku


class Order(models.Model):
    """What one buyer bought."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    strategy = models.CharField(max_length=40)
    total = models.DecimalField(max_digits=12, decimal_places=2)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    def __str__(self) -> str:
        return str(self.pk)


class OrderItem(models.Model):
    """So many units of one product in an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="items")
    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="items")
    quantity = models.PositiveIntegerField()
    unit_price = models.DecimalField(max_digits=10, decimal_places=2)

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product_id}"


class NamedLock(models.Model):
    """A name that a transaction can lock: `lock_table` locks a row that stays, `unique_row` inserts one."""

    name = models.CharField(max_length=100, primary_key=True)

    def __str__(self) -> str:
        return self.name


class StockSegment(models.Model):
    """A part of a product's stock in a row of its own. These units are no longer in `Product.on_hand`."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="segments")
    number = models.PositiveSmallIntegerField()
    units = models.PositiveIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(name="lab_segment_once_per_product", fields=("product", "number")),
        )

    def __str__(self) -> str:
        return f"{self.product_id}/{self.number}: {self.units}"


class StockUnit(models.Model):
    """One unit of a product in a row of its own. It is no longer in `Product.on_hand`, and for sale."""

    product = models.ForeignKey(Product, on_delete=models.CASCADE, related_name="units")

    def __str__(self) -> str:
        return f"{self.product_id}#{self.pk}"


def new_id() -> str:
    """Return a name for a run that can't be guessed."""
    return secrets.token_hex(6)


class LabRunQuerySet(models.QuerySet["LabRun"]):
    """Runs."""

    def aged(self) -> Any:
        """Give each its `age` by the database's clock, which also dated it."""
        age = models.ExpressionWrapper(Now() - F("started_at"), models.DurationField())
        return self.annotate(age=age)


class LabRun(models.Model):
    """A race, a session of steps, or a vote."""

    class Kind(models.TextChoices):
        """What is run."""

        RACE = "race", _("race")
        STEPS = "steps", _("steps")
        VOTE = "vote", _("vote")

    id = models.CharField(primary_key=True, max_length=12, default=new_id, editable=False)
    kind = models.CharField(_("kind"), max_length=5, choices=Kind.choices)
    parameters = models.JSONField(_("parameters"))
    started_at = models.DateTimeField(_("started"), db_default=Now(), editable=False, db_index=True)
    ended_at = models.DateTimeField(_("ended"), null=True)

    objects = LabRunQuerySet.as_manager()

    class Meta:
        ordering = ("-started_at", "-pk")
        verbose_name = _("run of the lab")
        verbose_name_plural = _("runs of the lab")

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class LabEvent(models.Model):
    """Something that a run said to the page, or that a visitor said to the run."""

    class Sender(models.TextChoices):
        """Who said it."""

        RUN = "run", _("run")
        VISITOR = "visitor", _("visitor")

    run = models.ForeignKey(LabRun, on_delete=models.CASCADE, related_name="events", verbose_name=_("run"))
    sender = models.CharField(_("sender"), max_length=7, choices=Sender.choices)
    data = models.JSONField(_("data"))

    class Meta:
        ordering = ("pk",)
        verbose_name = _("event of a run")
        verbose_name_plural = _("events of a run")

    def __str__(self) -> str:
        return f"{self.sender} {self.data}"


def forget_old_runs(keep: int = KEPT) -> None:
    """Delete all runs but the newest `keep` and those that go on, with their events."""
    newest = LabRun.objects.order_by("-started_at").values("pk")[:keep]
    old = LabRun.objects.exclude(pk__in=list(newest.values_list("pk", flat=True)))
    old.exclude(ended_at=None, started_at__gt=Now() - LONGEST).delete()
