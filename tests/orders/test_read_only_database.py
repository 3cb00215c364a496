"""A database that refuses to write, as after a failover or on a full disk: what the client hears."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from orders.models import IdempotencyKey, Order
from orders.selling.strategies import names
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def read_only() -> Iterator[None]:
    """Have PostgreSQL refuse each write of this connection, as a server does that has become a replica."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        try:
            yield
        finally:
            cursor.execute("SET default_transaction_read_only = off")


def post(address: str, body: Any, key: str | None) -> Any:
    """Send `body` as JSON; an error that is no problem is a plain 500."""
    headers = {"Idempotency-Key": key} if key else {}
    client = Client(raise_request_exception=False)
    return client.post(address, json.dumps(body), content_type="application/json", headers=headers)


@pytest.mark.parametrize("strategy", names())
@pytest.mark.parametrize("key", [None, "k"])
def test_a_checkout_learns_that_nothing_was_ordered(settings, strategy, key):
    """503 and when to try again, from every strategy; then, with the same key, the order."""
    settings.CHECKOUT_STRATEGY = strategy
    body = {"lines": [{"sku": ProductFactory.create(on_hand=1).sku, "quantity": 1}]}
    with read_only():
        refused = post("/checkout/", body, key)
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/#unavailable")
    assert refused.headers["Retry-After"] == "5"
    assert not any(model.objects.exists() for model in (Order, IdempotencyKey))
    assert post("/checkout/", body, key).status_code == 201


def test_a_reservation_learns_that_nothing_was_reserved():
    """The same answer from a request that isn't a checkout."""
    body = {"lines": [{"sku": ProductFactory.create(on_hand=1).sku, "quantity": 1}]}
    with read_only():
        refused = post("/reservations/", body, "k")
    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/#unavailable")
    assert post("/reservations/", body, "k").status_code == 201


def test_a_refusal_that_cannot_be_stored_is_not_final():
    """Sold out, but the key can't keep it: the client asks again, and hears the same from then on."""
    body = {"lines": [{"sku": ProductFactory.create(on_hand=1).sku, "quantity": 2}]}
    with read_only():
        assert post("/checkout/", body, "k").status_code == 503
    assert post("/checkout/", body, "k").status_code == 409
