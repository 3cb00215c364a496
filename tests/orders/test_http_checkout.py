import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, connections
from django.test import Client, override_settings

from inventory.hooks import installed
from locking import get_lock
from orders.catalog.products import create_product
from orders.http.reading import MAX_BODY_BYTES
from orders.models import Order, Product
from orders.selling.strategies import names
from tests.orders.shelf import left

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


def ending_at(step: str) -> Any:
    """Return a hook that ends the connection at a step of the sale."""
    return lambda name, **_: end_own_connection() if name == step else None


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
    assert (left("mug"), left("pen")) == (8, 1)


def test_a_short_cart_is_refused_whole(client, mug, pen):
    """409 names the short line only, and not even the line that could be served is sold."""
    refused = post(client, cart(("mug", 1), ("pen", 4)))
    assert refused.status_code == 409
    assert refused.json()["shortages"] == [{"sku": "pen", "requested": 4, "available": 3}]
    assert not Order.objects.exists()
    assert (left("mug"), left("pen")) == (10, 3)


def test_an_unknown_product_is_pointed_at(client, mug):
    """422 points at each line of an unknown product, and nothing is sold."""
    refused = post(client, cart(("nix", 2), ("mug", 1), ("nix", 1)))
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/#unknown-product")
    assert [error["pointer"] for error in refused.json()["errors"]] == ["/lines/0/sku", "/lines/2/sku"]
    assert not Order.objects.exists()


def test_duplicates_beyond_the_limit_are_refused(client, mug):
    """Two lines of one SKU count together, for the limit on units too."""
    refused = post(client, cart(("mug", 6000), ("mug", 6000)))
    assert refused.status_code == 400
    assert "12000" in refused.json()["errors"][0]["detail"]


@override_settings(DEBUG=True)
@pytest.mark.parametrize("strategy", names())
def test_every_strategy_sells_over_http(client, mug, strategy):
    """With DEBUG on each strategy can be named, sells, and refuses what is not there."""
    sold = post(client, {**cart(("mug", 2)), "strategy": strategy})
    assert sold.status_code == 201, sold.content
    assert sold.json()["strategy"] == strategy
    assert post(client, {**cart(("mug", 9)), "strategy": strategy}).status_code == 409
    assert left() == 8


@override_settings(DEBUG=False)
def test_outside_debug_the_strategy_is_not_the_clients_choice(client, mug):
    """A visitor of a real shop can't pick how it sells."""
    refused = post(client, {**cart(("mug", 1)), "strategy": "combined"})
    assert refused.status_code == 400
    assert refused.json()["errors"][0]["pointer"] == "/strategy"
    assert not Order.objects.exists()


def test_a_held_lock_is_busy_and_never_sold_out(client, mug, settings):
    """503 with Retry-After while another buyer holds the product, and a sale once it is free again."""
    impatient = {"STRATEGY": "locked", "WAIT": 0.05}
    settings.INVENTORY = {**settings.INVENTORY, "redis_lock": impatient}
    lock = get_lock("inventory:mug", ttl=20)
    with ThreadPoolExecutor(1) as someone_else:  # in this thread the lock would be re-entered
        someone_else.submit(lock.acquire).result()
        busy = post(client, cart(("mug", 1)))
        someone_else.submit(lock.release).result()
    assert (busy.status_code, busy.json()["type"]) == (503, "/problems/#busy")
    assert 1 <= int(busy.headers["Retry-After"]) <= 20
    assert post(client, cart(("mug", 1))).status_code == 201


def test_a_lock_server_that_is_down_is_an_outage(client, mug):
    """503 of another type when Redis doesn't answer; nothing is sold without its lock."""
    unreachable = {
        "default": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "redis://127.0.0.1:9"}
    }
    with override_settings(LOCKING=unreachable):
        down = post(client, cart(("mug", 1)))
    assert (down.status_code, down.json()["type"]) == (503, "/problems/#unavailable")
    assert not Order.objects.exists()


@pytest.mark.parametrize(("step", "reported"), [("decided", "unavailable"), ("recorded", "outcome-unknown")])
def test_a_database_connection_that_dies(client, mug, step, reported):
    """A connection that ends before the order is written sold nothing; after that the outcome is unknown."""
    with installed(ending_at(step)):
        lost = post(client, cart(("mug", 1)))
    connection.close()
    assert (lost.status_code, lost.json()["type"]) == (503, f"/problems/#{reported}")
    assert not Order.objects.exists()


@pytest.mark.parametrize(
    ("headers", "advice"),
    [
        ({"Idempotency-Key": "k"}, "Repeat the request with the same Idempotency-Key."),
        ({}, "Without an Idempotency-Key a repetition may be a second order"),
    ],
    ids=["with a key", "without"],
)
def test_an_unknown_outcome_says_what_to_do(client, mug, headers, advice):
    """The client reads in the answer what its own request can do about it."""
    with installed(ending_at("recorded")):
        lost = post(client, cart(("mug", 1)), **headers)
    connection.close()
    assert advice in lost.json()["detail"]


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
        psycopg.connect(host="/no/server/here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("locking.transactions.fence.TRIES", 1)
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


@pytest.mark.parametrize(
    "address", ["/checkout/", "/reservations/", f"/reservations/{uuid.UUID(int=0)}/extend/"]
)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("[]", "must be an object"),
        ("{", "is not JSON"),
        ("[" * 60_000, "nested too deeply"),
        ('{"ttl": 1, "ttl": 2}', 'has the key "ttl" twice'),
        ('{"ttl": NaN}', "NaN is not a JSON number"),
        ('{"ttl": ' + "9" * 5000 + "}", "too many digits"),
        ('{"x": 1}', "/x is not a known field"),
        ('{"\\ud800": 1}', "must be a valid string"),
    ],
)
def test_every_operation_reads_as_strictly(client, address, body, reason):
    """Whether django-ninja reads the body or the checkout does: one reader, the same words, never a 500."""
    refused = client.generic("POST", address, body, CONTENT_TYPE="application/json")
    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/#invalid-request")
    assert reason in refused.json()["detail"]


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
    """Stock and price of every active product, in the order of the SKUs."""
    create_product("lamp", on_hand=1)
    Product.objects.filter(sku="lamp").update(active=False)
    assert client.get("/products/").json() == {
        "products": [
            {"sku": "mug", "name": "Mug", "price": "7.50", "currency": "EUR", "on_hand": 10, "available": 10},
            {"sku": "pen", "name": "Pen", "price": "2.40", "currency": "EUR", "on_hand": 3, "available": 3},
        ],
        "next": None,
    }


@pytest.mark.parametrize(("limit", "sizes"), [("", [100, 5]), ("?limit=35", [35, 35, 35])])
def test_products_come_in_pages(client, limit, sizes):
    """Following `next`, which is the header Link as well, shows every product once; no page is empty."""
    for n in range(105):
        Product.objects.create(sku=f"p{n:03}", name="p", price=1)
    address, pages = f"/products/{limit}", []
    while address:
        answer = client.get(address)
        address = answer.json()["next"]
        assert answer.headers.get("Link") == (f'<{address}>; rel="next"' if address else None)
        pages.append([product["sku"] for product in answer.json()["products"]])
    assert [len(page) for page in pages] == sizes
    assert [sku for page in pages for sku in page] == [f"p{n:03}" for n in range(105)]


@pytest.mark.parametrize(
    "query", ["cursor=%00", "cursor=x", "cursor=AAAA", "cursor=IA", "limit=0", "limit=101", "limit=x"]
)
def test_a_page_of_nonsense_is_refused(client, query):
    """400 with what is wrong in the address, before the database is asked."""
    refused = client.get(f"/products/?{query}")
    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/#invalid-request")
    assert f"has {query.partition('=')[0]}=" in refused.json()["detail"]


@pytest.mark.parametrize(("address", "queries"), [("/products/", 1), ("/orders/{}/", 2)])
def test_reading_costs_few_queries(client, mug, address, queries, django_assert_num_queries):
    """A list or an order is read in a fixed number of queries."""
    order = post(client, cart(("mug", 1))).json()
    with django_assert_num_queries(queries):
        client.get(address.format(order["id"]))
