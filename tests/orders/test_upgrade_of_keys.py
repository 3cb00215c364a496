"""A database of the version before, with data in it, is upgraded: nothing is lost, and old orders go on."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from inventory.domain import Line
from orders import lifecycle, relay
from orders.audit import audit
from orders.models import IdempotencyKey, Order, OrderEvent
from orders.order_writer import ClientKey
from orders.services import checkout
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)

BEFORE = "0014"


@pytest.fixture
def shop_of_before():
    """Three orders with keys in customers' scopes, in a database that knows no events."""
    ProductFactory.create(sku="mug")
    for customer, key in (("ann", "k1"), ("bob", "same"), ("eve", "same")):
        checkout([Line("mug", 1)], "row_lock", customer=customer, key=ClientKey(customer, key, "f"))
    call_command("migrate", "orders", BEFORE, verbosity=0)
    yield
    call_command("migrate", verbosity=0)


def tables() -> set[str]:
    """Return the names of the tables there are."""
    return set(connection.introspection.table_names())


def test_an_upgrade_keeps_orders_and_keys(shop_of_before):
    """Orders without events are paid and cancelled as ever; a key that only one customer chose is found."""
    assert "orders_orderevent" not in tables()
    call_command("migrate", verbosity=0)
    assert sorted(IdempotencyKey.objects.values_list("scope", "key")) == [
        ("", "k1"),
        ("bob", "same"),
        ("eve", "same"),
    ]
    ann, bob, eve = Order.objects.order_by("customer")
    assert {ann.scope, bob.scope, eve.scope} == {""}
    lifecycle.pay(ann.pk)
    lifecycle.cancel(bob.pk)
    assert relay.relay_all() == 2
    assert list(OrderEvent.objects.order_by("pk").values_list("kind", flat=True)) == ["paid", "cancelled"]
    assert audit() == []
