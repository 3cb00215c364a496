"""The provider's webhook: only what it signed counts, in time, once; money that is refused is published."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from inventory import Line
from orders.after_sale import lifecycle
from orders.http import webhook
from orders.models import Order, OrderEvent, PaymentEvent, Product
from orders.selling.checkout import checkout
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import left

pytestmark = pytest.mark.django_db(transaction=True)

OLD, NEW = "whsec_the_old_one", "whsec_the_new_one"


@pytest.fixture(autouse=True)
def secrets(settings):
    """A shop that is about to replace its secret."""
    settings.PAYMENT_WEBHOOK_SECRETS = [NEW, OLD]


@pytest.fixture
def order() -> Order:
    """Two mugs for 5.00."""
    ProductFactory.create(sku="mug")
    return checkout([Line("mug", 2)], "conditional_update")


def now() -> int:
    """Return the database's time."""
    return int(webhook._now())


def signed(body: bytes, at: int, secret: str = NEW) -> str:
    """Return the header as the provider would send it."""
    made = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


def notice(order_id: object, **members: Any) -> dict[str, Any]:
    """Return the event of a payment of 5.00."""
    paid = {"id": "pi_1", "amount_received": 500, "currency": "eur", "metadata": {"order_id": str(order_id)}}
    event = {"id": "evt_1", "type": "payment_intent.succeeded", "data": {"object": paid}}
    paid.update({name: value for name, value in members.items() if name not in event})
    event.update({name: value for name, value in members.items() if name in event})
    return event


def send(event: Any, header: str | None = None, **sign: Any) -> Any:
    """Send an event with its signature, or with another header."""
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    header = signed(body, sign.pop("at", None) or now(), **sign) if header is None else header
    headers = {"Stripe-Signature": header} if header else {}
    return Client().post("/payments/webhook/", body, content_type="application/json", headers=headers)


def kind(response: Any) -> tuple[int, str]:
    """Return the status and the slug of a problem."""
    return response.status_code, response.json()["type"].removeprefix("/problems/#")


def outcomes() -> list[str]:
    """Return the outcomes of all events, in the order of their arrival."""
    return list(PaymentEvent.objects.order_by("pk").values_list("outcome", flat=True))


def test_a_signed_payment_pays_the_order_once(order):
    """The same event again is answered with the same outcome and does nothing."""
    answers = [send(notice(order.pk)) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert [answer.json()["repeated"] for answer in answers] == [False, True, True]
    assert {answer.json()["outcome"] for answer in answers} == {"paid"}
    order.refresh_from_db()
    assert order.state == "paid"
    assert outcomes() == ["paid"]
    assert OrderEvent.objects.filter(kind="paid").count() == 1


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_any_of_several_secrets_may_have_signed(order, secret):
    """While a secret is replaced, events signed with the old and the new one count."""
    assert send(notice(order.pk), secret=secret).json()["outcome"] == "paid"


def test_one_of_several_signatures_is_enough(order):
    """The provider signs with both secrets while it replaces one, and may add other schemes."""
    body = json.dumps(notice(order.pk)).encode()
    at = now()
    header = f"{signed(body, at, 'unknown')},{signed(body, at).partition(',')[2]},v0=abc"
    assert send(body, header).status_code == 200


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("", "is missing"),
        ("v1=" + "0" * 64, "cannot be read"),
        ("t=1", "cannot be read"),
        ("t=1,t=2,v1=" + "0" * 64, "cannot be read"),
        ("t=abc,v1=" + "0" * 64, "cannot be read"),
        ("t=-1,v1=" + "0" * 64, "cannot be read"),
        ("t=1" + "0" * 40 + ",v1=" + "0" * 64, "cannot be read"),
        ("t=1,v1=é", "cannot be read"),
        ("t=1,v1=" + "0" * 64, "None of the 2 secrets"),
    ],
)
def test_a_header_that_proves_nothing_is_refused(order, header, reason):
    """400 of its own type, with what is wrong; the order stays unpaid."""
    refused = send(notice(order.pk), header)
    assert kind(refused) == (400, "signature-refused")
    assert reason in refused.json()["detail"]
    assert Order.objects.get().state == "placed"


def test_another_secret_or_another_body_is_refused(order):
    """What was signed must be what is read, with a secret that the shop knows."""
    body = json.dumps(notice(order.pk)).encode()
    assert kind(send(body, secret="whsec_of_somebody_else")) == (400, "signature-refused")
    assert kind(send(body + b" ", signed(body, now()))) == (400, "signature-refused")
    assert not PaymentEvent.objects.exists()


@pytest.mark.parametrize(("seconds", "status"), [(-310, 400), (-290, 200), (290, 200), (310, 400)])
def test_a_signature_counts_for_five_minutes(order, seconds, status):
    """A recorded request that is sent later is refused, and so is one from the future."""
    answer = send(notice(order.pk), at=now() + seconds)
    assert answer.status_code == status
    if status == 400:
        assert "sign each attempt," in answer.json()["detail"]


def test_the_time_is_part_of_what_is_signed(order):
    """Putting a new time into an old header makes no new signature."""
    body = json.dumps(notice(order.pk)).encode()
    at = now()
    forged = f"t={at}," + signed(body, at - 1000).partition(",")[2]
    assert kind(send(body, forged)) == (400, "signature-refused")


def test_mutant_without_the_window(order, monkeypatch):
    """Without the window a request that was recorded a day ago counts."""
    monkeypatch.setattr(webhook, "TOLERANCE", float("inf"))
    assert send(notice(order.pk), at=now() - 86_400).status_code == 200


def test_without_a_secret_nothing_is_accepted(order, settings):
    """An empty list isn't a public secret."""
    settings.PAYMENT_WEBHOOK_SECRETS = []
    assert kind(send(notice(order.pk))) == (404, "not-found")


# What an event does -----------------------------------------------------------------------------------------


def test_several_events_about_one_payment_pay_once(order):
    """A checkout session and its payment intent are one payment, whichever comes first."""
    session = {"payment_intent": "pi_1", "amount_total": 500, "payment_status": "paid"}
    send(notice(order.pk))
    send(notice(order.pk, id="evt_2", type="checkout.session.completed", **session))
    assert outcomes() == ["paid", "already_paid"]
    assert not OrderEvent.objects.filter(kind="payment_refused").exists()


def test_a_second_payment_is_reported(order):
    """Another payment of a paid order is money to give back."""
    send(notice(order.pk))
    body = notice(order.pk, id="evt_2")
    body["data"]["object"]["id"] = "pi_2"
    assert send(body).json()["outcome"] == "paid_twice"
    assert refusal() == {"reason": "paid_twice", "payment": "pi_2", "amount": 500, "currency": "EUR"}


@pytest.mark.parametrize("why", ["too_late", "wrong_amount", "paid_twice"])
def test_several_events_about_one_refused_payment_give_the_money_back_once(order, why):
    """The intent and the session of one payment: both are answered with the refusal, one is published."""
    if why == "too_late":
        lifecycle.cancel(order.pk)
    elif why == "paid_twice":
        send(notice(order.pk, id="evt_0", metadata={"order_id": str(order.pk)}))
    amount = 499 if why == "wrong_amount" else 500
    session = {"payment_status": "paid", "amount_total": amount}
    intent = notice(order.pk, amount_received=amount)
    intent["data"]["object"]["id"] = "pi_2"
    completed = notice(
        order.pk, id="evt_2", type="checkout.session.completed", payment_intent="pi_2", **session
    )
    assert [send(event).json()["outcome"] for event in (intent, completed)] == [why, why]
    assert (refusal()["reason"], refusal()["payment"]) == (why, "pi_2")


def test_a_refused_payment_stays_refused(order):
    """An integrator gives it back: a later event of the same payment doesn't pay the order with it."""
    send(notice(order.pk, amount_received=499))
    assert send(notice(order.pk, id="evt_2")).json()["outcome"] == "wrong_amount"
    assert Order.objects.get().state == "placed"


def test_a_second_payment_of_an_order_that_staff_have_marked_is_reported(order):
    """Staff may have noted the first one; the second is money to give back."""
    lifecycle.pay(order.pk)
    send(notice(order.pk))
    second = notice(order.pk, id="evt_2")
    second["data"]["object"]["id"] = "pi_2"
    assert send(second).json()["outcome"] == "paid_twice"
    assert refusal()["payment"] == "pi_2"


def refusal() -> Any:
    """Return what was published about money to give back."""
    return OrderEvent.objects.get(kind="payment_refused").data


@pytest.mark.parametrize("amount", [1, 499, 501])
def test_another_amount_does_not_pay(order, amount):
    """One cent doesn't buy two mugs: the order stays as it is, and an event reports the money."""
    assert send(notice(order.pk, amount_received=amount)).json()["outcome"] == "wrong_amount"
    assert Order.objects.get().state == "placed"
    assert refusal()["amount"] == amount


def test_another_currency_does_not_pay(order):
    """Five yen aren't five euros: the order stays as it is, and an event reports the money."""
    assert send(notice(order.pk, currency="jpy")).json()["outcome"] == "wrong_currency"
    assert Order.objects.get().state == "placed"
    assert refusal()["currency"] == "JPY"


def test_a_currency_without_cents_is_paid_in_units():
    """500 yen are the number 500, where five euros are the number 500."""
    mug = ProductFactory.create(sku="mug", price=250)
    Product.objects.filter(pk=mug.pk).update(currency="JPY")
    order = checkout([Line("mug", 2)], "conditional_update")
    assert send(notice(order.pk, currency="jpy")).json()["outcome"] == "paid"


def test_a_currency_of_thousandths_is_paid_in_them():
    """2.5 Kuwaiti dinars are the number 2500."""
    pen = ProductFactory.create(sku="pen", price=Decimal("2.50"))
    Product.objects.filter(pk=pen.pk).update(currency="KWD")
    order = checkout([Line("pen", 1)], "conditional_update")
    body = notice(order.pk, currency="kwd", amount_received=2500)
    assert send(body).json()["outcome"] == "paid"


@pytest.mark.parametrize("currency", ["UGX", "ISK"])
def test_a_currency_whose_hundredths_are_only_written(currency):
    """These have no hundredths, and the provider writes them all the same: 500 is the number 50000."""
    mug = ProductFactory.create(sku="mug", price=250)
    Product.objects.filter(pk=mug.pk).update(currency=currency)
    order = checkout([Line("mug", 2)], "conditional_update")
    assert send(notice(order.pk, currency=currency.lower())).json()["outcome"] == "wrong_amount"
    second = notice(order.pk, id="evt_2", currency=currency.lower(), amount_received=50_000)
    second["data"]["object"]["id"] = "pi_2"
    assert send(second).json()["outcome"] == "paid"


@pytest.mark.parametrize("end", ["cancelled", "window"])
def test_a_payment_that_is_too_late_is_reported(order, end):
    """200, as sending it again won't help; the units are for sale again, and an event reports the money."""
    if end == "cancelled":
        lifecycle.cancel(order.pk)
    else:
        Order.objects.update(pay_by=Now() - timedelta(seconds=1))
    answer = send(notice(order.pk))
    assert (answer.status_code, answer.json()["outcome"]) == (200, "too_late")
    assert Order.objects.get().state == ("cancelled" if end == "cancelled" else "expired")
    assert left() == 10
    assert refusal()["reason"] == "too_late"


def test_an_order_that_staff_have_marked_is_already_paid(order):
    """The event of the same money that was noted by hand changes nothing."""
    lifecycle.pay(order.pk)
    assert send(notice(order.pk)).json()["outcome"] == "already_paid"


@pytest.mark.parametrize(
    "members",
    [
        {"type": "charge.refunded"},
        {"type": "checkout.session.completed", "payment_status": "unpaid", "amount_total": 500},
    ],
)
def test_what_is_no_payment_is_noted_and_ignored(order, members):
    """200 for other events, so that the provider stops sending them."""
    answers = [send(notice(order.pk, **members)).json() for _ in range(2)]
    assert [(answer["outcome"], answer["repeated"]) for answer in answers] == [
        ("ignored", False),
        ("ignored", True),
    ]
    assert Order.objects.get().state == "placed"


@pytest.mark.parametrize(
    "data", [{"object": {"object": "balance"}}, {"object": {"id": 7, "currency": ["eur"]}}]
)
def test_what_is_no_payment_may_be_about_anything(data):
    """A balance has no id: what the shop ignores it doesn't judge, or the provider would send it for days."""
    answer = send({"id": "evt_1", "type": "balance.available", "data": data})
    assert (answer.status_code, answer.json()["outcome"]) == (200, "ignored")


def test_an_unknown_order_is_not_found_and_not_kept():
    """404: the provider shows the failure, and its next attempt counts once the order is there."""
    assert kind(send(notice(uuid4()))) == (404, "not-found")
    assert not PaymentEvent.objects.exists()


@pytest.mark.parametrize(
    ("event", "pointer"),
    [
        ({}, "/id"),
        ({"id": "", "type": "x", "data": {"object": {"id": "pi"}}}, "/id"),
        (notice("no uuid"), "/data/object/metadata/order_id"),
        (notice(None, metadata={}), "/data/object/metadata/order_id"),
        (notice(uuid4(), amount_received=None), "/data/object/amount_received"),
        (notice(uuid4(), amount_received="5"), "/data/object/amount_received"),
        (notice(uuid4(), currency=None), "/data/object/currency"),
        (notice(uuid4(), currency="euro"), "/data/object/currency"),
        (notice(uuid4(), id="e" * 256), "/id"),
        (notice(uuid4(), id="e\0"), "/id"),
        (notice(uuid4(), type="t\0"), "/type"),
        (notice(uuid4(), payment_intent="p" * 256), "/data/object/payment_intent"),
        (notice(uuid4(), payment_intent="p\0"), "/data/object/payment_intent"),
        ([], ""),
    ],
)
def test_an_event_that_cannot_be_read(event, pointer):
    """400 with a pointer to the member."""
    refused = send(event)
    assert kind(refused) == (400, "invalid-request")
    assert refused.json()["errors"][0]["pointer"] == pointer


def test_the_same_event_twice_at_once_pays_once(order):
    """The second delivery waits for the first one's commit, and finds its record."""
    with buyers() as start:
        first = start("first", partial(send, notice(order.pk)), "written").reaches("written")
        second = start("second", partial(send, notice(order.pk)))
        assert second.ends_or_waits() == "waits"
        answers: list[Any] = [first.ends().result, second.ends().result]
    assert [answer.json()["repeated"] for answer in answers] == [False, True]
    assert outcomes() == ["paid"]


def test_a_process_that_dies_before_the_commit_leaves_no_trace(order):
    """Order and record are one transaction: the provider's next attempt counts."""
    with buyers() as start:
        start("first", partial(send, notice(order.pk)), "written").reaches("written").dies()
    assert not PaymentEvent.objects.exists()
    assert send(notice(order.pk)).json() == {"event": "evt_1", "outcome": "paid", "repeated": False}


def test_the_clock_is_the_databases(order, monkeypatch):
    """A worker whose clock is an hour off receives payments all the same."""
    monkeypatch.setattr("time.time", lambda: 0.0)
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM statement_timestamp())")
        at = int(cursor.fetchone()[0])
    assert send(notice(order.pk), at=at).status_code == 200
