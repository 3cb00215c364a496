"""A product may be sold before it comes in, as far as its limit goes, and is shipped when it is there."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from inventory import Line, NotThere, SoldOut, stock
from inventory.models import Level
from orders.after_sale.fulfillment import ship
from orders.after_sale.lifecycle import cancel, pay
from orders.audit import audit
from orders.models import Order
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.reservations import reserve
from orders.selling.strategies import names
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import receive

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def mug() -> None:
    """Two mugs, and three more may be sold before they come."""
    ProductFactory.create(sku="mug", on_hand=2)
    Level.objects.update(backorder_limit=3)


def bought(quantity: int) -> Order:
    """Return a paid order of mugs."""
    return pay(checkout([Line("mug", quantity)], "conditional_update").pk)


def counted() -> tuple[int, int]:
    """Return the units for sale and those in the building."""
    (level,) = stock.levels("mug")
    return level.available, level.on_hand


@pytest.mark.parametrize("strategy", names())
def test_every_strategy_sells_to_the_limit_and_not_beyond(strategy):
    """Five of two, then none; the totals agree, and so they do when one is cancelled."""
    orders = [checkout([Line("mug", 1)], strategy) for _ in range(5)]
    with pytest.raises(SoldOut) as refused:
        checkout([Line("mug", 1)], strategy)
    assert refused.value.shortages[0].available == 0
    cancel(orders[0].pk)
    checkout([Line("mug", 1)], "conditional_update")
    assert (counted(), audit()) == ((-3, 2), [])


def test_what_has_not_come_in_cannot_leave():
    """Two of four leave; the others do after the delivery, and the count never falls below nothing."""
    order = bought(4)
    with pytest.raises(NotThere, match="4 should move, but 2"):
        ship(order.pk, None, "all")
    ship(order.pk, [Line("mug", 2)], "first")
    assert counted() == (-2, 0)
    receive(5)
    assert ship(order.pk, None, "rest").state == "shipped"
    assert (counted(), audit()) == ((3, 3), [])


def test_two_shipments_of_the_same_units():
    """Both orders are of two, and two are there: the second waits, and nothing of it leaves."""
    orders = [bought(2), bought(2)]
    with buyers() as start:
        a = start("A", partial(ship, orders[0].pk, None, "a"), "written").reaches("written")
        b = start("B", partial(ship, orders[1].pk, None, "b"))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, NotThere)
    assert (counted(), audit()) == ((-2, 0), [])


def test_a_promise_may_be_on_order():
    """Four are reserved of two; their order is placed, and the fifth is sold to another customer."""
    made = reserve([Line("mug", 4)], timedelta(minutes=1))
    checkout([Line("mug", 1)], "conditional_update")
    with pytest.raises(SoldOut):
        checkout([Line("mug", 1)], "conditional_update")
    checkout_reserved(made.id)
    assert (counted(), audit()) == ((-3, 2), [])
