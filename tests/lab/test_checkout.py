"""The lab's own checkout over HTTP: what it answers, and where it is."""

from __future__ import annotations

import json

import pytest

from orders.lab.models import Order
from orders.lab.strategies import STRATEGIES
from tests.lab.products import make
from tests.lab.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)
SOUND = [name for name, strategy in STRATEGIES.items() if strategy.sound]


@pytest.fixture(autouse=True)
def enabled(settings):
    """The endpoint is on."""
    settings.LAB_CHECKOUT = True


def post(client, body, **more):
    """Ask for a sale."""
    text = body if isinstance(body, str) else json.dumps(body)
    return client.post("/lab/checkout/", text, **{"content_type": "application/json"} | more)


@pytest.mark.parametrize("strategy", SOUND)
def test_every_sound_lesson_sells_over_http_what_is_there(client, strategy):
    """201 with the id of the order, and 409 for the next buyer."""
    sku = make(1).sku
    answer = post(client, {"strategy": strategy, "cart": {sku: 1}})
    assert answer.status_code == 201
    assert str(Order.objects.get().pk) == answer.json()["order"]
    refused = post(client, {"strategy": strategy, "cart": {sku: 1}})
    assert (refused.status_code, refused.json()) == (409, {"message": f"not enough stock: {sku} (0 of 1)"})
    assert totals_of(sku).balanced


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "Expecting"),
        ([], "must be an object"),
        ({"cart": {"mug": 1}}, "must be an object"),
        ({"strategy": "magic", "cart": {"mug": 1}}, "unknown strategy 'magic'"),
        ({"strategy": ["row_lock"], "cart": {"mug": 1}}, "unknown strategy ['row_lock']"),
        ({"strategy": "row_lock", "cart": {}}, "must be a mapping"),
        ({"strategy": "row_lock", "cart": {"mug": 0}}, "units of mug"),
        ({"strategy": "row_lock", "cart": {"mug": True}}, "units of mug"),
        ({"strategy": "row_lock", "cart": {"a b": 1}}, "sku 'a b'"),
        ({"strategy": "row_lock", "cart": {"mug": 1}}, "unknown product: mug"),
    ],
)
def test_what_cannot_be_sold_is_named(client, body, said):
    """400 with the value and the reason."""
    answer = post(client, body)
    assert answer.status_code == 400
    assert said in answer.json()["message"]


def test_a_form_of_another_page_sells_nothing(client):
    """The endpoint needs no CSRF token, because it takes no content type that a form can send."""
    assert post(client, "strategy=row_lock", content_type="text/plain").status_code == 415


def test_it_is_not_there_where_the_lab_does_not_sell(client, settings):
    """404, before anything is read."""
    settings.LAB_CHECKOUT = False
    assert post(client, {"strategy": "row_lock", "cart": {make().sku: 1}}).status_code == 404
