"""Items, where their units are, and the ledger of every change.

A level's balances are sums of its movements. Inserting movements changes them, by a trigger in the database;
nothing else can (`inventory/sql`). So no save of a stale copy, no bulk update and no raw SQL ever brings
units in or loses any.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, Never

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from inventory.clock import Now
from inventory.exceptions import InventoryError
from inventory.fields import AvailableField, StockField
from inventory.lines import MAX_CAUSE, MAX_SKU

__all__ = [
    "Audit",
    "Component",
    "Count",
    "Entry",
    "Item",
    "Level",
    "Location",
    "Movement",
    "Reservation",
    "State",
    "StockField",
]

BALANCES: Final = ("available", "reserved", "committed", "unavailable")
"""The columns of a level that only movements change."""


class ReadOnlyLedger(InventoryError):
    """The ledger is added to, never changed: post an entry that corrects the wrong one."""


class State(models.IntegerChoices):
    """Where units are. A movement takes them from one state to another."""

    OUTSIDE = 0, _("outside")
    AVAILABLE = 1, _("available")
    RESERVED = 2, _("reserved")
    COMMITTED = 3, _("committed")
    UNAVAILABLE = 4, _("unavailable")


class Item(models.Model):
    """Something that is kept in stock, known by its SKU. What it is called and costs is the catalog's."""

    sku = models.CharField(_("SKU"), max_length=MAX_SKU, unique=True)
    available = AvailableField(_("available"))

    class Meta:
        db_table = "inventory_item"
        ordering = ("sku",)
        verbose_name = _("item")
        verbose_name_plural = _("items")

    def __str__(self) -> str:
        return self.sku

    def receive(self, quantity: int, **kwargs: Any) -> Any:
        """Receive units of this item; see `inventory.api.Stock.receive`."""
        return self._stock.receive(self.sku, quantity, **kwargs)

    def sell(self, quantity: int, **kwargs: Any) -> Any:
        """Sell units of this item; see `inventory.api.Stock.sell`."""
        return self._stock.sell({self.sku: quantity}, **kwargs)

    def reserve(self, quantity: int, **kwargs: Any) -> Any:
        """Reserve units of this item; see `inventory.api.Stock.reserve`."""
        return self._stock.reserve({self.sku: quantity}, **kwargs)

    def restock(self, quantity: int, **kwargs: Any) -> Any:
        """Take units back for sale; see `inventory.api.Stock.restock`."""
        return self._stock.restock(self.sku, quantity, **kwargs)

    def count(self, counted: int, **kwargs: Any) -> Any:
        """Enter a count; see `inventory.api.Stock.count`."""
        return self._stock.count(self.sku, counted, **kwargs)

    def adjust(self, difference: int, **kwargs: Any) -> Any:
        """Correct the stock; see `inventory.api.Stock.adjust`."""
        return self._stock.adjust(self.sku, difference, **kwargs)

    @property
    def _stock(self) -> Any:
        from inventory.api import stock_of

        return stock_of(self._state.db)


class Component(models.Model):
    """Selling `item` takes `quantity` units of `part`: a bundle, or a quota that several items share."""

    item = models.ForeignKey(
        Item, on_delete=models.CASCADE, related_name="components", verbose_name=_("item")
    )
    part = models.ForeignKey(Item, on_delete=models.PROTECT, related_name="part_of", verbose_name=_("part"))
    quantity = models.PositiveIntegerField(_("quantity"), default=1)

    class Meta:
        db_table = "inventory_component"
        verbose_name = _("component")
        verbose_name_plural = _("components")
        constraints = (
            models.UniqueConstraint(fields=("item", "part"), name="inventory_component_once"),
            models.CheckConstraint(condition=Q(quantity__gt=0), name="inventory_component_quantity"),
        )

    def __str__(self) -> str:
        return f"{self.quantity} × {self.part_id}"


class Location(models.Model):
    """A place that units are in. What is at an inactive one isn't for sale."""

    code = models.CharField(_("code"), max_length=64, unique=True)
    name = models.CharField(_("name"), max_length=200, blank=True, default="")
    priority = models.PositiveSmallIntegerField(
        _("priority"), default=0, help_text=_("Units are taken from the smallest number first.")
    )
    active = models.BooleanField(_("active"), default=True, help_text=_("Its units are for sale."))

    class Meta:
        db_table = "inventory_location"
        ordering = ("priority", "code")
        verbose_name = _("location")
        verbose_name_plural = _("locations")

    def __str__(self) -> str:
        return self.code


class Level(models.Model):
    """The units of one item at one location: the hot row. Only movements change its balances."""

    item = models.ForeignKey(
        Item, on_delete=models.PROTECT, related_name="levels", db_index=False, verbose_name=_("item")
    )
    location = models.ForeignKey(
        Location, on_delete=models.PROTECT, related_name="levels", verbose_name=_("location")
    )
    available = models.BigIntegerField(_("available"), default=0, editable=False)
    reserved = models.BigIntegerField(_("reserved"), default=0, editable=False)
    committed = models.BigIntegerField(
        _("committed"), default=0, editable=False, help_text=_("Sold, and not shipped yet.")
    )
    unavailable = models.BigIntegerField(
        _("unavailable"), default=0, editable=False, help_text=_("Damaged, in quality control or held back.")
    )
    # Signed, as the balances are: MySQL refuses to negate an unsigned number, or to go below 0 with one.
    backorder_limit = models.IntegerField(
        _("backorder limit"),
        default=0,
        validators=[MinValueValidator(0)],
        help_text=_("Units that may be sold before they come in."),
    )
    safety_stock = models.IntegerField(
        _("safety stock"),
        default=0,
        validators=[MinValueValidator(0)],
        help_text=_("Units that are kept back from sale."),
    )

    class Meta:
        db_table = "inventory_level"
        ordering = ("item", "location")
        verbose_name = _("level")
        verbose_name_plural = _("levels")
        constraints = (
            models.UniqueConstraint(fields=("item", "location"), name="inventory_level_once"),
            models.CheckConstraint(
                condition=Q(available__gte=-F("backorder_limit")), name="inventory_level_available"
            ),
            models.CheckConstraint(
                condition=Q(reserved__gte=0, committed__gte=0, unavailable__gte=0),
                name="inventory_level_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(backorder_limit__gte=0, safety_stock__gte=0), name="inventory_level_limits"
            ),
        )

    def __str__(self) -> str:
        return f"{self.item} @ {self.location}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write the limits; leave out the balances, which this copy may know from a while ago."""
        if not self._state.adding and not args and kwargs.get("update_fields") is None:
            kwargs["update_fields"] = ("location", "backorder_limit", "safety_stock")
        super().save(*args, **kwargs)

    @property
    def for_sale(self) -> int:
        """Units that can be sold or reserved, if the location is active."""
        return max(0, self.available + self.backorder_limit - self.safety_stock)

    @property
    def on_hand(self) -> int:
        """Units that are at the location, whatever they are promised to."""
        return self.available + self.reserved + self.committed + self.unavailable


class LedgerQuerySet(models.QuerySet[Any]):
    """Read and insert; the database refuses the rest, and so does this, with a better text."""

    def update(self, **kwargs: Any) -> int:
        """Refuse."""
        _refuse("changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        """Refuse."""
        _refuse("deleted")


class LedgerRow(models.Model):
    """A row that is inserted once and never changed."""

    objects = LedgerQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Insert; refuse to change a row that is there."""
        if not self._state.adding:
            _refuse("changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refuse."""
        _refuse("deleted")


def _refuse(verb: str) -> Never:
    raise ReadOnlyLedger(
        f"a row of the ledger can't be {verb}; correct it by stock.adjust() or stock.count()"
    )


class Entry(LedgerRow):
    """One change of stock and its cause, which is unique: nothing counts twice."""

    class Kind(models.IntegerChoices):
        """What was done."""

        RECEIVE = 1, _("received")
        SELL = 2, _("sold")
        RESERVE = 3, _("reserved")
        RELEASE = 4, _("released")
        EXPIRE = 5, _("expired")
        SHIP = 6, _("shipped")
        CANCEL = 7, _("cancelled")
        RESTOCK = 8, _("restocked")
        ADJUST = 9, _("adjusted")
        COUNT = 10, _("counted")
        MOVE = 11, _("moved")
        HOLD = 12, _("held back")
        OPENING = 13, _("opening balance")

    cause = models.CharField(_("cause"), max_length=MAX_CAUSE)
    kind = models.PositiveSmallIntegerField(_("kind"), choices=Kind.choices)
    fingerprint = models.BigIntegerField(_("fingerprint"), default=0, editable=False)
    of = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="followed_by",
        db_index=False,
        verbose_name=_("of"),
        help_text=_("The sale or reservation that it continues."),
    )
    actor = models.CharField(_("actor"), max_length=150, blank=True, default="", db_default="")
    answer = models.JSONField(_("answer"), null=True, editable=False)
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False)

    class Meta:
        db_table = "inventory_entry"
        ordering = ("-pk",)
        verbose_name = _("entry")
        verbose_name_plural = _("entries")
        constraints = (
            # Not unique=True, which on PostgreSQL makes a second index for LIKE.
            models.UniqueConstraint(fields=("cause",), name="inventory_entry_cause_once"),
            models.CheckConstraint(condition=~Q(cause=""), name="inventory_entry_cause"),
        )

    def __str__(self) -> str:
        return self.cause


class Movement(LedgerRow):
    """So many units of a level that went from one state to another. Inserting it changes the balances."""

    entry = models.ForeignKey(
        Entry, on_delete=models.PROTECT, related_name="movements", verbose_name=_("entry")
    )
    level = models.ForeignKey(
        Level, on_delete=models.PROTECT, related_name="movements", db_index=False, verbose_name=_("level")
    )
    source = models.PositiveSmallIntegerField(_("from"), choices=State.choices)
    target = models.PositiveSmallIntegerField(_("to"), choices=State.choices)
    quantity = models.BigIntegerField(_("quantity"))

    class Meta:
        db_table = "inventory_movement"
        ordering = ("-pk",)
        verbose_name = _("movement")
        verbose_name_plural = _("movements")
        # In order: a page of a level's history, and a batch of the archive, read what they show.
        indexes = (models.Index(fields=("level", "id"), name="inventory_movement_level"),)
        constraints = (
            models.CheckConstraint(condition=Q(quantity__gt=0), name="inventory_movement_quantity"),
            models.CheckConstraint(
                condition=~Q(source=F("target")) & Q(source__lte=4, target__lte=4),
                name="inventory_movement_states",
            ),
        )

    def __str__(self) -> str:
        return f"{self.quantity}: {self.get_source_display()} → {self.get_target_display()}"


class Reservation(models.Model):
    """Units that are promised until a moment. Its lines are the movements of its entry.

    Partial indexes, by expiry of the live ones and by reference, are made by `inventory/sql`.
    """

    class State(models.TextChoices):
        """What became of it."""

        LIVE = "live", _("live")
        SOLD = "sold", _("sold")
        RELEASED = "released", _("released")
        EXPIRED = "expired", _("expired")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    entry = models.OneToOneField(
        Entry, on_delete=models.PROTECT, related_name="reservation", verbose_name=_("entry")
    )
    reference = models.CharField(
        _("reference"), max_length=MAX_CAUSE, blank=True, default="", help_text=_("The caller's own.")
    )
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.LIVE)
    expires_at = models.DateTimeField(_("expires"))
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False)

    class Meta:
        db_table = "inventory_reservation"
        ordering = ("-created_at",)
        verbose_name = _("reservation")
        verbose_name_plural = _("reservations")

    def __str__(self) -> str:
        return str(self.reference or self.id)


class Count(models.Model):
    """What was counted at a location, and what the ledger expected there."""

    entry = models.OneToOneField(
        Entry, on_delete=models.PROTECT, related_name="counted", verbose_name=_("entry")
    )
    level = models.ForeignKey(Level, on_delete=models.PROTECT, related_name="counts", verbose_name=_("level"))
    counted = models.PositiveBigIntegerField(_("counted"))
    expected = models.BigIntegerField(_("expected"))

    class Meta:
        db_table = "inventory_count"
        ordering = ("-pk",)
        verbose_name = _("count")
        verbose_name_plural = _("counts")

    def __str__(self) -> str:
        return f"{self.counted} of {self.expected}"


class Audit(models.Model):
    """When balances were compared with the ledger, and up to which movement."""

    movement_id = models.BigIntegerField(_("last movement"), default=0)
    checked = models.PositiveBigIntegerField(_("levels"), default=0)
    differences = models.PositiveIntegerField(_("differences"), default=0)
    created_at = models.DateTimeField(_("created"), db_default=Now(), editable=False)

    class Meta:
        db_table = "inventory_audit"
        ordering = ("-pk",)
        verbose_name = _("audit")
        verbose_name_plural = _("audits")

    def __str__(self) -> str:
        return f"{self.differences} of {self.checked}"
