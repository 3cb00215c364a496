"""The auditor must catch every kind of wrong: each is forged here."""

import uuid

import pytest
from django.db import connection

from inventory import Line
from orders.catalog.products import create_product
from orders.models import Order, OrderItem, Product
from orders.selling.checkout import checkout
from tests.load import audit
from tests.load.database import connect
from tests.load.journal import Story

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def story():
    """One buyer who asked for two mugs, got them, and heard of it."""
    create_product("mug", on_hand=10)
    order = checkout([Line("mug", 2)], strategy="conditional_update")
    return Story(baskets={"a": {"mug": 2}}, orders={"a": {str(order.pk)}})


def verdict(story, *, closed=False):
    """Audit the tests' database."""
    with connect() as database:
        return audit.judge(audit.read_rows(database, ["mug"]), story, closed=closed)


def faults(story, **options):
    """Return the kinds of wrong that the auditor finds, with their amounts."""
    found = verdict(story, **options)
    kinds = ("oversold", "undersold", "lost", "duplicated", "leaked")
    assert found.exact is not bool(found.details)
    return {kind: getattr(found, kind) for kind in kinds if getattr(found, kind)}


def sell_behind_the_books(units):
    """Forge an order as a broken shop writes it: order and item, and the stock left alone."""
    order = Order.objects.create(id=uuid.uuid4(), total=units, strategy="forged")
    OrderItem.objects.create(order=order, product=Product.objects.get(), quantity=units, unit_price=1)
    return order


def forge(sql):
    """Change balances behind the ledger's back, as no code can: its trigger is off for the moment."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE inventory_level DISABLE TRIGGER USER")
        cursor.execute(sql)
        cursor.execute("ALTER TABLE inventory_level ENABLE TRIGGER USER")


def test_honest_books_are_exact(story):
    """An order that was asked for, answered and written is no fault."""
    assert faults(story) == {}


def test_an_oversell_is_caught(story):
    """More in the order items than was ever received."""
    order = sell_behind_the_books(9)
    story.baskets["b"], story.orders["b"] = {"mug": 9}, {str(order.pk)}
    found = faults(story)
    assert found["oversold"] == 1
    assert "lost" not in found


def test_a_unit_sold_and_still_on_hand_is_caught(story):
    """A lost update leaves the stock too high: those units would be sold twice."""
    order = sell_behind_the_books(1)
    story.baskets["b"], story.orders["b"] = {"mug": 1}, {str(order.pk)}
    assert faults(story)["oversold"] == 1


def test_a_leak_is_caught(story):
    """A unit that is neither sold nor on hand is gone, and the ledger still has it."""
    forge("UPDATE inventory_level SET available = 7")
    assert faults(story) == {"leaked": 2}  # once in the stock, once against the ledger


def test_units_reserved_without_an_owner_are_caught(story):
    """Units that are set aside without a live reservation can never be sold."""
    forge("UPDATE inventory_level SET available = 5, reserved = 3")
    assert faults(story) == {"leaked": 3}


def test_an_undersell_is_caught(story):
    """After the closing buyers nothing may be left; before them it may."""
    assert faults(story, closed=False) == {}
    assert faults(story, closed=True) == {"undersold": 8}


def test_a_lost_order_is_caught(story):
    """An acknowledged id that isn't in the database."""
    story.baskets["b"], story.orders["b"] = {"mug": 1}, {str(uuid.uuid4())}
    assert faults(story) == {"lost": 1}


def test_an_order_of_something_else_is_caught(story):
    """An acknowledged order with other lines than were asked for."""
    story.baskets["a"] = {"mug": 3}
    assert faults(story) == {"lost": 1}


def test_an_order_that_no_client_asked_for_is_caught(story):
    """One more order in the database than the journals know: a retry that ordered twice."""
    checkout([Line("mug", 2)], strategy="conditional_update")
    assert faults(story) == {"duplicated": 1}


def test_an_order_after_a_refusal_is_caught(story):
    """A buyer who heard "sold out" must have no order."""
    checkout([Line("mug", 1)], strategy="conditional_update")
    story.baskets["b"], story.refused["b"] = {"mug": 1}, ["mug"]
    assert faults(story) == {"duplicated": 1}


def test_an_order_whose_buyer_never_heard_of_it_is_no_fault(story):
    """A time-out is unknown: the order may be there, once and with these lines."""
    checkout([Line("mug", 3)], strategy="conditional_update")
    story.baskets["b"] = {"mug": 3}
    story.unknown.add("b")
    assert faults(story) == {}
    checkout([Line("mug", 3)], strategy="conditional_update")
    assert faults(story) == {"duplicated": 1}


def test_one_key_with_two_orders_is_caught(story):
    """An Idempotency-Key that was answered with two different orders."""
    order = checkout([Line("mug", 2)], strategy="conditional_update")
    story.orders["a"].add(str(order.pk))
    assert faults(story) == {"duplicated": 1}


def test_one_order_reported_to_two_buyers_is_caught(story):
    """Two keys that were answered with the same order."""
    story.baskets["b"], story.orders["b"] = {"mug": 2}, set(story.orders["a"])
    assert faults(story)["duplicated"] == 2
