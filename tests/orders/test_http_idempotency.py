"""A repeated request gets the first answer: 201, or the refusal. Never a second order."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.db.models.functions import Now
from django.test import Client

from inventory import Busy, SoldOut, hooks
from inventory.models import Reservation
from inventory.strategies.conditional_update import ConditionalUpdate
from orders.audit import audit
from orders.http.idempotency import forget_old_keys
from orders.models import IdempotencyKey, Order, Product
from orders.selling.reservations import reserve
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import left, lose, receive, reserved

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def mug(settings):
    """Two mugs, sold by the database alone."""
    settings.CHECKOUT_STRATEGY = "conditional_update"
    return ProductFactory.create(sku="mug", on_hand=2)


def post(address: str, body: Any, key: str | None = None) -> Any:
    """Send `body` as JSON."""
    headers = {} if key is None else {"Idempotency-Key": key}
    return Client().post(address, json.dumps(body), content_type="application/json", headers=headers)


def buy(quantity: int = 1, key: str | None = None, **members: str) -> Any:
    """Ask for mugs."""
    return post("/checkout/", {"lines": [{"sku": "mug", "quantity": quantity}], **members}, key)


def kind(response: Any) -> tuple[int, str]:
    """Return the status and the slug of a problem."""
    return response.status_code, response.json()["type"].removeprefix("/problems/#")


def test_the_second_answer_is_the_first():
    """Same body, same Location, marked as replayed; one order, one mug."""
    first, second = buy(key="k"), buy(key="k")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert first.headers["Location"] == second.headers["Location"]
    assert second.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert (Order.objects.count(), left()) == (1, 1)


def test_what_was_sold_out_by_itself_is_replayed_not_refused():
    """Its own order took the last units: the repetition gets the order, not that nothing is left."""
    first = buy(2, key="k")
    assert buy(2, key="k").json() == first.json()


def test_a_refusal_is_replayed_like_a_success(mug):
    """Sold out stays sold out for this key, though the shelf was filled since; a new key is served."""
    assert kind(buy(3, key="k")) == (409, "sold-out")
    receive(10)
    again = buy(3, key="k")
    assert kind(again) == (409, "sold-out")
    assert again.json()["shortages"] == [{"sku": "mug", "requested": 3, "available": 2}]
    assert again.headers["Content-Type"] == "application/problem+json"
    assert buy(3, key="new").status_code == 201


@pytest.mark.parametrize("first", [1, 3])
def test_another_body_under_the_same_key(first):
    """422, whether the first was served or refused; nothing is sold."""
    buy(first, key="k")
    orders = Order.objects.count()
    assert kind(buy(2, key="k")) == (422, "key-reused")
    assert Order.objects.count() == orders


def test_a_body_cannot_choose_whose_key_it_is():
    """The customer that a body names is part of the request, not the scope of its key."""
    assert buy(key="k", customer="ann").status_code == 201
    assert kind(buy(key="k", customer="bob")) == (422, "key-reused")
    assert Order.objects.count() == 1


def test_a_key_may_be_required(settings):
    """400 of its own type without one; then it is served."""
    settings.IDEMPOTENCY_KEY_REQUIRED = True
    assert kind(buy()) == (400, "key-missing")
    assert buy(key=f'"{uuid.uuid4()}"').status_code == 201


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "k" * 256])
def test_a_key_that_cannot_be(key):
    """400, with what a key is; nothing is sold."""
    assert kind(buy(key=key)) == (400, "invalid-request")
    assert not Order.objects.exists()


def test_quotes_around_a_key_are_not_part_of_it():
    """The draft's structured header and the bare value are one key."""
    assert buy(key='"k"').json() == buy(key="k").json()


@pytest.mark.parametrize("error", [Busy("locked", 1), OperationalError("gone")])
def test_what_is_not_final_is_not_kept(monkeypatch, error):
    """Busy and an outage are answered once; the same key is served when the shop is well again."""

    def fail(*args: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ConditionalUpdate, "sell", fail)
        assert buy(key="k").status_code == 503
    assert not IdempotencyKey.objects.exists()
    assert buy(key="k").status_code == 201


def test_an_answer_that_was_lost_after_the_commit_is_found(monkeypatch):
    """The connection broke when the order was committed already: the client hears of it at once."""
    sell = ConditionalUpdate.sell

    def commit_and_break(self: ConditionalUpdate, sale: Any) -> None:
        sell(self, sale)
        raise OperationalError("the connection is gone")

    monkeypatch.setattr(ConditionalUpdate, "sell", commit_and_break)
    answer = buy(key="k")
    assert answer.status_code == 201
    assert answer.json()["id"] == str(Order.objects.get().pk)


def test_a_lost_commit_stays_unknown_while_no_server_can_be_asked(monkeypatch):
    """The database went down after the COMMIT was sent: that it can't be reached now is not the answer."""

    def refuse(*args: object) -> None:
        try:
            psycopg.connect(host="/no/server/here")
        except psycopg.OperationalError as error:
            raise OperationalError("can't be reached") from error

    sell = ConditionalUpdate.sell

    def break_off(self: ConditionalUpdate, sale: Any) -> None:
        sell(self, sale)
        raise OperationalError("the connection is gone")

    monkeypatch.setattr("orders.http.idempotency._answered", refuse)
    monkeypatch.setattr(ConditionalUpdate, "sell", break_off)
    assert kind(buy(key="k")) == (503, "outcome-unknown")
    monkeypatch.setattr(ConditionalUpdate, "sell", refuse)
    assert kind(buy(key="k")) == (503, "unavailable")


def test_an_invalid_request_is_not_kept():
    """A body that can't be understood uses no key."""
    assert kind(post("/checkout/", {"lines": []}, "k")) == (400, "invalid-request")
    assert buy(key="k").status_code == 201


def test_the_same_key_in_the_same_process_is_in_progress():
    """409 with Retry-After while the first is at work; afterwards the first answer."""
    with buyers() as start:
        a = start("A", partial(buy, key="k"), "recorded").reaches("recorded")
        second = buy(key="k")
        assert kind(second) == (409, "key-in-progress")
        assert second.headers["Retry-After"] == "1"
        first: Any = a.ends().result
    assert buy(key="k").json() == first.json()


def test_the_same_key_in_another_process_waits_for_the_first(monkeypatch):
    """Without the process's own note the unique index decides: the second waits, then replays."""
    monkeypatch.setattr("orders.http.idempotency._in_flight", _Nothing())
    with buyers() as start:
        a = start("A", partial(buy, key="k"), "recorded").reaches("recorded")
        b = start("B", partial(buy, key="k"))
        assert b.ends_or_waits() == "waits"
        answers: list[Any] = [a.ends().result, b.ends().result]
    assert answers[0].json() == answers[1].json()
    assert Order.objects.count() == 1


def _look_and_stop(refused: SoldOut) -> bool:
    """Say that the stock is short, and stop where the refusal is not stored yet."""
    hooks.reach("looked")
    return True


class _Nothing(set):
    """A set that forgets, as another process's would not know."""

    def add(self, item: object) -> None:
        """Forget it."""


@pytest.mark.parametrize(("quantity", "answer"), [(3, (409, "sold-out")), (4, (422, "key-reused"))])
def test_of_two_refusals_of_one_key_the_stored_one_is_the_answer(monkeypatch, mug, quantity, answer):
    """Another process has the same key refused first: both say the same, and so does every repetition."""
    monkeypatch.setattr("orders.http.idempotency._in_flight", _Nothing())
    monkeypatch.setattr("orders.http.idempotency._is_short", _look_and_stop)
    with buyers() as start:
        a = start("A", partial(buy, 3, key="k"), "looked").reaches("looked")
        lose(1)
        stored = buy(quantity, key="k")
        first: Any = a.ends().result
    assert kind(first) == answer
    if quantity == 3:
        assert first.json() == stored.json() == buy(3, key="k").json()


def test_a_customer_limit_has_its_own_type(mug):
    """409, with what was bought; nothing to do with the stock."""
    Product.objects.update(customer_limit=1)
    buy(customer="ann")
    refused = buy(customer="ann", key="k")
    assert kind(refused) == (409, "customer-limit")
    assert (refused.json()["bought"], refused.json()["limit"]) == (1, 1)
    assert buy(customer="ann", key="k").headers["Idempotency-Replayed"] == "true"


def test_old_keys_are_forgotten(settings):
    """After its time a key is free; the order stays."""
    settings.IDEMPOTENCY_KEPT = 0
    buy(key="k")
    assert forget_old_keys() == 1
    assert Order.objects.count() == 1


def test_the_keys_of_refusals_are_forgotten_sooner(settings):
    """A refusal costs a client nothing, so its row goes after minutes; an order's key is known for a day."""
    settings.IDEMPOTENCY_REFUSALS_KEPT = 0
    buy(key="sold")
    lines = {"lines": [{"sku": "mug", "quantity": 1}]}
    assert post("/reservations/", lines, key="reserved").status_code == 201
    assert buy(quantity=1_000, key="refused").status_code == 409
    assert forget_old_keys() == 1
    assert sorted(row.key for row in IdempotencyKey.objects.all()) == ["reserved", "sold"]


# Reservations and states over HTTP --------------------------------------------------------------------------


def test_reserve_then_check_out():
    """The reservation becomes an order once; the second try hears so."""
    made = post("/reservations/", {"lines": [{"sku": "mug", "quantity": 2}], "ttl": 60, "customer": "ann"})
    assert made.status_code == 201
    assert kind(buy()) == (409, "sold-out")
    order = post("/checkout/", {"reservation": made.json()["reservation"]})
    assert (order.status_code, order.json()["customer"]) == (201, "ann")
    gone = post("/checkout/", {"reservation": made.json()["reservation"]})
    assert (kind(gone), gone.json()["state"]) == ((409, "reservation-gone"), "sold")


def test_a_reservation_beyond_the_limit():
    """The answer names what ann has reserved already, and is final."""
    Product.objects.update(customer_limit=2)
    wish = {"lines": [{"sku": "mug", "quantity": 1}], "customer": "ann"}
    assert [post("/reservations/", wish).status_code for _ in range(2)] == [201, 201]
    receive(9)
    refused = post("/reservations/", wish)
    assert (kind(refused), refused.json()["bought"]) == ((409, "customer-limit"), 2)


def test_a_reservation_is_given_back():
    """204, again and again; one that never was is 404."""
    address = post("/reservations/", {"lines": [{"sku": "mug", "quantity": 2}]}).headers["Location"]
    assert [Client().delete(address).status_code for _ in range(2)] == [204, 204]
    assert kind(Client().delete(f"/reservations/{uuid.uuid4()}/")) == (404, "not-found")
    assert kind(Client().delete("/reservations/x/")) == (404, "not-found")
    assert buy(2).status_code == 201


WISH = {"lines": [{"sku": "mug", "quantity": 1}], "ttl": 60, "customer": "ann"}


def test_a_repeated_reservation_reserves_once():
    """Same body, same Location, marked as replayed; one mug is reserved."""
    first, second = post("/reservations/", WISH, "k"), post("/reservations/", WISH, "k")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert first.headers["Location"] == second.headers["Location"]
    assert second.headers["Idempotency-Replayed"] == "true"
    assert reserved() == 1
    assert audit() == []


def test_a_refused_reservation_is_replayed(mug):
    """Sold out stays sold out for this key; a key of a reservation is no key of a checkout."""
    wish = {"lines": [{"sku": "mug", "quantity": 3}]}
    assert kind(post("/reservations/", wish, "k")) == (409, "sold-out")
    receive(10)
    again = post("/reservations/", wish, "k")
    assert (kind(again), again.headers["Idempotency-Replayed"]) == ((409, "sold-out"), "true")
    assert kind(post("/checkout/", wish, "k")) == (422, "key-reused")


def test_another_reservation_under_the_same_key():
    """422, and nothing more is reserved."""
    post("/reservations/", WISH, "k")
    assert kind(post("/reservations/", {**WISH, "ttl": 61}, "k")) == (422, "key-reused")
    assert reserved() == 1


def test_the_same_reservation_in_another_process_waits_for_the_first(monkeypatch):
    """The stock's row and the key's index let one reserve; the other gets its answer."""
    monkeypatch.setattr("orders.http.idempotency._in_flight", _Nothing())
    with buyers() as start:
        a = start("A", partial(post, "/reservations/", WISH, "k"), "written").reaches("written")
        b = start("B", partial(post, "/reservations/", WISH, "k"))
        assert b.ends_or_waits() == "waits"
        answers: list[Any] = [a.ends().result, b.ends().result]
    assert answers[0].json() == answers[1].json()
    assert reserved() == 1


def test_a_reservation_whose_process_dies_keeps_no_key():
    """Key and reservation are one transaction: the repetition reserves."""
    with buyers() as start:
        start("A", partial(post, "/reservations/", WISH, "k"), "written").reaches("written").dies()
    assert not IdempotencyKey.objects.exists()
    assert "Idempotency-Replayed" not in post("/reservations/", WISH, "k").headers


def test_a_reservation_whose_answer_was_lost_is_found(monkeypatch):
    """The connection broke after the commit: the client hears of its reservation at once."""

    def commit_and_break(*args: Any, **kwargs: Any) -> None:
        reserve(*args, **kwargs)
        raise OperationalError("the connection is gone")

    monkeypatch.setattr("orders.selling.reservations.reserve", commit_and_break)
    assert post("/reservations/", WISH, "k").status_code == 201
    assert reserved() == 1


def test_a_reservation_is_shown_with_its_state():
    """Live, released, and expired as soon as its time is over, whether it was swept or not."""
    made = post("/reservations/", WISH)
    address = made.headers["Location"]
    assert Client().get(address).json() == made.json()
    assert made.json()["state"] == "live"
    Reservation.objects.update(expires_at=Now())
    assert Client().get(address).json()["state"] == "expired"
    released = post("/reservations/", WISH).headers["Location"]
    Client().delete(released)
    assert Client().get(released).json()["state"] == "released"
    assert kind(Client().get(f"/reservations/{uuid.uuid4()}/")) == (404, "not-found")


def test_a_reservation_is_extended():
    """From now on for so many seconds, never shorter, and the same request again changes nothing much."""
    made = post("/reservations/", WISH)
    address = made.headers["Location"] + "extend/"
    before = made.json()["expires_at"]
    longer = post(address, {"ttl": 3600}).json()
    assert longer["expires_at"] > before
    assert post(address, {"ttl": 1}).json()["expires_at"] == longer["expires_at"]
    assert reserved() == 1


def test_what_has_ended_is_not_extended():
    """409 with the state, also before a sweep; 404 for what never was."""
    made = post("/reservations/", WISH)
    Reservation.objects.update(expires_at=Now())
    refused = post(made.headers["Location"] + "extend/", {"ttl": 60})
    assert (kind(refused), refused.json()["state"]) == ((409, "reservation-gone"), "expired")
    assert kind(post(f"/reservations/{uuid.uuid4()}/extend/", {})) == (404, "not-found")
    assert kind(post(made.headers["Location"] + "extend/", {"ttl": 0})) == (400, "invalid-request")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"lines": [{"sku": "mug", "quantity": 1}], "ttl": 0}, "/ttl"),
        ({"lines": [{"sku": "mug", "quantity": 1}], "ttl": True}, "/ttl"),
        ({"ttl": 5}, "/lines"),
        ({"lines": [{"sku": "mug", "quantity": 1}], "customer": ""}, "/customer"),
    ],
)
def test_a_reservation_that_cannot_be(body, pointer):
    """400 with a pointer to the field."""
    refused = post("/reservations/", body)
    assert kind(refused) == (400, "invalid-request")
    assert refused.json()["errors"][0]["pointer"] == pointer


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"reservation": "x"}, "/reservation"),
        ({"reservation": 7}, "/reservation"),
        ({"reservation": str(uuid.uuid4()), "lines": []}, "/lines"),
        ({"lines": [{"sku": "mug", "quantity": 1}], "customer": 7}, "/customer"),
    ],
)
def test_a_checkout_that_cannot_be(body, pointer):
    """So at the checkout."""
    assert pointer in [fault["pointer"] for fault in post("/checkout/", body).json()["errors"]]


def test_pay_and_cancel():
    """Paid twice is paid; cancelled gives the units back; then the payment is too late."""
    order = checkout_address()
    assert post(order + "pay/", {}).json()["state"] == "paid"
    assert post(order + "pay/", {}).json()["state"] == "paid"
    assert post(order + "cancel/", {}).json()["state"] == "cancelled"
    assert kind(post(order + "pay/", {})) == (409, "payment-too-late")
    assert left() == 2


def checkout_address() -> str:
    """Return the address of a new order."""
    return str(buy().headers["Location"])


def test_an_expired_order_cannot_be_cancelled():
    """409 of its own type, with the state."""
    order = checkout_address()
    Order.objects.update(state="expired")
    refused = post(order + "cancel/", {})
    assert (kind(refused), refused.json()["state"]) == ((409, "order-state"), "expired")


def test_orders_that_are_not_there():
    """404 for both."""
    for verb in ("pay", "cancel"):
        assert kind(post(f"/orders/{uuid.uuid4()}/{verb}/", {})) == (404, "not-found")
        assert kind(post(f"/orders/x/{verb}/", {})) == (404, "not-found")


def test_what_says_everything_in_its_address_takes_an_empty_object():
    """A form of a foreign page can't send it, and a member that would be ignored is refused."""
    order = checkout_address()
    assert kind(post(order + "pay/", {"amount": 1})) == (400, "invalid-request")
    assert kind(Client().post(order + "pay/")) == (415, "media-type")
    assert Order.objects.get().state == "placed"
