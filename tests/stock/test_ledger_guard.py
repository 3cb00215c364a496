"""Balances change by movements only, by any way of writing; the ledger is only added to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import F

from inventory import Stock
from inventory.models import Entry, Item, Level, Location, Movement
from inventory.models import ReadOnlyLedger as Refused

Write = Callable[[str], Any]


def stale_copy(using: str) -> None:
    """Save a copy that was read before units were sold."""
    copy = Level.objects.using(using).get()
    Stock(database=using).sell({"mug": 2}, cause="o-1")
    copy.backorder_limit = 1
    copy.save(using=using)


def stale_copy_with_all_fields(using: str) -> None:
    copy = Level.objects.using(using).get()
    Stock(database=using).sell({"mug": 2}, cause="o-1")
    copy.save(using=using, update_fields=["available", "committed"])


def bulk_update(using: str) -> None:
    level = Level.objects.using(using).get()
    level.available = 99
    Level.objects.using(using).bulk_update([level], ["available"])


def queryset_update(using: str) -> None:
    Level.objects.using(using).update(available=F("available") + 1)


def raw_update(using: str) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("UPDATE inventory_level SET reserved = reserved + 1")


def another_item(using: str) -> None:
    other = Item.objects.using(using).create(sku="pen")
    Level.objects.using(using).update(item=other)


def bulk_upsert(using: str) -> None:
    level = Level.objects.using(using).get()
    fields = {"unique_fields": ["item", "location"]} if connections[using].vendor != "mysql" else {}
    Level.objects.using(using).bulk_create(
        [Level(item=level.item, location=level.location, available=99)],
        update_conflicts=True,
        update_fields=["available"],
        **fields,  # type: ignore[arg-type]
    )


def replace(using: str) -> None:
    if connections[using].vendor == "postgresql":
        raise IntegrityError("PostgreSQL has no REPLACE")
    with connections[using].cursor() as cursor:
        cursor.execute("REPLACE INTO inventory_movement SELECT * FROM inventory_movement")


@pytest.fixture
def filled(stock: Stock) -> Stock:
    """Ten mugs."""
    stock.receive("mug", 10, cause="po-1")
    return stock


@pytest.mark.parametrize(
    "write",
    [
        stale_copy_with_all_fields,
        bulk_update,
        queryset_update,
        raw_update,
        another_item,
        bulk_upsert,
        replace,
    ],
)
def test_balances_that_anything_else_writes_are_refused(filled: Stock, using: str, write: Write) -> None:
    with pytest.raises(DatabaseError), transaction.atomic(using=using):
        write(using)
    (level,) = filled.levels("mug")
    assert (level.available, level.reserved, level.committed) == (10, 0, 0)


def test_saving_a_stale_copy_writes_the_limits_and_no_balance(filled: Stock, using: str) -> None:
    stale_copy(using)
    (level,) = filled.levels("mug")
    assert (level.available, level.committed, level.backorder_limit) == (8, 2, 1)


def test_a_level_begins_at_nought(stock: Stock, using: str) -> None:
    item = Item.objects.using(using).create(sku="mug")
    place = Location.objects.using(using).create(code="default")
    Level.objects.using(using).create(item=item, location=place, available=7, committed=1)
    assert [(level.available, level.committed) for level in stock.levels("mug")] == [(0, 0)]


@pytest.mark.parametrize(
    "write",
    [
        lambda using: Movement.objects.using(using).all()._raw_delete(using),
        lambda using: Entry._base_manager.using(using).filter(cause="po-1").update(kind=9),
        lambda using: Entry._base_manager.using(using).filter(cause="po-1").update(cause="other"),
        lambda using: Movement._base_manager.using(using).update(quantity=99),
        lambda using: Movement._base_manager.using(using).update(target=4),
        lambda using: Movement.objects.using(using).update(quantity=99),
        lambda using: Movement.objects.using(using).get().delete(),
        lambda using: Entry.objects.using(using).get().save(using=using),
    ],
)
def test_the_ledger_is_never_changed(filled: Stock, using: str, write: Write) -> None:
    with pytest.raises((DatabaseError, Refused)), transaction.atomic(using=using):
        write(using)
    assert filled.available("mug") == 10
    assert list(Movement.objects.using(using).values_list("quantity", "target")) == [(10, 1)]


def test_units_that_are_not_there_cannot_be_moved_past_the_verbs(filled: Stock, using: str) -> None:
    (level,) = filled.levels("mug")
    entry = Entry.objects.using(using).create(cause="by-hand", kind=Entry.Kind.SELL)
    with pytest.raises(DatabaseError), transaction.atomic(using=using):
        Movement.objects.using(using).create(entry=entry, level=level, source=1, target=3, quantity=11)
    Movement.objects.using(using).create(entry=entry, level=level, source=1, target=3, quantity=4)
    assert filled.available("mug") == 6  # a movement by hand is a change that the ledger knows


def test_a_failed_movement_opens_no_door(filled: Stock, using: str) -> None:
    test_units_that_are_not_there_cannot_be_moved_past_the_verbs(filled, using)
    with pytest.raises(DatabaseError), transaction.atomic(using=using):
        queryset_update(using)
    if connections[using].vendor != "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT count(*) FROM inventory_posting")
            assert cursor.fetchone() == (0,)


def test_limits_below_what_is_sold_are_refused(filled: Stock, using: str) -> None:
    Level.objects.using(using).update(backorder_limit=5)
    filled.sell({"mug": 14}, cause="o-1")
    with pytest.raises(IntegrityError), transaction.atomic(using=using):
        Level.objects.using(using).update(backorder_limit=3)


def test_flush_empties_the_ledger_and_closes_the_door(committing: str) -> None:
    stock = Stock(database=committing)
    for round_ in range(2):
        stock.receive("mug", 10, cause=f"po-{round_}")
        call_command(
            "flush", interactive=False, database=committing, verbosity=0, reset_sequences=bool(round_)
        )
        assert not Entry.objects.using(committing).exists()
    stock.receive("mug", 10, cause="po-1")
    with pytest.raises(DatabaseError), transaction.atomic(using=committing):
        Movement.objects.using(committing).all()._raw_delete(committing)
