"""A product may be sold before it comes in, as far as its limit goes, and is shipped when it is there."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse
from inventory.services import change_stock
from inventory.stocktake import take_stock, with_count

from inventory import Line, NotThere, SoldOut
from inventory.models import StockMovement
from inventory.strategies import STRATEGIES, get_strategy
from orders.after_sale.fulfillment import ship
from orders.after_sale.lifecycle import cancel, pay
from orders.audit import audit
from orders.models import Order, Product
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.reservations import reserve
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)

SOUND = [name for name, each in STRATEGIES.items() if each.sound and not each.unconfigured()]


@pytest.fixture
def mug():
    """Two mugs, and three more may be sold before they come."""
    product = ProductFactory.create(sku="mug", on_hand=2)
    Product.objects.update(backorder_limit=3)
    return product


def bought(quantity: int, strategy: str = "conditional_update") -> Order:
    """Return a paid order of mugs."""
    return pay(checkout([Line("mug", quantity)], strategy).pk)


def counted() -> tuple[int, int]:
    """Return the units for sale and those in the building."""
    row = with_count(Product.objects.filter(sku="mug")).get()
    return row.on_hand, row.in_building


@pytest.mark.parametrize("strategy", SOUND)
def test_every_strategy_sells_to_the_limit_and_not_beyond(mug, strategy):
    """Five of two: one by one, then none; the totals agree, and so they do when one is cancelled."""
    get_strategy(strategy).forget([mug])
    orders = [checkout([Line("mug", 1)], strategy) for _ in range(5)]
    with pytest.raises(SoldOut) as refused:
        checkout([Line("mug", 1)], strategy)
    assert refused.value.shortages[0].available == 0
    cancel(orders[0].pk)
    checkout([Line("mug", 1)], strategy)
    get_strategy(strategy).forget([mug])
    assert (counted(), audit()) == ((-3, 2), [])


@pytest.mark.parametrize("strategy", SOUND)
def test_a_line_beyond_stock_and_limit_is_refused_whole(mug, strategy):
    """Six of two and three: what could be had is told."""
    with pytest.raises(SoldOut) as refused:
        checkout([Line("mug", 6)], strategy)
    assert refused.value.shortages[0].available == 5
    checkout([Line("mug", 5)], strategy)


def test_two_buyers_of_the_last_one_on_order(mug):
    """B waits for A's commit, and is sold out."""
    checkout([Line("mug", 4)], "conditional_update")
    with buyers() as start:
        buy = partial(checkout, [Line("mug", 1)], "conditional_update")
        a = start("A", buy, "written").reaches("written")
        b = start("B", buy)
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, SoldOut)
    assert (counted(), audit()) == ((-3, 2), [])


def test_what_has_not_come_in_cannot_leave(mug):
    """Two of four leave; the others do after the delivery, and the count never falls below nothing."""
    order = bought(4)
    with pytest.raises(NotThere, match="4 are to leave, and only 2 are"):
        ship(order.pk, None, "all")
    ship(order.pk, [Line("mug", 2)], "first")
    assert counted() == (-2, 0)
    change_stock(mug, StockMovement.Kind.RECEIVED, 5, "note:1")
    assert ship(order.pk, None, "rest").state == "shipped"
    assert (counted(), audit()) == ((3, 3), [])


def test_a_correction_never_leaves_less_than_nothing_in_the_building(mug):
    """Two are there, and the limit would allow three to be missing: nobody can lose more than there is."""
    with pytest.raises(NotThere, match="3 are to leave, and only 2 are"):
        change_stock(mug, StockMovement.Kind.ADJUSTED, -3, "broken")
    assert (counted(), audit()) == ((2, 2), [])


def test_two_shipments_of_the_same_units(mug):
    """Both orders are of two, and two are there: the second waits, and nothing of it leaves."""
    orders = [bought(2), bought(2)]
    with buyers() as start:
        a = start("A", partial(ship, orders[0].pk, None, "a"), "written").reaches("written")
        b = start("B", partial(ship, orders[1].pk, None, "b"))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, NotThere)
    assert (counted(), audit()) == ((-2, 0), [])


def test_a_shipment_without_the_lock_is_found(mug, monkeypatch):
    """Mutant: without the product's lock both leave, and the count is below nothing."""
    monkeypatch.setattr("inventory.services.lock_rows", lambda _: None)
    orders = [bought(2), bought(2)]
    with buyers() as start:
        a = start("A", partial(ship, orders[0].pk, None, "a"), "written").reaches("written")
        start("B", partial(ship, orders[1].pk, None, "b")).ends()
        a.ends()
    assert counted()[1] == -2


def test_a_promise_may_be_on_order(mug):
    """Four are reserved of two; their order is placed, and the fifth is sold to somebody else."""
    basket = reserve([Line("mug", 4)], timedelta(minutes=1)).basket
    checkout([Line("mug", 1)], "conditional_update")
    with pytest.raises(SoldOut):
        checkout([Line("mug", 1)], "conditional_update")
    checkout_reserved(basket)
    assert (counted(), audit()) == ((-3, 2), [])


def test_a_count_may_leave_units_on_order(mug):
    """One is found where two must be, and four are sold: one more has to come in, and the limit allows it."""
    checkout([Line("mug", 4)], "conditional_update")
    take_stock(mug, 1, reason="yearly", reference="2026")
    assert (counted(), audit()) == ((-3, 1), [])


def limit_page(client: Client, limit: int) -> Any:
    """Return the answer to a product's form with another limit."""
    sent = {"name": "Mug", "price": "2.50", "currency": "EUR", "active": "on", "backorder_limit": str(limit)}
    sent |= {"movements-TOTAL_FORMS": "0", "movements-INITIAL_FORMS": "0"}
    return client.post(reverse("admin:inventory_product_change", args=[Product.objects.get().pk]), sent)


@pytest.mark.parametrize("strategy", ["segmented_rows", "unit_rows"])
def test_the_limit_is_lowered_though_the_units_lie_in_other_rows(mug, admin_client, strategy):
    """One of two is sold, by a strategy that spreads units: nothing was sold beyond the stock."""
    checkout([Line("mug", 1)], strategy)
    assert limit_page(admin_client, 0).status_code == 302
    checkout([Line("mug", 1)], strategy)
    with pytest.raises(SoldOut):
        checkout([Line("mug", 1)], strategy)
    assert audit() == []


@pytest.mark.parametrize("strategy", ["redis_script", "redis_gate", "segmented"])
def test_a_raised_limit_is_sold_at_once(mug, admin_client, strategy):
    """Redis has learned that all is sold out: with the new limit it learns anew."""
    get_strategy(strategy).forget([mug])
    checkout([Line("mug", 5)], strategy)
    with pytest.raises(SoldOut):
        checkout([Line("mug", 1)], strategy)
    assert limit_page(admin_client, 4).status_code == 302
    checkout([Line("mug", 1)], strategy)
    assert audit() == []


@pytest.mark.parametrize("limit", [10**9 + 1, 2**31 - 1])
def test_a_limit_that_cannot_be_added_to_the_stock(mug, admin_client, limit):
    """Above it no delivery could be booked and no sale be written: form and database refuse it."""
    assert "1000000000" in limit_page(admin_client, limit).content.decode()
    with pytest.raises(IntegrityError, match="product_backorder_limit_can_be_added"):
        Product.objects.update(on_hand=0, backorder_limit=limit)


def test_the_highest_limit_sells_and_takes_deliveries(mug, admin_client):
    """What is meant as unlimited works: a sale, a delivery, the list of products."""
    assert limit_page(admin_client, 10**9).status_code == 302
    checkout([Line("mug", 5)], "conditional_update")
    change_stock(mug, StockMovement.Kind.RECEIVED, 1_000_000, "note:1")
    answer = Client().get("/products/").json()["products"][0]
    assert (answer["on_hand"], answer["available"]) == (999_997, 1_000_999_997)


def test_the_limit_is_not_lowered_below_what_was_sold(mug, admin_client):
    """The form says how many; the database refuses as well."""
    checkout([Line("mug", 4)], "conditional_update")
    page = limit_page(admin_client, 1)
    assert "2 were sold beyond the stock already." in page.content.decode()
    with pytest.raises(IntegrityError):
        Product.objects.update(backorder_limit=1)
