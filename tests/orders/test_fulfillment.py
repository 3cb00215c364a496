"""Shipped in parts, returned, counted: what the shop says is in the building is what is there."""

from __future__ import annotations

import copy
from functools import partial

import pytest
from django.db.models import ProtectedError

import inventory
from inventory import InvalidLines, Line
from orders.after_sale.fulfillment import ReferenceUsed, TooMany, cancel_units, ship, take_back
from orders.after_sale.lifecycle import AlreadyShipped, TransitionRefused, cancel, pay
from orders.audit import audit
from orders.models import CustomerPurchase, Order, OrderEvent, Shipment
from orders.selling.checkout import checkout
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import lose, receive

pytestmark = pytest.mark.django_db(transaction=True)
State = Order.State


@pytest.fixture
def order():
    """A paid order of three of ten mugs and two of ten pens, by Ann."""
    for sku in ("mug", "pen"):
        ProductFactory.create(sku=sku)
    order = checkout([Line("mug", 3), Line("pen", 2)], "conditional_update", customer="ann")
    return pay(order.pk)


def stock(sku: str = "mug") -> tuple[int, int]:
    """Return the units for sale and those in the building."""
    (level,) = inventory.stock.levels(sku)
    return level.available, level.on_hand


def test_sold_units_stay_in_the_building_until_they_are_shipped(order):
    """Three of ten are sold: seven for sale, ten to be counted; once shipped, seven and seven."""
    assert stock() == (7, 10)
    assert ship(order.pk, None, "parcel-1").state == State.SHIPPED
    assert (stock("mug"), stock("pen")) == ((7, 7), (8, 8))
    assert audit() == []


def test_an_order_is_shipped_in_parts(order, django_user_model):
    """Two parcels, each a row per item with who sent it; the state says how far it is."""
    clerk = django_user_model.objects.create_user("clerk")
    assert ship(order.pk, [Line("mug", 1)], "a", staff=clerk).state == State.PARTLY_SHIPPED
    assert stock() == (7, 9)
    assert ship(order.pk, [Line("mug", 2), Line("pen", 2)], "b").state == State.SHIPPED
    rows = Shipment.objects.order_by("pk").values_list("item__product__sku", "quantity", "reference", "staff")
    assert list(rows) == [("mug", 1, "a", clerk.pk), ("mug", 2, "b", None), ("pen", 2, "b", None)]
    assert stock() == (7, 7)
    assert audit() == []


def test_the_same_parcel_leaves_once(order):
    """A form that is sent twice ships once, also when the order is shipped as a whole by then."""
    for _ in range(2):
        ship(order.pk, None, "parcel-1")
    assert (stock(), Shipment.objects.count()) == ((7, 7), 2)


def test_a_reference_stands_for_one_parcel(order):
    """Another product in the same parcel, sent later: refused, or the ledger would never have it shipped."""
    ship(order.pk, [Line("mug", 1)], "parcel-1")
    for lines in ([Line("pen", 2)], [Line("mug", 2)], [Line("mug", 1), Line("pen", 2)]):
        with pytest.raises(ReferenceUsed, match="'parcel-1': names 1 × mug already") as refused:
            ship(order.pk, lines, "parcel-1")
    assert str(copy.copy(refused.value)) == str(refused.value)
    ship(order.pk, None, "parcel-2")
    take_back(order.pk, [Line("mug", 1)], "back-1")
    with pytest.raises(ReferenceUsed):
        take_back(order.pk, [Line("mug", 2)], "back-1")
    assert (stock("mug"), stock("pen")) == ((8, 8), (8, 8))
    assert audit() == []


def test_cancelling_over_http_says_why_not(order, client):
    """A 409 that says the units have left, and what to do."""
    ship(order.pk, [Line("mug", 1)], "a")
    answer = client.post(f"/orders/{order.pk}/cancel/", "{}", content_type="application/json")
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/#order-state")
    assert answer.json()["state"] == "partly_shipped"
    assert "send them back" in answer.json()["detail"]


@pytest.mark.parametrize("sent", [[Line("mug", 1)], None])
def test_what_has_left_cannot_be_cancelled(order, sent):
    """Partly or wholly shipped: refused with the reason, and nothing is restocked."""
    ship(order.pk, sent, "a")
    before = stock()
    with pytest.raises(AlreadyShipped, match="returned, not cancelled") as refused:
        cancel(order.pk)
    assert str(copy.copy(refused.value)) == str(refused.value)
    assert stock() == before


def test_no_more_leaves_than_was_bought(order):
    """Four of three, or two of the one that is left, are refused whole; another product is named."""
    with pytest.raises(TooMany, match="only 3"):
        ship(order.pk, [Line("pen", 1), Line("mug", 4)], "a")
    ship(order.pk, [Line("mug", 2)], "a")
    with pytest.raises(TooMany, match="only 1"):
        ship(order.pk, [Line("mug", 2)], "b")
    with pytest.raises(InvalidLines, match="not in this order"):
        ship(order.pk, [Line("jar", 1)], "b")
    assert stock() == (7, 8)


def test_only_a_paid_order_is_shipped(order):
    """Placed, cancelled or shipped already: refused with the state."""
    placed = checkout([Line("mug", 1)], "conditional_update")
    with pytest.raises(TransitionRefused, match="placed"):
        ship(placed.pk, None, "a")
    cancel(placed.pk)
    with pytest.raises(TransitionRefused, match="cancelled"):
        ship(placed.pk, None, "a")
    ship(order.pk, None, "a")
    with pytest.raises(TransitionRefused, match="shipped"):
        ship(order.pk, None, "b")


def test_a_payment_that_is_reported_again_after_the_shipment_is_no_late_one(order):
    """A provider repeats its message for days: the order was paid, whatever came after."""
    ship(order.pk, None, "a")
    assert pay(order.pk).state == State.SHIPPED


def test_units_come_back_once_and_are_for_sale_again(order):
    """One of three shipped mugs comes back, by a form that is sent twice; then all the others do."""
    ship(order.pk, None, "out")
    for _ in range(2):
        assert take_back(order.pk, [Line("mug", 1)], "back-1").state == State.SHIPPED
    assert stock() == (8, 8)
    assert CustomerPurchase.objects.get(product__sku="mug").units == 2
    with pytest.raises(TooMany, match="only 2"):
        take_back(order.pk, [Line("mug", 3)], "back-2")
    assert take_back(order.pk, [Line("mug", 2), Line("pen", 2)], "back-2").state == State.RETURNED
    assert (stock("mug"), stock("pen")) == ((10, 10), (10, 10))
    assert take_back(order.pk, [Line("mug", 1)], "back-1").state == State.RETURNED
    assert audit() == []


def test_a_returned_part_does_not_end_an_order_that_is_still_leaving(order):
    """The first parcel came back; the rest can be shipped, and then the order is shipped."""
    ship(order.pk, [Line("mug", 3)], "a")
    assert take_back(order.pk, [Line("mug", 3)], "back").state == State.PARTLY_SHIPPED
    assert ship(order.pk, None, "b").state == State.SHIPPED
    assert audit() == []


def test_a_cancelled_order_keeps_its_units_in_the_building(order):
    """Nothing has left: the units are for sale again, and the count doesn't change."""
    cancel(order.pk)
    item = order.items.get(product__sku="mug")
    assert (item.returned, item.cancelled, item.shipped, item.open) == (0, 3, 0, 0)
    assert stock() == (10, 10)
    assert audit() == []


@pytest.mark.parametrize("reference", ["", "a b", "a:b", "x" * 61])
@pytest.mark.parametrize("act", [ship, take_back, cancel_units])
def test_a_reference_that_cannot_be(order, act, reference):
    """It is part of the ledger's cause: nothing that would read as another one's."""
    with pytest.raises(ValueError, match="reference"):
        act(order.pk, [Line("mug", 1)], reference)


# Side by side ----------------------------------------------------------------------------------------------


def test_two_parcels_of_the_same_units(order):
    """B waits for A, and then finds one mug where it wanted two."""
    with buyers() as start:
        a = start("A", partial(ship, order.pk, [Line("mug", 2)], "a"), "written").reaches("written")
        b = start("B", partial(ship, order.pk, [Line("mug", 2)], "b"))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, TooMany)
    assert stock() == (7, 8)


def test_a_parcel_leaves_while_the_order_is_cancelled(order):
    """The shipment isn't committed yet; the cancellation waits, and is refused."""
    with buyers() as start:
        a = start("A", partial(ship, order.pk, [Line("mug", 1)], "a"), "written").reaches("written")
        b = start("B", partial(cancel, order.pk))
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, AlreadyShipped)
    assert stock() == (7, 9)
    assert audit() == []


def test_a_shipment_that_dies_in_the_middle(order):
    """Killed before the commit: nothing has left, and the same parcel can be sent again."""
    with buyers() as start:
        start("A", partial(ship, order.pk, None, "a"), "written").reaches("written").dies()
    assert (Order.objects.get().state, stock()) == (State.PAID, (7, 10))
    assert ship(order.pk, None, "a").state == State.SHIPPED
    assert audit() == []


# Mutants ---------------------------------------------------------------------------------------------------


def test_a_shipment_that_the_ledger_misses_is_found(order, monkeypatch):
    """Mutant: the items say shipped and the ledger doesn't: the audit names the products."""
    monkeypatch.setattr("orders.after_sale.fulfillment.stock.ship", lambda *_, **__: None)
    ship(order.pk, None, "a")
    assert {each.invariant for each in audit()} == {"shipped_units_are_in_the_ledger"}


def test_a_return_that_is_booked_as_cancelled_is_found(order, monkeypatch):
    """Mutant: units that came back from outside are booked as if they had never left."""
    monkeypatch.setattr("orders.after_sale.fulfillment.stock.restock", lambda *_, **__: None)
    ship(order.pk, None, "a")
    take_back(order.pk, [Line("mug", 1)], "b")
    assert {each.invariant for each in audit()} == {"returned_units_are_in_the_ledger"}


# Units that never leave ------------------------------------------------------------------------------------


def test_units_lost_after_the_payment_have_a_way_out(order):
    """One mug left, two are broken: they are written off, the shelf is counted, the order is returned."""
    ship(order.pk, [Line("mug", 1), Line("pen", 2)], "a")
    assert cancel_units(order.pk, None, "broken", lost=True).state == State.SHIPPED
    assert (stock(), stock("pen")) == ((7, 7), (8, 8))
    inventory.stock.count("mug", 6, cause="count:1")
    back = take_back(order.pk, [Line("mug", 1), Line("pen", 2)], "back", damaged=True)
    assert (back.state, stock()) == (State.RETURNED, (6, 7))
    assert CustomerPurchase.objects.get(product__sku="mug").units == 0
    assert audit() == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_line_is_cancelled_once(order, lost):
    """A form that is sent twice cancels once; other units need a reference of their own."""
    for _ in range(2):
        assert cancel_units(order.pk, [Line("mug", 1), Line("pen", 1)], "c1", lost=lost).state == State.PAID
    assert stock() == ((7, 9) if lost else (8, 10))
    with pytest.raises(ReferenceUsed):
        cancel_units(order.pk, [Line("mug", 2)], "c1", lost=lost)
    with pytest.raises(TooMany, match="only 2"):
        cancel_units(order.pk, [Line("mug", 3)], "c2", lost=lost)
    assert cancel_units(order.pk, None, "c2", lost=lost).state == State.CANCELLED
    assert audit() == []


def test_a_repetition_is_known_when_its_event_is_forgotten(order):
    """The ledger has the reference, however long ago it was."""
    ship(order.pk, [Line("mug", 1)], "a")
    OrderEvent.objects.all().delete()
    assert ship(order.pk, [Line("mug", 1)], "a").state == State.PARTLY_SHIPPED
    assert order.items.get(product__sku="mug").shipped == 1


def test_an_order_cannot_be_deleted(order):
    """Its units would stay committed forever: it is cancelled instead."""
    with pytest.raises(ProtectedError):
        order.delete()


def test_a_delivery_and_a_breakage_change_both(order):
    """What comes in is for sale and in the building; what breaks is neither."""
    receive(5)
    lose(1)
    assert stock() == (11, 14)
    inventory.stock.count("mug", 13, cause="yearly")
    assert stock() == (10, 13)
    assert audit() == []
