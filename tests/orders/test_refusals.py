"""A shop that gives a refusal again for a moment: no server is asked meanwhile, and no more is sold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from inventory.domain import Line, SoldOut
from inventory.models import Product
from orders import refusal_cache
from orders.models import Order
from orders.services import checkout
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)

KEPT = 0.05


@pytest.fixture(autouse=True)
def a_mug_too_few(settings, monkeypatch):
    """A shop without mugs that keeps its refusals, and has given none yet."""
    settings.SOLD_OUT_KEPT = KEPT
    settings.CHECKOUT_STRATEGY = "row_lock"
    ProductFactory.create(sku="mug", on_hand=0)
    monkeypatch.setattr(refusal_cache, "_kept", {})


@pytest.fixture
def clock(monkeypatch):
    """The clock by which refusals grow old."""
    times = [1000.0]
    monkeypatch.setattr(refusal_cache, "monotonic", lambda: times[0])
    return times


def buy(quantity: int = 1, sku: str = "mug") -> Order:
    """Buy so many."""
    return checkout([Line(sku, quantity)])


def refuse(quantity: int = 1) -> SoldOut:
    """Be refused so many."""
    with pytest.raises(SoldOut) as refused:
        buy(quantity)
    return refused.value


def test_the_second_buyer_is_refused_without_a_question(clock, django_assert_num_queries):
    """The very same answer, and not one statement."""
    first = refuse()
    with django_assert_num_queries(0):
        second = refuse()
    assert second.shortages == first.shortages
    assert second is not first, "an exception that two threads raise carries the traceback of both"


def test_a_refusal_ends_with_its_time(clock):
    """After a restock a buyer is refused no longer than the setting says, then served."""
    refuse()
    Product.objects.update(on_hand=1)
    clock[0] += KEPT - 0.001
    refuse()
    clock[0] += 0.001
    assert buy().pk


def test_a_slow_refusal_is_given_again_too(clock, monkeypatch, django_assert_num_queries):
    """Its time begins when the first buyer is told, who may have waited for longer than that in the crowd."""
    with monkeypatch.context() as patch:
        patch.setattr("orders.services._sell", lambda *_: _slowly(clock))
        refuse()
    with django_assert_num_queries(0):
        refuse()


def _slowly(clock):
    clock[0] += 10 * KEPT
    raise SoldOut([], promised=False)


def test_another_cart_is_asked_about(clock):
    """Only the very cart that was refused is refused unasked: fewer units may be there."""
    Product.objects.update(on_hand=2)
    refuse(3)
    assert buy(2).pk


def test_a_forgetful_shop_asks_each_time(settings):
    """By default nothing is kept."""
    settings.SOLD_OUT_KEPT = 0.0
    refuse()
    Product.objects.update(on_hand=1)
    assert buy().pk


def test_many_carts_are_forgotten_at_once(clock, monkeypatch):
    """The memory is bounded."""
    monkeypatch.setattr(refusal_cache, "MOST", 2)
    for quantity in (1, 2, 3):
        refuse(quantity)
    assert len(refusal_cache._kept) == 1


def test_the_answer_is_the_same_through_http(clock, django_assert_num_queries):
    """409 with the shortages, a second time without a statement."""

    def post() -> Any:
        body = json.dumps({"lines": [{"sku": "mug", "quantity": 1}]})
        return Client().post("/checkout/", body, content_type="application/json")

    first = post()
    with django_assert_num_queries(0):
        second = post()
    assert (second.status_code, second.json()) == (first.status_code, first.json())
    assert first.status_code == 409
