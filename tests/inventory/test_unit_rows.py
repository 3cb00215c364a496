"""One row per unit: taken beside each other, refilled from the product's row, claimed by the order."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction

from inventory.checkpoints import installed
from inventory.domain import LimitReached, Line, SoldOut
from inventory.models import Product, StockClaim, StockMovement, StockUnit
from inventory.reservations import reserve
from inventory.rows import lock_rows
from inventory.segments import levels
from inventory.services import change_stock
from inventory.strategies import Strategy, get_strategy
from inventory.strategies.unit_rows import UnitRows
from orders.audit import audit
from orders.services import checkout, checkout_reserved
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)


def buying(sku: str, quantity: int = 1):
    """Return what a buyer does."""
    return partial(checkout, [Line(sku, quantity)], "unit_rows")


def spread(on_hand: int) -> str:
    """Return the SKU of a product with `on_hand` units, of which one is sold and the others are rows."""
    sku: str = ProductFactory.create(on_hand=on_hand + 1).sku
    buying(sku)()
    return sku


LOCK_ONE = "SELECT id FROM inventory_stockunit LIMIT 1 FOR UPDATE"


def take_one(commit: bool) -> None:
    """Lock one unit's row in a transaction, stop there, and end it."""
    from inventory.checkpoints import checkpoint
    from inventory.rows import sale_transaction

    with sale_transaction(), connection.cursor() as cursor:
        cursor.execute(LOCK_ONE)
        checkpoint("locked")
        if not commit:
            raise InterruptedError


@pytest.mark.parametrize(("strategy", "claimed"), [("async_reserve", "committed"), ("unit_rows", "written")])
def test_a_refused_buyer_does_not_wait_for_the_row_of_its_claim_without_end(strategy, claimed, monkeypatch):
    """Somebody keeps the product's row: the buyer has its refusal, and the claim is left to reconcile."""
    monkeypatch.setattr(Strategy, "wait", 0.05)
    product = ProductFactory.create(on_hand=5)
    Product.objects.update(customer_limit=1)
    buy = partial(checkout, [Line(product.sku, 1)], strategy, customer="ann")
    buy()
    with buyers() as start:
        a = start("A", buy, claimed).reaches(claimed)
        with transaction.atomic():
            lock_rows([product.pk])
            assert isinstance(a.ends().error, LimitReached)
    assert get_strategy(strategy).reconcile(0).voided == 1
    assert totals_of(product.sku).left == 4


def test_buyers_of_one_product_do_not_wait_for_each_other():
    """While A holds a unit's row until its commit, B takes another and is served."""
    sku = spread(5)
    with buyers() as start:
        a = start("A", partial(take_one, True), "locked").reaches("locked")
        b = start("B", buying(sku))
        assert b.ends_or_waits() == "ended"
        assert b.outcome.error is None
        a.ends()
    assert (totals_of(sku).sold, totals_of(sku).left) == (2, 4)


def test_a_unit_that_another_gives_up_is_not_sold_out():
    """The last unit is locked by A, who gives it up: B waits in line instead of being refused."""
    sku = spread(1)
    with buyers() as start:
        a = start("A", partial(take_one, False), "locked").reaches("locked")
        b = start("B", buying(sku))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert b.ends().error is None
    assert totals_of(sku).left == 0


def test_a_refusal_without_the_line_is_found(monkeypatch):
    """Mutant: a buyer that finds no free row is refused at once; the unit that A gives up stays unsold."""

    def refuse(self, sale):
        raise SoldOut([])

    monkeypatch.setattr(UnitRows, "_reserve_in_line", refuse)
    sku = ProductFactory.create(on_hand=1).sku
    with pytest.raises(SoldOut):
        buying(sku)()
    assert totals_of(sku).left == 1


def test_no_more_rows_than_the_pool_are_made(monkeypatch):
    """A large stock keeps its rest in the product's row; a line beyond the pool is served all the same."""
    monkeypatch.setattr(UnitRows, "pool", 4)
    sku = ProductFactory.create(on_hand=20).sku
    buying(sku)()
    assert (StockUnit.objects.count(), Product.objects.get().on_hand) == (3, 16)
    buying(sku, 9)()
    assert totals_of(sku).left == 10
    buying(sku, 10)()
    with pytest.raises(SoldOut):
        buying(sku)()
    assert totals_of(sku).balanced


def test_the_claim_ends_with_the_order():
    """Between the two transactions the units are a claim, counted as neither free nor sold."""
    sku = spread(3)
    with buyers() as start:
        a = start("A", buying(sku, 2), "recorded").reaches("recorded")
        assert StockClaim.objects.get().quantity == 2
        assert levels(Product.objects.all()) == {sku: 1}
        assert audit() == []
        a.ends()
    assert not StockClaim.objects.exists()
    assert (totals_of(sku).sold, totals_of(sku).left) == (3, 1)


def test_a_cart_takes_all_of_its_units_or_none():
    """One line is short by the time of the taking: the other's rows stay where they are."""
    mug, pen = spread(2), spread(2)
    with pytest.raises(SoldOut) as refused:
        checkout([Line(mug, 2), Line(pen, 3)], "unit_rows")
    assert [(s.sku, s.available) for s in refused.value.shortages] == [(pen, 2)]
    assert (totals_of(mug).left, totals_of(pen).left) == (2, 2)


def test_unit_rows_are_found_by_all_others():
    """A reservation, a stock correction and another strategy get at units that lie in rows."""
    sku = spread(6)
    product = Product.objects.get()
    basket = reserve([Line(sku, 2)], MINUTE).basket
    buying(sku)()
    change_stock(product, StockMovement.Kind.ADJUSTED, -1, "breakage:1")
    with pytest.raises(IntegrityError):
        change_stock(product, StockMovement.Kind.ADJUSTED, -3, "breakage:2")
    buying(sku)()
    checkout_reserved(basket)
    get_strategy("unit_rows").forget([product])
    checkout([Line(sku, 1)], "row_lock")
    assert (totals_of(sku).left, totals_of(sku).balanced, audit()) == (0, True, [])


def test_units_that_were_reserved_are_not_refilled():
    """Three on hand, two reserved: one unit is for sale, and the promise stays covered."""
    product = ProductFactory.create(on_hand=3)
    reserve([Line(product.sku, 2)], MINUTE)
    buying(product.sku)()
    with pytest.raises(SoldOut):
        buying(product.sku)()
    assert Product.objects.get().on_hand == 2


def test_the_last_units_of_a_dead_buyer_are_busy_until_they_are_reconciled(monkeypatch, client, settings):
    """Neither sold out nor for sale, however often one asks; then the reconciler has them sold to it."""
    settings.CHECKOUT_STRATEGY = "unit_rows"
    ProductFactory.create(sku="last", on_hand=1)

    def die(name, /, **facts):
        if name == "recorded":
            raise KeyboardInterrupt

    monkeypatch.setattr("inventory.pending_claims.give_back", lambda sale, wait: False)
    with installed(die), pytest.raises(KeyboardInterrupt):
        checkout([Line("last", 1)], "unit_rows")
    monkeypatch.undo()

    def ask():
        body = {"lines": [{"sku": "last", "quantity": 1}]}
        headers = {"Idempotency-Key": "k"}
        return client.post("/checkout/", body, content_type="application/json", headers=headers)

    told = [ask().json()["type"] for _ in range(3)]
    assert told == ["/problems/#busy"] * 3
    assert UnitRows().reconcile(older_than=0).voided == 1
    assert ask().status_code == 201
