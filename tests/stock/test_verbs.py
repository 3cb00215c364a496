"""Every verb, on each database: what it changes, what it refuses, and what a repeated call answers."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from uuid import UUID
from weakref import ref

import pytest
from django.db import connections, transaction

from inventory import CauseUsed, NotThere, ReservationGone, SoldOut, Stock, UnknownSku
from inventory.api import stock_of
from inventory.models import Entry, Item, Level, Movement, Reservation
from tests.stock.shop.models import Book, Order


def balances(stock: Stock, sku: str = "mug") -> tuple[int, int, int, int]:
    """Return what is available, reserved, committed and unavailable at the item's only level."""
    (level,) = stock.levels(sku)
    return level.available, level.reserved, level.committed, level.unavailable


def test_received_units_are_for_sale_once(stock: Stock) -> None:
    first = stock.receive("mug", 10, cause="po-1")
    again = stock.receive("mug", 10, cause="po-1")
    assert (stock.available("mug"), first.repeated, again.repeated, again.id) == (10, False, True, first.id)
    with pytest.raises(CauseUsed):
        stock.receive("mug", 11, cause="po-1")
    with pytest.raises(UnknownSku):
        stock.available("pen")


def test_a_sale_takes_all_lines_or_none(stock: Stock) -> None:
    stock.receive({"mug": 3, "pen": 1}, cause="po-1")
    with pytest.raises(SoldOut) as refused:
        stock.sell({"mug": 2, "pen": 2}, cause="o-1")
    assert refused.value.shortages == (("pen", 2, 1),)
    assert stock.available(["mug", "pen"]) == {"mug": 3, "pen": 1}
    stock.sell({"mug": 2, "pen": 1}, cause="o-1")
    assert stock.available(["mug", "pen"]) == {"mug": 1, "pen": 0}
    assert balances(stock) == (1, 0, 2, 0)


def test_a_sale_rolls_back_with_its_transaction(stock: Stock, using: str) -> None:
    stock.receive("mug", 3, cause="po-1")
    with pytest.raises(ZeroDivisionError), transaction.atomic(using=using):
        stock.sell({"mug": 2}, cause="o-1")
        raise ZeroDivisionError
    assert balances(stock) == (3, 0, 0, 0)
    assert not Entry.objects.using(using).filter(cause="o-1").exists()


def test_a_refused_sale_leaves_the_callers_transaction_usable(stock: Stock, using: str) -> None:
    stock.receive("mug", 1, cause="po-1")
    with transaction.atomic(using=using):
        with pytest.raises(SoldOut):
            stock.sell({"mug": 2}, cause="o-1")
        with pytest.raises(UnknownSku):
            stock.sell({"pen": 2}, cause="o-1")
        stock.sell({"mug": 1}, cause="o-1")
    assert balances(stock) == (0, 0, 1, 0)


def test_a_repeated_sale_answers_as_the_first(stock: Stock) -> None:
    stock.receive("mug", 2, cause="po-1")
    first = stock.sell({"mug": 2}, cause="o-1")
    again = stock.sell({"mug": 2}, cause="o-1")
    assert (again.id, again.repeated, stock.available("mug")) == (first.id, True, 0)
    with pytest.raises(CauseUsed):
        stock.sell({"mug": 1}, cause="o-1")


def test_causes_and_skus_differ_by_case_accents_and_spaces(stock: Stock) -> None:
    for number, sku in enumerate(("mug", "Mug", "müg"), start=1):
        stock.receive(sku, number, cause="po-" + sku)
    assert stock.available(["mug", "Mug", "müg"]) == {"mug": 1, "Mug": 2, "müg": 3}
    for cause in ("o", "O", "ö", "o "):
        assert not stock.receive("mug", 1, cause=cause).repeated
    assert stock.available("mug") == 5


@pytest.mark.parametrize(
    "strategy", ["conditional_update", "write_first", "locked", "combined", "redis_gate"]
)
def test_each_strategy_sells_writes_and_repeats(committing: str, strategy: str) -> None:
    stock = Stock(database=committing, strategy=strategy)
    stock.receive("mug", 2, cause="po-1")

    def place(lines: object) -> Order:
        return Order.objects.using(committing).create(reference=f"{lines.cause}")  # type: ignore[attr-defined]

    order = stock.sell({"mug": 1}, cause="o-1", write=place)
    assert stock.sell({"mug": 1}, cause="o-1", write=place) == order
    with pytest.raises(SoldOut):
        stock.sell({"mug": 2}, cause="o-2", write=place)
    with pytest.raises(ZeroDivisionError):
        stock.sell({"mug": 1}, cause="o-3", write=lambda lines: 1 / 0)
    stock.sell({"mug": 1}, cause="o-4", write_many=lambda many: [place(lines) for lines in many])
    assert [each.reference for each in Order.objects.using(committing).order_by("pk")] == ["o-1", "o-4"]
    assert balances(stock) == (0, 0, 2, 0)


def test_a_reservation_is_sold(stock: Stock) -> None:
    stock.receive("mug", 5, cause="po-1")
    held = stock.reserve({"mug": 2}, seconds=900, reference="cart-1")
    assert balances(stock) == (3, 2, 0, 0)
    assert held.extend(1000).expires_at > held.expires_at
    assert held.extend(10).expires_at > held.expires_at
    first, again = held.sell(cause="o-1"), held.sell(cause="o-1")
    assert (first.id, again.repeated, stock.held(held.id).state) == (again.id, True, "sold")
    assert balances(stock) == (3, 0, 2, 0)
    with pytest.raises(ReservationGone):
        held.release()
    with pytest.raises(ReservationGone):
        held.extend(10)


def test_a_reservation_is_released_once(stock: Stock) -> None:
    stock.receive("mug", 5, cause="po-1")
    held = stock.reserve({"mug": 2}, seconds=900)
    held.release()
    held.release()
    assert balances(stock) == (5, 0, 0, 0)
    with pytest.raises(ReservationGone):
        held.sell(cause="o-1")


def test_a_repeated_reservation_is_the_same(stock: Stock, using: str) -> None:
    stock.receive("mug", 5, cause="po-1")
    first = stock.reserve({"mug": 2}, seconds=900, cause="cart-1")
    again = stock.reserve({"mug": 2}, seconds=900, cause="cart-1")
    assert (first.id, Reservation.objects.using(using).count()) == (again.id, 1)


def test_overdue_units_are_sold_to_others(stock: Stock, using: str) -> None:
    stock.receive("mug", 5, cause="po-1")
    held = stock.reserve({"mug": 3}, seconds=900)
    overdue(held.id, using)
    assert stock.held(held.id).state == "expired"
    stock.sell({"mug": 4}, cause="o-1")
    assert balances(stock) == (1, 0, 4, 0)
    with pytest.raises(ReservationGone):
        held.sell(cause="o-2")


def overdue(id: UUID, using: str) -> None:
    """Turn a reservation's clock on."""

    Reservation.objects.using(using).filter(pk=id).update(expires_at=datetime(2020, 1, 1, tzinfo=UTC))


def test_overdue_units_count_as_available_wherever_it_is_read(stock: Stock, using: str) -> None:
    """A look at the stock doesn't wait for the sweep, and a row says what the verb says."""
    book = Book.objects.using(using).create(title="Emma")
    sku = book.stock.sku
    stock.receive(sku, 3, cause="in")
    overdue(stock.reserve({sku: 1}, seconds=900).id, using)
    stock.reserve({sku: 1}, seconds=900)
    assert stock.available(sku) == 2
    assert Item.objects.using(using).get(sku=sku).available == 2
    (listed,) = Book.objects.using(using).select_related("stock").filter(stock__available=2)
    assert listed.stock.available == 2
    level = Level.objects.using(using).get()
    level.safety_stock = 2
    level.save(using=using)
    assert (stock.available(sku), Item.objects.using(using).get(sku=sku).available) == (0, 0)
    with pytest.raises(SoldOut):
        stock.sell({sku: 1}, cause="o-1")


def test_a_sale_is_shipped_cancelled_and_comes_back(stock: Stock) -> None:
    stock.receive("mug", 10, cause="po-1")
    stock.sell({"mug": 5}, cause="o-1")
    stock.ship({"mug": 2}, cause="p-1", of="o-1")
    assert stock.ship({"mug": 2}, cause="p-1", of="o-1").repeated
    assert balances(stock) == (5, 0, 3, 0)
    with pytest.raises(NotThere):
        stock.ship({"mug": 4}, cause="p-2", of="o-1")
    stock.cancel({"mug": 1}, cause="c-1", of="o-1")
    stock.restock("mug", 1, cause="r-1", of="o-1")
    stock.restock("mug", 1, cause="r-2", of="o-1", damaged=True)
    with pytest.raises(NotThere):
        stock.restock("mug", 1, cause="r-3", of="o-1")
    stock.ship(cause="p-3", of="o-1")
    assert balances(stock) == (7, 0, 0, 1)


def test_units_are_counted_adjusted_moved_and_held_back(stock: Stock) -> None:
    stock.receive("mug", 10, cause="po-1")
    stock.sell({"mug": 4}, cause="o-1")
    stock.count("mug", 9, cause="k-1")
    assert balances(stock) == (5, 0, 4, 0)
    with pytest.raises(NotThere):
        stock.count("mug", 3, cause="k-2")
    stock.adjust("mug", -1, cause="b-1")
    stock.adjust("mug", -1, cause="b-2", of="o-1")
    assert balances(stock) == (4, 0, 3, 0)
    stock.hold_back({"mug": 2}, cause="h-1")
    stock.hold_back({"mug": 1}, cause="h-2", undo=True)
    assert balances(stock) == (3, 0, 3, 1)
    stock.move({"mug": 3}, cause="m-1", source="default", target="shop")
    assert (stock.available("mug"), stock.available("mug", location="shop")) == (3, 3)
    with pytest.raises(NotThere):
        stock.move({"mug": 1}, cause="m-2", source="default", target="shop")


def test_a_backorder_limit_is_sold_and_no_more(stock: Stock, using: str) -> None:
    stock.receive("mug", 1, cause="po-1")
    level = Level.objects.using(using).get()
    level.backorder_limit = 3
    level.save(using=using)
    stock.sell({"mug": 4}, cause="o-1")
    with pytest.raises(SoldOut):
        stock.sell({"mug": 1}, cause="o-2")
    assert balances(stock) == (-3, 0, 4, 0)
    stock.receive("mug", 5, cause="po-2")
    assert stock.available("mug") == 5


def test_a_bundle_takes_all_its_parts_or_none(stock: Stock) -> None:
    stock.receive({"mug": 5, "tea": 2}, cause="po-1")
    stock.bundle("set", {"mug": 2, "tea": 1})
    assert stock.available("set") == 2
    assert Item.objects.using(stock.using).get(sku="set").available == 2
    stock.sell({"set": 1, "mug": 2}, cause="o-1")
    assert stock.available(["mug", "tea", "set"]) == {"mug": 1, "tea": 1, "set": 0}
    with pytest.raises(SoldOut):
        stock.sell({"set": 1}, cause="o-2")


def test_a_model_has_stock_of_its_own(stock: Stock, using: str) -> None:
    book = Book.objects.using(using).create(title="Emma")
    stock.receive(book.stock.sku, 5, cause="po-1")
    book.stock.sell(2, cause="o-1")
    (listed,) = Book.objects.using(using).select_related("stock").filter(stock__available__gt=2)
    assert listed.stock.available == 3
    assert not Book.objects.using(using).filter(stock__available__gt=3)
    Book.objects.using(using).create(title="Persuasion").delete(using=using)
    assert [each.sku for each in Item.objects.using(using).all()] == [book.stock.sku]


def test_the_ledger_has_each_change_once(stock: Stock, using: str) -> None:
    stock.receive("mug", 5, cause="po-1")
    stock.sell({"mug": 2}, cause="o-1", actor="ann")
    entry = Entry.objects.using(using).get(cause="o-1")
    assert (entry.kind, entry.actor, entry.created_at.tzinfo is not None) == (Entry.Kind.SELL, "ann", True)
    (movement,) = Movement.objects.using(using).filter(entry=entry)
    assert (movement.source, movement.target, movement.quantity) == (1, 3, 2)


def test_deadlines_are_in_utc_whatever_the_servers_time_zone(stock: Stock, using: str) -> None:
    if connections[using].vendor != "sqlite":
        with connections[using].cursor() as cursor:
            cursor.execute("SET time_zone = '+05:00'" if using == "mariadb" else "SET TIME ZONE '+05:00'")
    stock.receive("mug", 1, cause="po-1")
    held = stock.reserve({"mug": 1}, seconds=900)
    left = held.expires_at - datetime.now(UTC)
    assert timedelta(minutes=10) < left < timedelta(minutes=20)
    made = Entry.objects.using(using).get(cause="po-1").created_at
    assert abs(made - datetime.now(UTC)) < timedelta(minutes=5)
    assert (held.state, stock.available("mug")) == ("live", 0)
    if using == "mariadb":
        with connections[using].cursor() as cursor:
            cursor.execute("SET time_zone = DEFAULT")


def test_rows_of_one_database_share_its_stock() -> None:
    """A call on a row makes no stock of its own, and nothing keeps a stock that is no longer used."""
    assert stock_of("sqlite") is stock_of("sqlite")
    unused = ref(Stock(database="sqlite"))
    gc.collect()
    assert unused() is None
