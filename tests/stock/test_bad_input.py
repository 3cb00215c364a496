"""What can't be is refused by name: before the database is asked, or with nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext

from inventory import InvalidLines, NotThere, SoldOut, Stock, TransactionError, UnknownLocation, UnknownSku
from inventory.lines import MAX_CAUSE, MAX_LINES, MAX_QUANTITY, MAX_SECONDS, MAX_SKU
from inventory.models import Entry, Location
from tests.stock.test_verbs import balances

Call = Callable[[Stock, Any], object]

BY_LINES: dict[str, Call] = {
    "receive": lambda stock, lines: stock.receive(lines, cause="x"),
    "sell": lambda stock, lines: stock.sell(lines, cause="x"),
    "sell, write=": lambda stock, lines: stock.sell(lines, cause="x", write=list),
    "reserve": lambda stock, lines: stock.reserve(lines, seconds=60),
    "restock": lambda stock, lines: stock.restock(lines, cause="x"),
    "ship": lambda stock, lines: stock.ship(lines, cause="x", of="o-1"),
    "cancel": lambda stock, lines: stock.cancel(lines, cause="x", of="o-1"),
    "move": lambda stock, lines: stock.move(lines, cause="x", source="default", target="shop"),
    "hold_back": lambda stock, lines: stock.hold_back(lines, cause="x"),
    "bundle": lambda stock, lines: stock.bundle("set", lines),
}

BAD_LINES: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "no lines"),
    "zero": ({"mug": 0}, "not 0"),
    "negative": ({"mug": -1}, "not -1"),
    "too large": ({"mug": MAX_QUANTITY + 1}, str(MAX_QUANTITY + 1)),
    "fractional": ({"mug": 1.5}, "not 1.5"),
    "a text": ({"mug": "2"}, "not '2'"),
    "a truth": ({"mug": True}, "not True"),
    "the same SKU twice": ([("mug", 1), ("mug", 2)], "'mug' is there twice"),
    "too many": ({f"mug-{no}": 1 for no in range(MAX_LINES + 1)}, "too many"),
    "no SKU": ({"": 1}, "1 to"),
    "a long SKU": ({"m" * (MAX_SKU + 1): 1}, f"not {MAX_SKU + 1}"),
    "a SKU with a NUL": ({"mug\0": 1}, "control characters"),
    "no lines at all": (17, "not 17"),
}


@pytest.mark.parametrize("verb", BY_LINES)
@pytest.mark.parametrize("lines", BAD_LINES)
@pytest.mark.django_db
def test_lines_that_cannot_be(verb: str, lines: str) -> None:
    value, said = BAD_LINES[lines]
    with CaptureQueriesContext(connections["default"]) as asked, pytest.raises(InvalidLines, match=said):
        BY_LINES[verb](Stock(), value)
    assert len(asked) == 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda stock: stock.sell({"mug": 1}, cause=""), "a cause is"),
        (lambda stock: stock.sell({"mug": 1}, cause="o" * (MAX_CAUSE + 1)), "a cause is"),
        (lambda stock: stock.sell({"mug": 1}, cause=None), "not None"),
        (lambda stock: stock.sell({"mug": 1}, cause="x", write="place"), "write is a function"),
        (lambda stock: stock.reserve({"mug": 1}, seconds=0), "not 0"),
        (lambda stock: stock.reserve({"mug": 1}, seconds=MAX_SECONDS + 1), "at most"),
        (lambda stock: stock.reserve({"mug": 1}, seconds=timedelta(seconds=-1)), "more than 0"),
        (lambda stock: stock.count("mug", -1, cause="x"), "not -1"),
        (lambda stock: stock.adjust("mug", 0, cause="x"), "not '0'"),
        (lambda stock: stock.move({"mug": 1}, cause="x", source="shop", target="shop"), "to itself"),
    ],
)  # fmt: skip
def test_other_arguments_that_cannot_be(stock: Stock, using: str, call: Any, said: str) -> None:
    stock.receive("mug", 3, cause="po-1")
    with pytest.raises(InvalidLines, match=said):
        call(stock)
    assert (balances(stock), Entry.objects.using(using).count()) == ((3, 0, 0, 0), 1)


def test_what_there_is_not_is_named(stock: Stock, using: str) -> None:
    stock.receive("mug", 3, cause="po-1")
    for call in (
        lambda: stock.sell({"mug": 1, "pen": 1}, cause="x"),
        lambda: stock.reserve({"mug": 1, "pen": 1}, seconds=60),
        lambda: stock.restock("pen", 1, cause="x"),
        lambda: stock.count("pen", 1, cause="x"),
        lambda: stock.adjust("pen", 1, cause="x"),
        lambda: stock.bundle("set", {"mug": 1, "pen": 1}),
    ):
        with pytest.raises(UnknownSku) as unknown:
            call()
        assert unknown.value.skus == ("pen",)
    for call in (
        lambda: stock.sell({"mug": 1}, cause="x", location="moon"),
        lambda: stock.available("mug", location="moon"),
        lambda: stock.count("mug", 1, cause="x", location="moon"),
    ):
        with pytest.raises(UnknownLocation, match="'moon'"):
            call()
    with pytest.raises(NotThere):
        stock.ship(cause="x", of="there was no such sale")
    assert (balances(stock), Entry.objects.using(using).count()) == ((3, 0, 0, 0), 1)


def test_a_strategy_that_leads_refuses_an_open_transaction(committing: str) -> None:
    stock = Stock(database=committing, strategy="combined")
    stock.receive("mug", 3, cause="po-1")
    with transaction.atomic(using=committing), pytest.raises(TransactionError, match="transaction"):
        stock.sell({"mug": 1}, cause="o-1", write=list)
    assert balances(stock) == (3, 0, 0, 0)


def test_what_is_at_several_locations_is_sold_and_shipped_together(stock: Stock) -> None:
    """A line larger than every location is one sale, and one parcel."""
    stock.receive("mug", 2, cause="po-1", location="berlin")
    stock.receive("mug", 2, cause="po-2", location="bremen")
    with pytest.raises(SoldOut) as short:
        stock.sell({"mug": 3}, cause="o-1", location="berlin")
    assert short.value.shortages == (("mug", 3, 2),)
    stock.sell({"mug": 3}, cause="o-2")
    stock.ship(cause="p-1", of="o-2")
    assert sorted(level.on_hand for level in stock.levels("mug")) == [0, 1]


def test_what_is_at_an_inactive_location_is_not_for_sale(stock: Stock, using: str) -> None:
    stock.receive("mug", 5, cause="po-1", location="closed")
    stock.receive("mug", 1, cause="po-2")
    Location.objects.using(using).filter(code="closed").update(active=False)
    assert (stock.available("mug"), stock.available("mug", location="closed")) == (1, 0)
    with pytest.raises(SoldOut) as short:
        stock.sell({"mug": 2}, cause="o-1")
    assert short.value.shortages == (("mug", 2, 1),)
    with pytest.raises(SoldOut):
        stock.reserve({"mug": 1}, seconds=60, location="closed")
