"""The shop's hook says who sends a request: keys and orders are in its scope, whatever a body claims."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from config.api_keys import keys_of_callers
from inventory import Line
from orders.http.callers import Caller, by_api_key, caller_of
from orders.http.problems import Problem
from orders.models import IdempotencyKey, Order, Product
from orders.selectors import PAGE
from orders.selling import reservations
from orders.selling.checkout import checkout, place
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = {"shop-key": ("shop", ()), "other-key": ("other", ()), "staff-key": ("staff", ("pay", "orders"))}


@pytest.fixture(autouse=True)
def mug(settings):
    """Mugs, sold by the database alone."""
    settings.CHECKOUT_STRATEGY = "conditional_update"
    return ProductFactory.create(sku="mug", on_hand=1000)


@pytest.fixture
def keyed(settings):
    """A shop whose callers have API keys."""
    settings.CALLER = "orders.http.callers.by_api_key"
    settings.API_KEYS = {hashlib.sha256(key.encode()).hexdigest(): caller for key, caller in KEYS.items()}


def ask(method: str, address: str, api_key: str = "", body: Any = None, **headers: str) -> Any:
    """Send a request with an API key."""
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    send = getattr(Client(), method)
    if body is None:
        return send(address, headers=headers)
    return send(address, json.dumps(body), content_type="application/json", headers=headers)


def buy(api_key: str = "", key: str = "", customer: str = "ann") -> Any:
    """Buy a mug."""
    headers = {"Idempotency-Key": key} if key else {}
    body = {"lines": [{"sku": "mug", "quantity": 1}], "customer": customer}
    return ask("post", "/checkout/", api_key, body, **headers)


def kind(response: Any) -> tuple[int, str]:
    """Return the status and the slug of a problem."""
    return response.status_code, response.json()["type"].removeprefix("/problems/#")


def test_a_key_belongs_to_its_caller_and_not_to_the_customer_of_the_body(keyed):
    """Two callers may use one key; one caller that names another customer under it gets an error."""
    first, second = buy("shop-key", "k"), buy("other-key", "k")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["id"] != second.json()["id"]
    assert kind(buy("shop-key", "k", customer="bob")) == (422, "key-reused")
    assert buy("shop-key", "k").headers["Idempotency-Replayed"] == "true"
    assert sorted(IdempotencyKey.objects.values_list("scope", flat=True)) == ["other", "shop"]


@pytest.mark.parametrize("header", ["", "Basic abc", "Bearer", "Bearer ", "Bearer unknown", "Bearer é"])
def test_a_request_without_a_known_key_is_refused(keyed, header):
    """401 with WWW-Authenticate; nothing is sold."""
    headers = {"Authorization": header} if header else {}
    body = {"lines": [{"sku": "mug", "quantity": 1}]}
    refused = ask("post", "/checkout/", "", body, **headers)
    assert kind(refused) == (401, "unauthorized")
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert not Order.objects.exists()


@pytest.mark.parametrize("method", ["get", "post"])
def test_an_order_of_another_scope_does_not_exist(keyed, method):
    """Others can neither see nor cancel it; its own caller and one with the right can."""
    address = buy("shop-key").headers["Location"]
    body: Any
    path, body = (address, None) if method == "get" else (f"{address}cancel/", {})
    assert kind(ask(method, path, "other-key", body)) == (404, "not-found")
    assert ask(method, path, "shop-key", body).status_code == 200
    assert ask(method, path, "staff-key", body).status_code == 200


def test_paying_needs_the_right(keyed):
    """403 for a caller that only knows the id; staff's key may, and a provider has its webhook."""
    address = buy("shop-key").headers["Location"] + "pay/"
    refused = ask("post", address, "shop-key", {})
    assert kind(refused) == (403, "forbidden")
    assert "'pay'" in refused.json()["detail"]
    assert Order.objects.get().state == "placed"
    assert ask("post", address, "staff-key", {}).json()["state"] == "paid"


def test_anonymous_callers_may_pay_in_the_demo_only(settings):
    """Outside of it an order's id is no permission to mark it as paid."""
    address = buy().headers["Location"] + "pay/"
    settings.OPEN_DEMO = False
    assert kind(ask("post", address, "", {})) == (403, "forbidden")
    settings.OPEN_DEMO = True
    assert ask("post", address, "", {}).json()["state"] == "paid"


# Reservations -----------------------------------------------------------------------------------------------

LINES = {"lines": [{"sku": "mug", "quantity": 1}]}


def reserve(api_key: str = "", **headers: str) -> str:
    """Reserve a mug; return the reservation's id."""
    made = ask("post", "/reservations/", api_key, LINES, **headers)
    assert made.status_code == 201, made.content
    return str(made.json()["reservation"])


def on_reservation(basket: str, api_key: str) -> list[Any]:
    """Show a reservation, extend it, buy it, and give it back, as far as that comes."""
    address = f"/reservations/{basket}/"
    return [
        ask("get", address, api_key),
        ask("post", f"{address}extend/", api_key, {"ttl": 60}),
        ask("post", "/checkout/", api_key, {"reservation": basket}),
        ask("delete", address, api_key),
    ]


def statuses(answers: list[Any]) -> list[int]:
    """Return the status of each answer."""
    return [answer.status_code for answer in answers]


def test_a_reservation_of_another_scope_does_not_exist(keyed):
    """404 for showing, extending, buying and releasing it: nothing has changed for its owner."""
    basket = reserve("shop-key")
    refused = on_reservation(basket, "other-key")
    assert [kind(answer) for answer in refused] == [(404, "not-found")] * 4
    unknown = on_reservation("00000000-0000-0000-0000-000000000000", "other-key")
    assert [answer.json() for answer in refused] == [answer.json() for answer in unknown]
    assert statuses(on_reservation(basket, "shop-key")) == [200, 200, 201, 409]


def test_a_reservation_needs_a_known_caller(keyed):
    """401 without a key, before anything is looked up."""
    basket = reserve("shop-key")
    assert [kind(answer) for answer in on_reservation(basket, "")] == [(401, "unauthorized")] * 4


def test_staff_may_buy_for_a_caller_whose_order_it_then_is(keyed):
    """The right `orders` opens reservations, too; the order is in the scope of who reserved."""
    basket = reserve("shop-key")
    assert statuses(on_reservation(basket, "staff-key")) == [200, 200, 201, 409]
    assert Order.objects.get().scope == "shop"


def test_a_reservation_without_a_scope_is_found_by_its_id(keyed):
    """Made before scopes, or by a service: a caller that knows its id has it, and owns its order."""
    basket = reservations.reserve([Line("mug", 1)], timedelta(minutes=1)).id
    assert statuses(on_reservation(str(basket), "shop-key")) == [200, 200, 201, 409]
    assert Order.objects.get().scope == "shop"


def test_two_callers_reserve_under_one_key(keyed):
    """Each has a reservation of its own, and the same one again."""
    first, second = (reserve(key, **{"Idempotency-Key": "k"}) for key in ("shop-key", "other-key"))
    assert first != second
    assert reserve("shop-key", **{"Idempotency-Key": "k"}) == first


def test_a_view_that_does_not_ask_whose_it_is_is_found(keyed, monkeypatch):
    """Mutant: without the question another caller extends, buys and gives back what isn't its own."""
    monkeypatch.setattr(Caller, "require_reservation", lambda *_: None)
    assert statuses(on_reservation(reserve("shop-key"), "other-key")) == [200, 200, 201, 409]


def by_header(request) -> Caller:
    """Authenticate a user by a header, as a shop's own hook does."""
    return Caller(f"user:{request.headers['X-User']}", customer=request.headers["X-User"])


def test_a_caller_that_is_a_customer_buys_for_itself_alone(settings):
    """A limit per customer counts it under one name, whatever names its requests have."""
    settings.CALLER = f"{__name__}.by_header"
    Product.objects.update(customer_limit=1)
    wish = {"lines": [{"sku": "mug", "quantity": 1}]}
    first = ask("post", "/checkout/", "", wish, **{"X-User": "ann"})
    assert (first.status_code, first.json()["customer"]) == (201, "ann")
    assert kind(ask("post", "/checkout/", "", wish, **{"X-User": "ann"})) == (409, "customer-limit")
    for customer, answer in (("a2", (403, "forbidden")), ("ann", (409, "customer-limit"))):
        for address in ("/checkout/", "/reservations/"):
            named = ask("post", address, "", wish | {"customer": customer}, **{"X-User": "ann"})
            assert kind(named) == answer
    assert ask("post", "/checkout/", "", wish, **{"X-User": "bob"}).status_code == 201


# The list of orders -----------------------------------------------------------------------------------------


def listed(address: str, api_key: str) -> list[str]:
    """Follow `next` from `address`; return the ids of all pages."""
    ids: list[str] = []
    while address:
        page = ask("get", address, api_key).json()
        ids += [order["id"] for order in page["orders"]]
        address = page["next"]
    return ids


def test_orders_are_listed_page_by_page_the_newest_first(keyed):
    """Every order of the caller once, though others come while it reads."""
    made = [place([Line("mug", 1)], "conditional_update", scope="shop").id for _ in range(PAGE + 3)]
    place([Line("mug", 1)], "conditional_update", scope="other")
    first = ask("get", "/orders/", "shop-key").json()
    place([Line("mug", 1)], "conditional_update", scope="shop")
    ids = [order["id"] for order in first["orders"]] + listed(first["next"], "shop-key")
    assert ids == [str(order) for order in reversed(made)]


def test_orders_of_one_moment_are_listed_once(keyed):
    """Where dates are the same the id decides; no page repeats or drops an order."""
    for _ in range(PAGE + 3):
        place([Line("mug", 1)], "conditional_update", scope="shop")
    Order.objects.update(created_at="2026-01-01T00:00:00Z")
    ids = listed("/orders/", "shop-key")
    assert len(ids) == len(set(ids)) == PAGE + 3


def test_who_sees_which_orders(keyed):
    """A caller its own, staff all; an anonymous caller outside the demo none."""
    buy("shop-key"), buy("other-key")
    assert [len(listed("/orders/", key)) for key in ("shop-key", "other-key", "staff-key")] == [1, 1, 2]


def test_anonymous_callers_list_nothing(settings):
    """403 outside the demo: customers' orders are private."""
    settings.OPEN_DEMO = False
    assert kind(ask("get", "/orders/")) == (403, "forbidden")
    settings.OPEN_DEMO = True
    assert ask("get", "/orders/").json() == {"orders": [], "next": None}


@pytest.mark.parametrize("address", ["/orders/", "/products/"])
def test_an_address_with_too_many_parameters_is_a_problem(keyed, address):
    """Django reads a thousand at most; the answer is a problem like every other."""
    query = "&".join(f"n{number}=1" for number in range(1001))
    refused = Client().get(f"{address}?{query}", headers={"Authorization": "Bearer shop-key"})
    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/#invalid-request")
    assert "exceeded" in refused.json()["detail"]


@pytest.mark.parametrize("cursor", ["x", "é", "a" * 500, "MjAyNi0wMS0wMXx4", "\x00", "MjAyNnw="])
def test_a_cursor_that_was_not_given_out_is_refused(keyed, cursor):
    """400, before the database is asked."""
    refused = Client().get("/orders/", {"cursor": cursor}, headers={"Authorization": "Bearer shop-key"})
    assert kind(refused) == (400, "invalid-request")
    assert "follow `next`" in refused.json()["detail"]


def test_a_page_costs_two_queries(keyed, django_assert_num_queries):
    """However many orders and lines there are."""
    for _ in range(5):
        buy("shop-key")
    with django_assert_num_queries(2):
        ask("get", "/orders/", "shop-key")


# The hook ---------------------------------------------------------------------------------------------------


def test_a_shop_says_itself_who_calls(settings):
    """The setting names a function; its scope is kept with the order."""
    settings.CALLER = "tests.orders.test_callers.by_header"
    assert ask("post", "/checkout/", "", {"lines": [{"sku": "mug", "quantity": 1}]}, **{"X-User": "7"})
    assert Order.objects.get().scope == "user:7"


def test_a_caller_that_cannot_be():
    """A scope that wouldn't be kept whole, and a right that nothing asks for, are refused with the reason."""
    with pytest.raises(ValueError, match=r"scope 'x+'…: has 101 characters, at most 100"):
        Caller("x" * 101)
    with pytest.raises(ValueError, match=r"customer 'x+'…: has 101 characters, at most 100"):
        Caller(customer="x" * 101)
    with pytest.raises(ValueError, match=r"known are \['orders', 'pay'\]"):
        Caller("x", frozenset({"pai"}))


def test_a_reserved_checkout_and_a_service_call_keep_the_scope(rf, settings):
    """An order that is placed without a caller has no scope; any caller that knows its id finds it."""
    order = checkout([Line("mug", 1)], "conditional_update")
    assert order.scope == ""
    settings.CALLER = "orders.http.callers.anonymous"
    assert caller_of(rf.get("/")).scope == ""


def test_api_keys_come_from_the_environment():
    """`name:sha256[:right+right]`; what can't be read is refused by its number, without the digest."""
    digest = "a" * 64
    assert keys_of_callers([f"shop:{digest}", f"staff:{'b' * 64}:pay+orders"]) == {
        digest: ("shop", ()),
        "b" * 64: ("staff", ("pay", "orders")),
    }
    with pytest.raises(SystemExit, match="entry 2"):
        keys_of_callers([f"shop:{digest}", "staff:secret"])


def test_a_hook_is_asked_before_the_body_is_understood(keyed, rf):
    """Who isn't known learns nothing about the shop."""
    with pytest.raises(Problem) as refused:
        by_api_key(rf.get("/"))
    assert refused.value.kind.status == 401
