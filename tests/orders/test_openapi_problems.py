"""The document lists for each operation the problems that it can have: each of them is brought about here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import OperationalError, connection
from django.test import Client

from inventory import Line
from orders.after_sale.lifecycle import cancel
from orders.http import idempotency
from orders.http.callers import Caller
from orders.http.openapi import describe
from orders.models import Order, Product
from orders.selling import reservations
from orders.selling.checkout import checkout, checkout_reserved
from tests.factories import ProductFactory
from tests.orders.conftest import slugs
from tests.orders.test_payment_webhook import NEW, notice, now, signed

pytestmark = pytest.mark.django_db(transaction=True)

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"


LISTED = sorted(
    (operation["operationId"], slug)
    for operations in describe()["paths"].values()
    for operation in operations.values()
    for slug in slugs(operation)
)


@dataclass
class Call:
    """One request: its operation, address, body and headers; `settings` are the shop's."""

    name: str
    settings: Any
    method: str = "post"
    address: str = ""
    body: Any = None
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    def send(self) -> Any:
        """Send it, signed where it is the provider's."""
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        headers = dict(self.headers)
        if self.name == "payment" and "Stripe-Signature" not in headers:
            headers["Stripe-Signature"] = signed(body, now())
        if self.body is None:
            return Client().generic(self.method.upper(), self.address, headers=headers)
        return Client().post(self.address, body, content_type=self.content_type, headers=headers)


def good(name: str, settings: Any) -> Call:
    """Return a request that this operation answers well, in a shop that has what it asks for."""
    lines = {"lines": [{"sku": "mug", "quantity": 1}]}
    ttl = timedelta(minutes=1)
    if name in ("reservation", "release", "extend"):
        basket = reservations.reserve([Line("mug", 1)], ttl).id
    if name in ("pay", "cancel", "order", "payment"):
        order = checkout([Line("mug", 1)], "conditional_update")
    calls: dict[str, Callable[[], Call]] = {
        "checkout": lambda: Call(name, settings, address="/checkout/", body=lines),
        "reserve": lambda: Call(name, settings, address="/reservations/", body=lines),
        "reservation": lambda: Call(name, settings, "get", f"/reservations/{basket}/"),
        "release": lambda: Call(name, settings, "delete", f"/reservations/{basket}/"),
        "extend": lambda: Call(name, settings, address=f"/reservations/{basket}/extend/", body={"ttl": 90}),
        "pay": lambda: Call(name, settings, address=f"/orders/{order.pk}/pay/", body={}),
        "cancel": lambda: Call(name, settings, address=f"/orders/{order.pk}/cancel/", body={}),
        "order": lambda: Call(name, settings, "get", f"/orders/{order.pk}/"),
        "orders": lambda: Call(name, settings, "get", "/orders/"),
        "products": lambda: Call(name, settings, "get", "/products/"),
        "payment": lambda: Call(name, settings, address="/payments/webhook/", body=notice(order.pk)),
    }
    return calls[name]()


@contextmanager
def database_fails(error: psycopg.Error, where: str = "") -> Iterator[None]:
    """Have each statement in which the pattern `where` is found fail with the driver's `error`."""

    def run(execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if re.search(where, str(sql)):
            raise OperationalError(str(error)) from error
        return execute(sql, params, many, context)

    with connection.execute_wrapper(run):
        yield


# How each problem is brought about --------------------------------------------------------------------------


def invalid(call: Call) -> Any:
    """A body or an address that can't be."""
    if call.method == "get":
        return replace(call, address=f"{call.address}?cursor=x").send()
    return replace(call, body={"unheard": "of"}).send()


def too_large(call: Call) -> Any:
    """More than 64 KiB."""
    return replace(call, body=b"{" + b" " * 70_000 + b"}").send()


def media_type(call: Call) -> Any:
    """Plain text."""
    return replace(call, content_type="text/plain").send()


def signature(call: Call) -> Any:
    """A signature that none has made."""
    return replace(call, headers=(("Stripe-Signature", "t=1,v1=00"),)).send()


def unauthorized(call: Call) -> Any:
    """A shop with API keys, and none is sent."""
    call.settings.CALLER = "orders.http.callers.by_api_key"
    return call.send()


def ann(request: Any) -> Caller:
    """Authenticate every request as Ann's."""
    return Caller("user:ann", customer="ann")


def forbidden(call: Call) -> Any:
    """A caller without rights, and one that buys in another name."""
    if call.name in ("checkout", "reserve"):
        call.settings.CALLER = f"{__name__}.ann"
        return replace(call, body={**call.body, "customer": "bob"}).send()
    call.settings.OPEN_DEMO = False
    return call.send()


def unknown_product(call: Call) -> Any:
    """A SKU of no product."""
    return replace(call, body={"lines": [{"sku": "mugg", "quantity": 1}]}).send()


def not_found(call: Call) -> Any:
    """An id of nothing."""
    if call.name == "checkout":
        return replace(call, body={"reservation": UNKNOWN_ID}).send()
    if call.name == "payment":
        return replace(call, body=notice(UNKNOWN_ID)).send()
    parts = call.address.split("/")
    return replace(call, address="/".join([*parts[:2], UNKNOWN_ID, *parts[3:]])).send()


def sold_out(call: Call) -> Any:
    """More than there is."""
    return replace(call, body={"lines": [{"sku": "mug", "quantity": 9_999}]}).send()


def limit(call: Call) -> Any:
    """More than one customer may have."""
    Product.objects.update(customer_limit=1)
    return replace(call, body={"lines": [{"sku": "mug", "quantity": 2}], "customer": "ann"}).send()


def not_for_sale(call: Call) -> Any:
    """A product that is not for sale."""
    Product.objects.update(active=False)
    return call.send()


def mixed(call: Call) -> Any:
    """Euros and dollars."""
    ProductFactory.create(sku="poster")
    Product.objects.filter(sku="poster").update(currency="USD")
    return replace(call, body={"lines": [{"sku": sku, "quantity": 1} for sku in ("mug", "poster")]}).send()


def price_changed(call: Call) -> Any:
    """A total that isn't what the order costs."""
    return replace(call, body={**call.body, "expected_total": "1.00"}).send()


def gone(call: Call) -> Any:
    """A reservation that was released, or sold."""
    if call.name == "checkout":
        basket = reservations.reserve([Line("mug", 1)], timedelta(minutes=1)).id
        call = replace(call, body={"reservation": str(basket)})
    else:
        basket = UUID(call.address.split("/")[2])
    if call.name == "release":
        checkout_reserved(basket)
    else:
        reservations.release(basket)
    return call.send()


def ended(call: Call) -> Any:
    """An order that has ended."""
    order = UUID(call.address.split("/")[2])
    cancel(order)
    Order.objects.filter(pk=order).update(state="expired")
    return call.send()


def with_key(call: Call) -> Call:
    """Return the request with a key."""
    return replace(call, headers=(("Idempotency-Key", "k"),))


def key_missing(call: Call) -> Any:
    """A shop that wants keys."""
    call.settings.IDEMPOTENCY_KEY_REQUIRED = True
    return call.send()


def key_in_progress(call: Call) -> Any:
    """A key that is at work."""
    idempotency._in_flight.add(("", "k"))
    try:
        return with_key(call).send()
    finally:
        idempotency._in_flight.discard(("", "k"))


def key_reused(call: Call) -> Any:
    """A key of another request."""
    with_key(call).send()
    return replace(with_key(call), body={"lines": [{"sku": "mug", "quantity": 2}]}).send()


def too_many(call: Call) -> Any:
    """The second request of a minute that allows one."""
    call.settings.CHECKOUT_RATE = 1
    call.send()
    return call.send()


def busy(call: Call) -> Any:
    """A deadlock."""
    with database_fails(psycopg.errors.DeadlockDetected("deadlock detected"), "UPDATE|inventory_take_plain"):
        return call.send()


def unavailable(call: Call) -> Any:
    """A database that refuses the work."""
    refused = psycopg.errors.DiskFull("could not extend file: no space left on device")
    with database_fails(refused, "orders_" if call.name == "payment" else ""):
        return call.send()


def unknown(call: Call) -> Any:
    """A connection that is lost in COMMIT."""
    lost = OperationalError("server closed the connection unexpectedly")

    def commit() -> None:
        raise lost from psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_commit", commit)
        return call.send()


HOW: dict[str, Callable[[Call], Any]] = {
    "invalid-request": invalid,
    "too-large": too_large,
    "media-type": media_type,
    "signature-refused": signature,
    "unauthorized": unauthorized,
    "forbidden": forbidden,
    "not-found": not_found,
    "sold-out": sold_out,
    "customer-limit": limit,
    "not-for-sale": not_for_sale,
    "mixed-currencies": mixed,
    "price-changed": price_changed,
    "reservation-gone": gone,
    "payment-too-late": ended,
    "order-state": ended,
    "unknown-product": unknown_product,
    "key-missing": key_missing,
    "key-in-progress": key_in_progress,
    "key-reused": key_reused,
    "too-many-requests": too_many,
    "busy": busy,
    "unavailable": unavailable,
    "outcome-unknown": unknown,
}


@pytest.fixture(autouse=True)
def shop(settings):
    """A shop that sells mugs by the database alone, and takes payments."""
    settings.CHECKOUT_STRATEGY = "conditional_update"
    settings.PAYMENT_WEBHOOK_SECRETS = [NEW]
    settings.OPEN_DEMO = True
    ProductFactory.create(sku="mug", on_hand=10)


@pytest.mark.parametrize(("operation", "slug"), LISTED)
def test_what_is_listed_occurs(settings, operation, slug):
    """Each problem of each operation is what the server answers in some state of the shop."""
    answer = HOW[slug](good(operation, settings))
    assert json.loads(answer.content)["type"] == f"/problems/#{slug}"


@pytest.mark.parametrize("operation", ["pay", "cancel", "payment"])
def test_what_changes_an_order_is_listed_as_busy(settings, operation):
    """It waits for a locked row for so long, and is the victim of a deadlock, as a checkout is."""
    assert json.loads(busy(good(operation, settings)).content)["type"] == "/problems/#busy"
    assert (operation, "busy") in LISTED


def test_a_problem_that_is_not_listed_is_found(client, monkeypatch):
    """What `conftest.py` asks of every answer to a test: a problem that the document lacks fails the test."""
    monkeypatch.setattr("tests.orders.conftest.listed_for", lambda path, method: frozenset())
    with pytest.raises(AssertionError, match="sold-out is not listed for POST /checkout/"):
        client.post(
            "/checkout/",
            {"lines": [{"sku": "mug", "quantity": 99}]},
            content_type="application/json",
        )
