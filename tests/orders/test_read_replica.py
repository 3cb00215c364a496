"""A real streaming replica shows the products while the primary sells: what lags, and what never does."""

from __future__ import annotations

import json
import threading

import pytest
from django.core.management import call_command
from django.db import InternalError, connections
from django.test import Client

from inventory.domain import Line
from inventory.models import Product
from orders.services import checkout
from tests.factories import ProductFactory
from tests.support.databases import another_way, default_leads_to
from tests.support.replica import primary_with_replica


@pytest.fixture(scope="module")
def replica():
    """Return a replica, with its primary: servers and a database of these tests' own."""
    with primary_with_replica() as replica:
        yield replica


@pytest.fixture
def client(replica, settings, django_db_setup, django_db_blocker):
    """Return a client of the shop that sells on the primary and shows products from the replica."""
    settings.PRODUCTS_DATABASE, settings.CHECKOUT_STRATEGY = "replica", "row_lock"
    known = dict(connections.settings["default"])
    with (
        django_db_blocker.unblock(),
        default_leads_to(replica.entry(port="")),
        another_way("replica", known | replica.entry()),
    ):
        yield Client()


def buy(client, sku, key=None):
    """Order one unit."""
    headers = {"Idempotency-Key": key} if key else {}
    body = {"lines": [{"sku": sku, "quantity": 1}]}
    return client.post("/checkout/", json.dumps(body), content_type="application/json", headers=headers)


def shown(client, sku):
    """Return the units that the list of products shows."""
    products = client.get("/products/").json()["products"]
    return next(product["available"] for product in products if product["sku"] == sku)


def test_a_replica_that_lags_changes_no_decision(client, replica):
    """It still shows the last unit when that is sold; sale, refusal, order and repeated key are right."""
    sku = ProductFactory.create(on_hand=1).sku
    replica.catch_up()
    with replica.halted():
        ordered = buy(client, sku, "key-1")
        assert ordered.status_code == 201
        assert buy(client, sku).status_code == 409
        assert client.get(ordered["Location"]).json()["lines"][0]["sku"] == sku
        assert buy(client, sku, "key-1").json()["id"] == ordered.json()["id"]
        assert shown(client, sku) == 1
        # Deciding by this would oversell:
        assert Product.objects.using("replica").get(sku=sku).on_hand == 1
    replica.catch_up()
    assert shown(client, sku) == 0


def test_what_is_shown_is_a_state_that_there_was(client, replica):
    """While two buyers empty the stock, what the pages show only falls, and ends at nothing."""
    sku = ProductFactory.create(on_hand=40).sku
    replica.catch_up()

    def empty() -> None:
        try:
            for _ in range(20):
                checkout([Line(sku, 1)], "combined")
        finally:
            connections.close_all()

    buyers = [threading.Thread(target=empty) for _ in range(2)]
    for buyer in buyers:
        buyer.start()
    seen = [40]
    while any(buyer.is_alive() for buyer in buyers):
        seen.append(shown(client, sku))
    replica.catch_up()
    seen.append(shown(client, sku))
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == 0


def test_nothing_can_be_written_there(client, replica):
    """The server refuses, whatever a mistake in the settings would have written there."""
    with pytest.raises(InternalError, match="read-only transaction"):
        Product.objects.using("replica").update(on_hand=7)


def test_the_audit_may_run_there(client, replica):
    """Its snapshot is one state of the primary's: it holds there too, and the primary has no load of it."""
    sku = ProductFactory.create(on_hand=2).sku
    checkout([Line(sku, 1)], "combined")
    replica.catch_up()
    with default_leads_to(connections.settings["replica"]):
        call_command("audit_stock")


def test_without_the_replica_the_shop_sells(client, replica):
    """The list of products is unavailable; orders are taken and shown."""
    sku = ProductFactory.create(on_hand=1).sku
    connections["replica"].close()
    replica.stop()
    try:
        assert client.get("/products/").status_code == 503
        ordered = buy(client, sku)
        assert ordered.status_code == 201
        assert client.get(ordered["Location"]).status_code == 200
    finally:
        replica.start()
