import inspect
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections
from django.test import Client, override_settings

from inventory.models import Product
from inventory.services import create_product
from inventory.strategies import STRATEGIES
from inventory.strategies.base import lock_names
from inventory.strategies.redis_lock import RedisLock
from locking import distributed_lock, get_lock
from orders.models import Order
from orders.parsing import MAX_BODY_BYTES
from orders.selectors import PAGE
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)


def post(client: Client, body: Any, content_type: str = "application/json", **headers: str) -> Any:
    """Send a body (a str as it is, anything else as JSON) to the checkout."""
    raw = body if isinstance(body, str) else json.dumps(body)
    return client.post("/checkout/", raw, content_type=content_type, headers=headers)


def cart(*lines: tuple[str, int]) -> dict[str, Any]:
    """Return the body of an order of these SKUs and quantities."""
    return {"lines": [{"sku": sku, "quantity": quantity} for sku, quantity in lines]}


def end_own_connection() -> None:
    """Let the server end the connection of this thread, as an administrator or a restart does."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.fixture
def mug() -> Product:
    """Ten mugs at 7.50."""
    return create_product("mug", name="Mug", price=Decimal("7.50"), on_hand=10)


@pytest.fixture
def pen() -> Product:
    """Three pens at 2.40."""
    return create_product("pen", name="Pen", price=Decimal("2.40"), on_hand=3)


def test_an_order_is_created_and_found_at_its_address(client, mug, pen):
    """201 with Location; the same order is read there; stock and rows agree."""
    created = post(client, cart(("pen", 1), ("mug", 2), ("pen", 1)))
    assert created.status_code == 201
    body = created.json()
    assert body["total"] == "19.80"
    assert body["strategy"] == "redis_lock"
    assert body["lines"] == [
        {"sku": "mug", "name": "Mug", "quantity": 2, "unit_price": "7.50", "shipped": 0},
        {"sku": "pen", "name": "Pen", "quantity": 2, "unit_price": "2.40", "shipped": 0},
    ]
    assert client.get(created.headers["Location"]).json() == body
    assert dict(Product.objects.values_list("sku", "on_hand")) == {"mug": 8, "pen": 1}


def test_a_short_cart_is_refused_whole(client, mug, pen):
    """409 names the short line only, and not even the line that could be served is sold."""
    refused = post(client, cart(("mug", 1), ("pen", 4)))
    assert refused.status_code == 409
    assert refused.json()["shortages"] == [{"sku": "pen", "requested": 4, "available": 3}]
    assert not Order.objects.exists()
    assert dict(Product.objects.values_list("sku", "on_hand")) == {"mug": 10, "pen": 3}


def test_an_unknown_product_is_pointed_at(client, mug):
    """400 points at the line of the unknown product, and nothing is sold."""
    refused = post(client, cart(("mug", 1), ("nix", 1)))
    assert refused.status_code == 400
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/lines/1/sku"]
    assert not Order.objects.exists()


def test_duplicates_beyond_the_limit_are_refused(client, mug):
    """Two lines of one SKU count together, for the limit on units too."""
    refused = post(client, cart(("mug", 6000), ("mug", 6000)))
    assert refused.status_code == 400
    assert "12000" in refused.json()["errors"][0]["detail"]


@override_settings(DEBUG=True)
@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_every_strategy_sells_over_http(client, mug, strategy):
    """With DEBUG on each strategy can be named, sells, and refuses what is not there."""
    sold = post(client, {**cart(("mug", 2)), "strategy": strategy})
    assert sold.status_code == 201, sold.content
    assert sold.json()["strategy"] == strategy
    assert post(client, {**cart(("mug", 9)), "strategy": strategy}).status_code == 409
    assert totals_of("mug").left == 8


@override_settings(DEBUG=False)
def test_outside_debug_the_strategy_is_not_the_clients_choice(client, mug):
    """A visitor of a real shop can't pick a broken strategy."""
    refused = post(client, {**cart(("mug", 1)), "strategy": "lost_update"})
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["pointer"] == "/strategy"
    assert not Order.objects.exists()


def test_a_held_lock_is_busy_and_never_sold_out(client, mug, monkeypatch):
    """503 with Retry-After while someone else holds the product, and a sale once it is free again."""
    impatient = distributed_lock(key=lock_names, wait=0.05, on_conflict="raise")
    monkeypatch.setattr(RedisLock, "_sell_locked", impatient(inspect.unwrap(RedisLock._sell_locked)))
    lock = get_lock("sku:mug", ttl=20)
    with ThreadPoolExecutor(1) as someone_else:  # in this thread the lock would be re-entered
        someone_else.submit(lock.acquire).result()
        busy = post(client, cart(("mug", 1)))
        someone_else.submit(lock.release).result()
    assert (busy.status_code, busy.json()["type"]) == (503, "/problems/#busy")
    assert 1 <= int(busy.headers["Retry-After"]) <= 20
    assert post(client, cart(("mug", 1))).status_code == 201


def test_a_lock_server_that_is_down_is_an_outage(client, mug):
    """503 of another type when Redis doesn't answer; nothing is sold without its lock."""
    nobody = {
        "default": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "redis://127.0.0.1:9"}
    }
    with override_settings(LOCKING=nobody):
        down = post(client, cart(("mug", 1)))
    assert (down.status_code, down.json()["type"]) == (503, "/problems/#unavailable")
    assert not Order.objects.exists()


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("inventory.strategies.redis_lock.decide", "unavailable"),
        ("orders.services.checkpoint", "outcome-unknown"),
    ],
    ids=["before the order is written", "before the commit"],
)
def test_a_database_connection_that_dies(client, mug, monkeypatch, step, told):
    """A connection that ends before the order is written sold nothing; after that the outcome is unknown."""
    monkeypatch.setattr(step, lambda *_, **__: end_own_connection())
    lost = post(client, cart(("mug", 1)))
    connection.close()
    assert (lost.status_code, lost.json()["type"]) == (503, f"/problems/#{told}")
    assert not Order.objects.exists()


def test_an_unknown_outcome_says_to_repeat_with_the_same_key(client, mug, monkeypatch):
    """The client reads what to do in the answer itself."""
    monkeypatch.setattr("orders.services.checkpoint", lambda *_, **__: end_own_connection())
    lost = post(client, cart(("mug", 1)))
    connection.close()
    assert "Repeat the request with the same Idempotency-Key" in lost.json()["detail"]


@pytest.mark.parametrize("strategy", ["conditional_update", "redis_lock", "fenced_lock"])
def test_a_commit_without_an_answer_is_not_hidden_by_what_fails_after_it(client, mug, settings, strategy):
    """The server commits and dies, and a new connection is refused: whether there is an order isn't known."""
    settings.CHECKOUT_STRATEGY = strategy
    mine = connections["default"]

    def commit_and_die() -> None:
        mine.connection.commit()
        mine.connection.close()
        raise OperationalError("the connection is lost")

    def refuse(*_: object) -> None:
        psycopg.connect(host="/nobody/listens/here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("locking.transactions.commit_probe.TRIES", 1)
        patch.setattr(mine, "_commit", commit_and_die)
        patch.setattr(type(mine), "get_new_connection", refuse)
        lost = post(client, cart(("mug", 1)))
    connection.close()
    assert (lost.status_code, lost.json()["type"]) == (503, "/problems/#outcome-unknown")
    assert Order.objects.count() == 1


def test_atomic_requests_does_not_wrap_the_checkout(client, mug, monkeypatch):
    """Under ATOMIC_REQUESTS the sale still commits before its lock is let go, so it isn't refused."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert post(client, cart(("mug", 1))).status_code == 201


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("text/plain", ""),
        ("application/x-www-form-urlencoded", ""),
        ("multipart/form-data; boundary=x", ""),
        ("application/json; charset=latin-1", ""),
        ("application/json", "gzip"),
    ],
)
def test_only_plain_json_is_read(client, mug, content_type, encoding):
    """415 for everything that a form of a foreign page could send, and for what can't be read."""
    headers = {"Content-Encoding": encoding} if encoding else {}
    refused = post(client, json.dumps(cart(("mug", 1))), content_type, **headers)
    assert refused.status_code == 415
    assert not Order.objects.exists()


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "APPLICATION/JSON"])
def test_json_may_say_its_charset(client, mug, content_type):
    """The usual ways to write the media type are understood."""
    assert post(client, json.dumps(cart(("mug", 1))), content_type).status_code == 201


def test_a_large_body_is_refused_unread(client):
    """413 by the length alone."""
    refused = post(client, " " * (MAX_BODY_BYTES + 1))
    assert (refused.status_code, refused.json()["type"]) == (413, "/problems/#too-large")


@pytest.mark.parametrize("method", ["get", "put", "patch", "delete", "head", "options"])
def test_the_checkout_answers_post_only(client, method):
    """405 with Allow for every other method."""
    refused = getattr(client, method)("/checkout/")
    assert (refused.status_code, refused.headers["Allow"]) == (405, "POST")


def test_no_cookie_and_no_csrf_token_are_needed_or_given(mug):
    """A program without a session buys; the checkout neither reads nor sets a cookie."""
    created = post(Client(enforce_csrf_checks=True), cart(("mug", 1)))
    assert created.status_code == 201
    assert not created.cookies
    assert "Cookie" not in created.headers.get("Vary", "")


@pytest.mark.parametrize("order_id", ["5f0c1f0e-4b7c-4d6e-9a51-2c1d7f6b8a90", "42", "not-a-uuid", "%00"])
def test_an_order_that_is_not_there(client, order_id):
    """404 as a problem, whether the id is unknown or none at all."""
    missing = client.get(f"/orders/{order_id}/")
    assert (missing.status_code, missing.json()["type"]) == (404, "/problems/#not-found")


def test_products_are_listed(client, mug, pen):
    """Stock and price of every product, in the order of the SKUs."""
    assert client.get("/products/").json() == {
        "products": [
            {"sku": "mug", "name": "Mug", "price": "7.50", "currency": "EUR", "on_hand": 10, "available": 10},
            {"sku": "pen", "name": "Pen", "price": "2.40", "currency": "EUR", "on_hand": 3, "available": 3},
        ],
        "next": None,
    }


def test_products_come_in_pages(client):
    """Following `next` shows every product once."""
    Product.objects.bulk_create(Product(sku=f"p{n:03}", name="p", price=1) for n in range(PAGE + 5))
    address, seen = "/products/", []
    while address:
        page = client.get(address).json()
        seen += [product["sku"] for product in page["products"]]
        address = page["next"]
    assert seen == [f"p{n:03}" for n in range(PAGE + 5)]


def test_a_page_of_nonsense_is_refused(client):
    """400 for a NUL in the address, which the database could not compare."""
    assert client.get("/products/", {"after": "\x00"}).status_code == 400


@pytest.mark.parametrize(("address", "queries"), [("/products/", 1), ("/orders/{}/", 2)])
def test_reading_costs_few_queries(client, mug, address, queries, django_assert_num_queries):
    """A list or an order is read in a fixed number of queries."""
    order = post(client, cart(("mug", 1))).json()
    with django_assert_num_queries(queries):
        client.get(address.format(order["id"]))
