"""One buyer asks too often: 429 with Retry-After, and nobody else notices."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from django.test import Client

from orders.http.rate_limit import PREFIX, limiter
from orders.models import IdempotencyKey, Order
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)


def let_pass(seconds):
    """Let the counters be older by so many seconds, in the server's own time."""
    storage: Any = limiter().storage
    server = storage.storage
    for name in server.scan_iter(f"{PREFIX}*"):
        server.expire(name, max(0, server.ttl(name) - seconds))


@pytest.fixture(autouse=True)
def two_a_minute(settings):
    """A shop with mugs enough, of which one buyer may ask for some twice a minute."""
    settings.CHECKOUT_RATE = 2
    settings.CHECKOUT_STRATEGY = "row_lock"
    ProductFactory.create(sku="mug")


def post(address: str = "/checkout/", customer: str = "", **options: Any):
    """Ask for a mug."""
    wish = {"lines": [{"sku": "mug", "quantity": 1}]} | ({"customer": customer} if customer else {})
    return Client().post(address, json.dumps(wish), content_type="application/json", **options)


def statuses(*answers) -> list[int]:
    """Return what was answered."""
    return [answer.status_code for answer in answers]


def test_the_third_in_a_minute_is_refused():
    """With the seconds to wait, and without an order; another customer is served."""
    assert statuses(post(customer="ann"), post(customer="ann")) == [201, 201]
    let_pass(45)
    refused = post(customer="ann")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 15
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["type"] == "/problems/#too-many-requests"
    assert statuses(post(customer="bob")) == [201]
    assert Order.objects.count() == 3


def test_the_next_minute_begins_anew():
    """After the seconds of Retry-After the same buyer is served."""
    answers = [post(customer="ann") for _ in range(3)]
    let_pass(int(answers[-1].headers["Retry-After"]))
    assert statuses(*answers, post(customer="ann")) == [201, 201, 429, 201]


def test_reservations_count_too():
    """One of each is two."""
    assert statuses(post(customer="ann"), post("/reservations/", "ann")) == [201, 201]
    assert statuses(post("/reservations/", "ann"), post(customer="ann")) == [429, 429]


def test_nobody_in_particular_is_counted_by_address():
    """Two addresses have two counters; a customer at the same address has one of its own."""
    assert statuses(post(), post(), post()) == [201, 201, 429]
    assert statuses(post(REMOTE_ADDR="192.0.2.7"), post(customer="ann")) == [201, 201]


def test_nobody_uses_up_what_another_customer_may_ask():
    """Requests in somebody's name from elsewhere don't lock that customer out."""
    assert statuses(*(post(customer="ann", REMOTE_ADDR="192.0.2.7") for _ in range(3))) == [201, 201, 429]
    assert statuses(post(customer="ann")) == [201]


def test_one_address_is_limited_whatever_customers_it_names(settings):
    """Another name for each request helps nobody, and a bad body counts like a good one."""
    settings.CHECKOUT_RATE_PER_ADDRESS = 3
    bad = Client().post("/checkout/", "no JSON", content_type="application/json")
    assert statuses(bad, post(customer="a"), post(customer="b"), post(customer="c")) == [400, 201, 201, 429]


def test_a_refusal_is_not_kept_under_the_key():
    """The same Idempotency-Key is tried anew after the wait, as it is after *busy*."""
    post(customer="ann"), post(customer="ann")
    assert statuses(post(customer="ann", HTTP_IDEMPOTENCY_KEY="k")) == [429]
    assert not IdempotencyKey.objects.exists()
    let_pass(60)
    assert statuses(post(customer="ann", HTTP_IDEMPOTENCY_KEY="k")) == [201]


def test_without_a_rate_nothing_is_counted(settings, redis_database):
    """0, the default: no limit, and no request to the cache."""
    settings.CHECKOUT_RATE = 0
    assert statuses(*(post(customer="ann") for _ in range(5))) == [201] * 5
    assert not list(redis_database.scan_iter(f"{PREFIX}*"))


def test_a_counter_that_is_down_stops_nobody(settings, caplog):
    """The counter doesn't answer: everybody is served, and the log says so."""
    settings.CHECKOUT_RATE_STORAGE = "redis://127.0.0.1:1/0"
    assert statuses(*(post(customer="ann") for _ in range(3))) == [201] * 3
    assert "couldn't be counted" in caplog.text


def test_the_count_may_be_in_memory(settings):
    """A shop of one process needs no server to count."""
    settings.CHECKOUT_RATE_STORAGE = "memory://"
    assert statuses(*(post(customer="ann", REMOTE_ADDR="192.0.2.9") for _ in range(3))) == [201, 201, 429]


def test_a_worker_whose_clock_is_wrong_counts_the_same_minute(monkeypatch):
    """The window is the server's: an hour more or less on the worker's clock begins no new one."""
    assert statuses(post(customer="ann"), post(customer="ann")) == [201, 201]
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() + 3600)
    refused = post(customer="ann")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 60


def test_a_count_ends_by_itself(redis_database):
    """No key is left without an end, whichever request was the first."""
    post(customer="ann")
    assert all(redis_database.ttl(name) > 0 for name in redis_database.scan_iter(f"{PREFIX}*"))
    assert list(redis_database.scan_iter(f"{PREFIX}*"))
