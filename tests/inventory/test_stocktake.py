"""A physical count: the shop's number becomes the counted one, and the ledger has the difference."""

from __future__ import annotations

import copy
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, transaction

from inventory.domain import Line, ReferenceUsed
from inventory.models import Product, StockMovement, Stocktake
from inventory.reservations import reserve
from inventory.services import change_stock
from inventory.stocktake import CountTooLow, take_stock, with_count
from inventory.strategies import STRATEGIES
from orders.audit import audit
from orders.services import checkout
from tests.factories import ProductFactory
from tests.inventory.interleaving import Outcome, buyers

pytestmark = pytest.mark.django_db(transaction=True)

SPREADING = ["row_lock", "segmented_rows", "segmented_locks", "unit_rows", "async_reserve"]


@pytest.fixture
def mug():
    """Ten mugs, of which three are sold and not shipped."""
    product = ProductFactory.create(sku="mug")
    checkout([Line("mug", 3)], "row_lock")
    return product


def in_building() -> int:
    """Return what a count must find."""
    return int(with_count(Product.objects.filter(sku="mug")).get().in_building)


def expected(outcome: Outcome) -> int:
    """Return what a count that ended well had expected."""
    assert isinstance(outcome.result, Stocktake)
    return outcome.result.expected


@pytest.mark.parametrize(("counted", "for_sale"), [(10, 7), (12, 9), (4, 1), (3, 0)])
def test_the_count_becomes_the_stock(mug, counted, for_sale):
    """Sold units are in the building, too: what was counted less three is for sale."""
    made = take_stock(mug, counted, reason="yearly", reference="2026")
    assert (made.counted, made.expected) == (counted, 10)
    assert (Product.objects.get().on_hand, in_building()) == (for_sale, counted)
    corrections = StockMovement.objects.filter(cause="stocktake:2026:mug").values_list("quantity", flat=True)
    assert list(corrections) == ([counted - 10] if counted != 10 else [])
    assert audit() == []


def test_the_same_count_twice_counts_once(mug):
    """A delivery comes in between the two: it isn't counted away."""
    take_stock(mug, 8, reason="yearly", reference="2026")
    change_stock(mug, StockMovement.Kind.RECEIVED, 5, "note:1")
    assert take_stock(mug, 8, reason="yearly", reference="2026").expected == 10
    assert (in_building(), Stocktake.objects.count()) == (13, 1)


def test_another_count_under_the_same_reference_is_refused(mug):
    """Counted again and found nine: it says so, instead of keeping the eight without a word."""
    take_stock(mug, 8, reason="yearly", reference="2026")
    with pytest.raises(ReferenceUsed, match="'2026': stands for a count of 8 already; nothing was done"):
        take_stock(mug, 9, reason="yearly", reference="2026")
    assert in_building() == 8


def test_a_count_below_what_is_promised_is_refused(mug):
    """Three are sold and two reserved: four counted can't be, and nothing is changed."""
    reserve([Line("mug", 2)], timedelta(minutes=1))
    with pytest.raises(
        CountTooLow,
        match="4 counted, and at least 5 must be there for what is sold but not shipped, or reserved",
    ) as refused:
        take_stock(mug, 4, reason="yearly", reference="2026")
    assert str(copy.copy(refused.value)) == str(refused.value)
    assert (in_building(), Stocktake.objects.count()) == (10, 0)
    take_stock(mug, 5, reason="yearly", reference="2026")
    assert audit() == []


@pytest.mark.parametrize(
    "given",
    [{"counted": -1}, {"counted": True}, {"counted": 2**31}, {"reason": " "}, {"reference": "a:b"}],
    ids=str,
)
def test_what_cannot_be_a_count(mug, given):
    """Value, reason and the way out are said, and nothing is changed."""
    with pytest.raises(ValueError, match=f"{next(iter(given))} .*must"):
        take_stock(mug, **({"counted": 1, "reason": "yearly", "reference": "2026"} | given))
    assert in_building() == 10


@pytest.mark.parametrize("strategy", SPREADING)
@pytest.mark.parametrize("stop", ["written", "recorded"])
def test_a_count_while_somebody_buys(strategy, stop):
    """Wherever the units of a sale lie at the moment, they are in the building; the sale is not disturbed."""
    product = ProductFactory.create(sku="mug", on_hand=20)
    checkout([Line("mug", 1)], strategy)
    with buyers() as start:
        a = start("A", partial(checkout, [Line("mug", 2)], strategy), stop).reaches(stop)
        count = start("count", partial(take_stock, product, 18, reason="yearly", reference="2026"))
        count.ends_or_waits()
        assert a.ends().error is None
        assert expected(count.ends()) == 20
    assert in_building() == 18
    STRATEGIES[strategy]().forget([product])
    assert (Product.objects.get().on_hand, audit()) == (15, [])


def test_of_two_counts_the_second_sees_the_first(mug):
    """Both count eight where ten are expected: two are corrected, not four."""
    with buyers() as start:
        count = partial(take_stock, mug, 8, reason="yearly")
        a = start("A", partial(count, reference="a"), "locked").reaches("locked")
        b = start("B", partial(count, reference="b"))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert expected(b.ends()) == 8
    assert in_building() == 8


def test_a_count_without_the_lock_is_found(mug, monkeypatch):
    """Mutant: without the product's lock both counts see ten, and four are corrected."""
    monkeypatch.setattr("inventory.stocktake.fold", lambda _: None)
    with buyers() as start:
        count = partial(take_stock, mug, 8, reason="yearly")
        a = start("A", partial(count, reference="a"), "decided").reaches("decided")
        assert start("B", partial(count, reference="b")).ends().error is None
        a.ends()
    assert in_building() == 6


def test_what_is_in_the_building_is_summed_up_without_the_sales(mug):
    """The partial index answers: a hot product's sales aren't read to show its count.

    The planner's statistics are taken in the transaction that asks: autovacuum's own can't come between.
    """
    sale = {"product": mug, "kind": StockMovement.Kind.SOLD, "quantity": -1}
    with transaction.atomic():
        StockMovement.objects.bulk_create(StockMovement(**sale, cause=f"sale:{n}") for n in range(2000))
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE inventory_stockmovement")
        plan = with_count(Product.objects.filter(pk=mug.pk)).explain()
        transaction.set_rollback(True)
    assert "movement_of_counted_units" in plan
