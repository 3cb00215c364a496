"""On a filled database each public name reads by index: no plan goes through a table that grows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from benchmarks import inventory_growth as growth
from inventory import stock
from inventory.audit import audit
from inventory.models import Item, Movement

NAMES = [
    "available", "available of 50", "levels", "receive", "sell", "sell again", "sell too many", "reserve",
    "held", "held.extend", "held.sell", "held.release", "expire", "ship", "restock", "count",
    "adjust", "hold_back",
]  # fmt: skip


@pytest.fixture(scope="module")
def filled(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[None]:
    """20,000 items with 100,000 movements, for all tests here; rolled back."""
    with django_db_blocker.unblock(), transaction.atomic():  # type: ignore[attr-defined]
        growth.fill(connection, items=20_000, movements=100_000)
        growth.analyze(connection)
        yield
        transaction.set_rollback(True)


@pytest.mark.django_db
def test_a_plan_from_before_there_were_rows_reads_by_key_as_well() -> None:
    """PostgreSQL keeps a plan per connection: the first sale of a new shop is planned on empty tables."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    stock.receive("a", 5, cause="po-1")
    assert not growth.scanned(lambda: stock.sell({"a": 1}, cause="order-1"))
    stock.receive("b", 1, cause="po-2")
    assert not growth.scanned(lambda: stock.sell({"a": 1, "b": 1}, cause="order-2"))


@pytest.mark.django_db
def test_every_name_is_here(filled: None) -> None:
    assert [*growth.verbs(stock)] == [*NAMES, "audit of a range"]


@pytest.mark.django_db
@pytest.mark.parametrize("name", NAMES)
def test_no_plan_reads_a_growing_table_from_end_to_end(filled: None, name: str) -> None:
    call = growth.verbs(stock)[name]
    found = growth.plans(call)
    assert found
    for sql, plan in found:
        assert not growth.read_whole(plan), f"{sql}\n{plan}"
    assert not growth.scanned(call)


@pytest.mark.django_db
def test_what_is_for_sale_is_read_without_history(filled: None) -> None:
    """Overdue reservations are found by their index, not among all movements of an item."""
    for read in (lambda: stock.available("sku-7"), lambda: list(Item.objects.filter(available__gt=0)[:50])):
        [(_, plan)] = growth.plans(read)
        assert "inventory_reservation_due" in plan
        assert "inventory_movement_level" not in plan


@pytest.mark.django_db
def test_a_page_of_a_levels_history_is_read_in_the_order_of_an_index(filled: None) -> None:
    (level,) = stock.levels("sku-7")
    found = stock.adjust("sku-7", 1, cause="found")
    Movement.objects.bulk_create(
        Movement(entry_id=found.id, level=level, source=0, target=1, quantity=1) for _ in range(5000)
    )
    growth.analyze(connection)
    history = Movement.objects.filter(level=level.pk).order_by("-pk")
    [(_, plan)] = growth.plans(lambda: list(history[:100]))
    assert "inventory_movement_level" in plan
    assert "Sort" not in plan


@pytest.mark.django_db
def test_what_was_filled_adds_up(filled: None) -> None:
    assert audit(everything=True).differences == ()


@pytest.mark.django_db
def test_hot_rows_have_room_and_ended_reservations_are_vacuumed_soon() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, reloptions FROM pg_class "
            "WHERE relname IN ('inventory_level', 'inventory_reservation') ORDER BY relname"
        )
        assert cursor.fetchall() == [
            ("inventory_level", ["fillfactor=80"]),
            (
                "inventory_reservation",
                ["autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=20000"],
            ),
        ]
