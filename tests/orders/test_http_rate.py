"""One buyer asks too often: 429 with Retry-After, and no other buyer notices."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from django.test import Client

from orders.http.callers import Caller
from orders.http.rate_limit import PREFIX, client_address, limiter
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
    settings.CHECKOUT_STRATEGY = "conditional_update"
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


def test_the_next_minute_begins_again():
    """After the seconds of Retry-After the same buyer is served."""
    answers = [post(customer="ann") for _ in range(3)]
    let_pass(int(answers[-1].headers["Retry-After"]))
    assert statuses(*answers, post(customer="ann")) == [201, 201, 429, 201]


def test_reservations_count_too():
    """One of each is two."""
    assert statuses(post(customer="ann"), post("/reservations/", "ann")) == [201, 201]
    assert statuses(post("/reservations/", "ann"), post(customer="ann")) == [429, 429]


def test_anonymous_clients_are_counted_by_address():
    """Two addresses have two counters; a customer at the same address has one of its own."""
    assert statuses(post(), post(), post()) == [201, 201, 429]
    assert statuses(post(REMOTE_ADDR="192.0.2.7"), post(customer="ann")) == [201, 201]


def test_no_customer_uses_up_the_requests_of_another():
    """Requests in a customer's name from elsewhere don't lock that customer out."""
    assert statuses(*(post(customer="ann", REMOTE_ADDR="192.0.2.7") for _ in range(3))) == [201, 201, 429]
    assert statuses(post(customer="ann")) == [201]


def test_one_address_is_limited_whatever_customers_it_names(settings):
    """Another name for each request helps no client, and a bad body counts like a good one."""
    settings.CHECKOUT_RATE_PER_ADDRESS = 3
    bad = Client().post("/checkout/", "no JSON", content_type="application/json")
    assert statuses(bad, post(customer="a"), post(customer="b"), post(customer="c")) == [400, 201, 201, 429]


def test_a_refusal_is_not_kept_under_the_key():
    """The same Idempotency-Key is tried again after the wait, as it is after *busy*."""
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


def test_a_counter_that_is_down_stops_no_request(settings, caplog):
    """The counter doesn't answer: every client is served, and the log says so."""
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


def test_what_is_left_is_said(settings):
    """RateLimit and RateLimit-Policy name each limit; the refusal has both, too."""
    settings.CHECKOUT_RATE_PER_ADDRESS = 5
    first, _, refused = [post(customer="ann") for _ in range(3)]
    assert first.headers["RateLimit-Policy"] == '"address";q=5;w=60, "customer";q=2;w=60'
    assert re.fullmatch(r'"address";r=4;t=\d+, "customer";r=1;t=\d+', first.headers["RateLimit"])
    assert re.fullmatch(r'"address";r=2;t=\d+, "customer";r=0;t=\d+', refused.headers["RateLimit"])
    settings.CHECKOUT_RATE = settings.CHECKOUT_RATE_PER_ADDRESS = 0
    assert "RateLimit" not in post(customer="ann").headers


def test_a_caller_is_counted_by_its_scope(settings):
    """Wherever its requests come from; another caller's customer of the same name has its own count."""
    settings.CALLER = f"{__name__}.by_header"
    ann = [post(customer="ann", HTTP_X_CALLER="a", REMOTE_ADDR=f"192.0.2.{n}") for n in range(3)]
    assert statuses(*ann, post(customer="ann", HTTP_X_CALLER="b")) == [201, 201, 429, 201]


def by_header(request) -> Caller:
    """Return a caller of the scope that a header names."""
    return Caller(request.headers["X-Caller"])


PROXIES = ["10.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize(
    ("connection", "forwarded", "client"),
    [
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),  # no proxy of ours: the header may be forged
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),  # the client forged the first
        ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("fd00::1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("fd00::1", "2001:0db8::0001", "2001:db8::1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3"),
        ("", "198.51.100.1", ""),  # a Unix socket
    ],
)
def test_the_client_behind_trusted_proxies(rf, settings, connection, forwarded, client):
    """It is the last address that no trusted proxy has."""
    settings.TRUSTED_PROXIES = PROXIES
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    assert client_address(rf.post("/", REMOTE_ADDR=connection, headers=headers)) == client


def test_without_trusted_proxies_the_header_counts_for_nothing(rf):
    """Any client may send it."""
    request = rf.post("/", REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": "198.51.100.1"})
    assert client_address(request) == "10.0.0.1"


def test_buyers_behind_a_proxy_are_counted_apart(settings):
    """Each has the limit of its own address."""
    settings.TRUSTED_PROXIES = PROXIES
    buyers = [f"198.51.100.{n}" for n in (1, 1, 1, 2)]
    answers = [post(REMOTE_ADDR="10.0.0.1", headers={"X-Forwarded-For": buyer}) for buyer in buyers]
    assert statuses(*answers) == [201, 201, 429, 201]
