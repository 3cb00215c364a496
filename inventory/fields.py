"""A field that gives any model stock, and the column by which it can be listed and filtered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.core import checks
from django.db import models, router
from django.db.models.expressions import Col
from django.db.models.signals import post_delete, pre_delete, pre_save

from inventory.apps import installed_label

if TYPE_CHECKING:
    from inventory.models import Item

FOR_SALE = """
(SELECT COALESCE(MIN(FLOOR((
    SELECT COALESCE(SUM({greatest}(0, sl.available + sl.backorder_limit - sl.safety_stock +
             CASE WHEN sl.reserved = 0 THEN 0 ELSE (
               SELECT COALESCE(SUM(sm.quantity), 0)
                 FROM inventory_reservation sr JOIN inventory_movement sm ON sm.entry_id = sr.entry_id
                WHERE sm.level_id = sl.id AND sr.state = 'live' AND sr.expires_at <= {now}) END)), 0)
      FROM inventory_level sl JOIN inventory_location so ON so.id = sl.location_id
     WHERE sl.item_id = COALESCE(sp.part_id, si.id) AND so.active AND {place}
   ) / COALESCE(sp.quantity, 1))), 0)
   FROM inventory_item si LEFT JOIN inventory_component sp ON sp.item_id = si.id WHERE si.id = {item})
"""
"""Units of an item that are for sale: the one rule, by which rows are read, listed and filtered.

Those at active locations, less what is kept back, and what may be sold before it comes in. What was promised
until now is for sale again, whether it was swept or not: the next sale that needs it ends the reservation. A
bundle is for sale as often as its scarcest part allows.
"""

_WORDS = {
    "postgresql": {"greatest": "GREATEST", "now": "statement_timestamp()"},
    "mysql": {"greatest": "GREATEST", "now": "UTC_TIMESTAMP(6)"},
    "sqlite": {"greatest": "MAX", "now": "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"},
}


def for_sale(item: str, vendor: str, location: int | None = None) -> str:
    """Return the SQL for what is for sale of `item`, a column; at one location or at all."""
    place = "1 = 1" if location is None else f"so.id = {int(location)}"
    return FOR_SALE.format(item=item, place=place, **_WORDS[vendor]).strip()


class _ForSale(Col):
    """Reads as a column of the item and is computed from its levels."""

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[()]]:
        """Write it as a subquery: a few index look-ups per row that is read."""
        quote = connection.ops.quote_name
        return for_sale(f"{quote(self.alias)}.{quote('id')}", connection.vendor), ()


class AvailableField(models.BigIntegerField):  # type: ignore[type-arg]  # not generic at run time
    """Units for sale, computed by the database whenever an item is read; it has no column of its own.

    So that `select_related("stock")` brings it along, and `filter(stock__available__gt=0)` works.
    """

    generated = True  # Django leaves such fields out of INSERT and UPDATE
    db_returning = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs |= {"editable": False, "serialize": False, "blank": True, "default": 0}
        super().__init__(*args, **kwargs)

    def db_type(self, connection: Any) -> None:
        """Return None: migrations make no column."""

    def from_db_value(self, value: Any, *_: Any) -> int:
        """Return a whole number: PostgreSQL sums up to a Decimal."""
        return int(value)

    def get_col(self, alias: str, output_field: models.Field[Any, Any] | None = None) -> Col:
        """Return the computation where Django wants the column."""
        return _ForSale(alias, self, output_field)

    def deconstruct(self) -> Any:
        """Leave out what `__init__` sets."""
        name, path, args, kwargs = super().deconstruct()
        for key in ("editable", "serialize", "blank", "default"):
            kwargs.pop(key, None)
        return name, path, args, kwargs


class StockField(models.OneToOneField[Any, Any]):
    """Give each row of a model stock of its own: `book.stock.available`, `book.stock.sell(2, cause=…)`.

    The item is made when the row is first saved. A row whose item has a history can't be deleted; one whose
    item has none takes it along.

    Args:
        sku: the field of the model whose value is the SKU; None: a SKU is made.

    Example:
        >>> class Book(models.Model):  # doctest: +SKIP
        ...     isbn = models.CharField(max_length=13, unique=True)
        ...     stock = StockField(sku="isbn")
    """

    def __init__(self, to: Any = "inventory.Item", *, sku: str | None = None, **kwargs: Any) -> None:
        self.sku = sku
        if isinstance(to, str) and to.lower() == "inventory.item":
            to = f"{installed_label()}.Item"
        kwargs.setdefault("on_delete", models.PROTECT)
        kwargs.setdefault("related_name", "%(app_label)s_%(class)s")
        kwargs.setdefault("editable", False)
        super().__init__(to, **kwargs)

    def deconstruct(self) -> Any:
        """Keep `sku`."""
        name, path, args, kwargs = super().deconstruct()
        kwargs.pop("unique", None)
        if self.sku is not None:
            kwargs["sku"] = self.sku
        return name, path, args, kwargs

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Refuse the name of a field that the model doesn't have."""
        errors = super().check(**kwargs)
        known = {field.name for field in self.model._meta.get_fields()}
        if self.sku is not None and self.sku not in known:
            errors.append(
                checks.Error(
                    f"StockField(sku={self.sku!r}): {self.model.__name__} has no field {self.sku!r}.",
                    hint="Name the field that holds the SKU, or leave sku out and one is made.",
                    obj=self,
                    id="inventory.E010",
                )
            )
        return errors

    def contribute_to_class(
        self, cls: type[models.Model], name: str, private_only: bool = False, **kwargs: Any
    ) -> None:
        """Make the item where a row is saved, and look after it when the row is deleted."""
        super().contribute_to_class(cls, name, private_only=private_only, **kwargs)
        if not cls._meta.abstract:
            pre_save.connect(self._note_database, sender=cls, weak=False)
            pre_delete.connect(self._refuse_with_history, sender=cls, weak=False)
            post_delete.connect(self._delete_item, sender=cls, weak=False)

    def pre_save(self, instance: models.Model, add: bool) -> Any:
        """Make the item of a new row, in the row's transaction."""
        if getattr(instance, self.attname) is None:
            setattr(instance, self.name, self._make_item(instance))
        return super().pre_save(instance, add)

    def _note_database(self, instance: models.Model, using: str, **_: object) -> None:
        # A field doesn't know where its row is saved, and a new row doesn't say it either.
        if getattr(instance, self.attname) is None:
            instance.__dict__["_stock_database"] = using

    def _make_item(self, instance: models.Model) -> Item:
        from inventory.lines import check_sku
        from inventory.models import Item

        given = getattr(instance, self.sku) if self.sku else f"{instance._meta.model_name}-{uuid4().hex[:12]}"
        noted = instance.__dict__.pop("_stock_database", None)  # bulk_create sends no signal
        using = noted or router.db_for_write(Item, instance=instance)
        return Item.objects.using(using).defer("available").get_or_create(sku=check_sku(given))[0]

    def _refuse_with_history(self, instance: models.Model, using: str, **_: object) -> None:
        from inventory.models import Movement

        item_id = getattr(instance, self.attname)
        if item_id and Movement.objects.using(using).filter(level__item_id=item_id).exists():
            raise models.ProtectedError(
                f"{instance} can't be deleted: its stock has a history, which is kept. "
                f"Take it off sale instead, for example by a field of your model.",
                {instance},
            )

    def _delete_item(self, instance: models.Model, using: str, **_: object) -> None:
        from inventory.models import Item, Level

        item_id = getattr(instance, self.attname)
        if item_id:
            Level.objects.using(using).filter(item_id=item_id).delete()
            Item.objects.using(using).filter(pk=item_id).delete()
