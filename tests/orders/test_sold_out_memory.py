"""Sold-out products are refused from memory: for how long, and what ends it sooner."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from inventory import Line, Shortage, SoldOut
from inventory.signals import posted
from orders.after_sale.lifecycle import cancel
from orders.models import Order
from orders.selling import sold_out_memory as memory
from orders.selling.checkout import checkout
from tests.factories import ProductFactory
from tests.orders.shelf import receive

BOUND = 0.25
CART = [Line("mug", 1)]


@pytest.fixture
def clock(monkeypatch):
    """The clock by which memories grow old; only a test turns it."""
    now = [1000.0]
    monkeypatch.setattr(memory, "monotonic", lambda: now[0])
    monkeypatch.setattr("orders.selling.checkout.monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def remembering(settings):
    """A shop that remembers, as `apps.py` sets it up."""
    settings.SOLD_OUT_MEMORY, settings.CHECKOUT_STRATEGY = BOUND, "conditional_update"
    memory.forget()
    posted.connect(memory.stock_changed, dispatch_uid="orders.sold_out_memory")
    yield
    posted.disconnect(dispatch_uid="orders.sold_out_memory")
    memory.forget()


def test_it_counts_from_before_the_question(clock):
    """Whatever the database took to answer: stock that came back meanwhile is not refused for longer."""
    memory.remember([Shortage("mug", 1, 0)], clock[0] - 0.2)
    clock[0] += 0.04
    with pytest.raises(SoldOut):
        memory.refuse(CART)
    clock[0] += 0.01
    memory.refuse(CART)


def test_less_than_was_refused_may_be_there(clock):
    """One is left: two are refused, and one is sold."""
    memory.remember([Shortage("mug", 3, 1)], clock[0])
    memory.refuse(CART)
    with pytest.raises(SoldOut) as refused:
        memory.refuse([Line("mug", 2), Line("pen", 1)])
    assert refused.value.shortages == (Shortage("mug", 2, 1),)


def test_without_the_setting_nothing_is_remembered(clock, settings):
    """0 is off."""
    settings.SOLD_OUT_MEMORY = 0
    memory.remember([Shortage("mug", 1, 0)], clock[0])
    memory.refuse(CART)


def test_it_does_not_grow_without_end(clock):
    """A crowd that asks forever other products takes no more memory."""
    for number in range(2 * memory.MOST):
        memory.remember([Shortage(f"p{number}", 1, 0)], clock[0])
    assert len(memory._left) <= memory.MOST + 1


@pytest.mark.django_db(transaction=True)
def test_the_second_refusal_asks_no_server(clock, django_assert_num_queries):
    """The first one has asked; when its time is over, the database is asked again."""
    ProductFactory.create(sku="mug", on_hand=0)
    with pytest.raises(SoldOut):
        checkout(CART)
    with django_assert_num_queries(0), pytest.raises(SoldOut) as refused:
        checkout(CART)
    assert refused.value.shortages == (Shortage("mug", 1, 0),)
    receive(1)
    memory.remember([Shortage("mug", 1, 0)], clock[0])  # another process's delivery isn't heard of here
    clock[0] += BOUND
    assert checkout(CART).pk


@pytest.mark.django_db(transaction=True)
def test_units_that_come_back_in_this_process_are_sold_at_once(clock):
    """A delivery and a cancellation end what is remembered, after their commit."""
    ProductFactory.create(sku="mug", on_hand=1)
    order = checkout(CART)
    for come_back in (lambda: receive(1), lambda: cancel(order.pk)):
        with pytest.raises(SoldOut):
            checkout(CART)
        come_back()
        assert checkout(CART).pk


@pytest.mark.django_db(transaction=True)
def test_a_key_whose_order_took_the_last_unit_gets_its_order(clock):
    """The memory refuses the repetition, and the key has its answer all the same."""
    ProductFactory.create(sku="mug", on_hand=1)

    def buy(key: str):
        body = json.dumps({"lines": [{"sku": "mug", "quantity": 1}]})
        return Client().post(
            "/checkout/", body, content_type="application/json", headers={"Idempotency-Key": key}
        )

    first = buy("k")
    assert buy("other").status_code == 409
    assert buy("k").json() == first.json()
    assert Order.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_refusal_from_memory_is_not_kept_under_a_key(clock):
    """Units have come back meanwhile: the client hears *try again*, and is served."""
    ProductFactory.create(sku="mug", on_hand=1)
    memory.remember([Shortage("mug", 1, 0)], clock[0])
    body = json.dumps({"lines": [{"sku": "mug", "quantity": 1}]})
    send: dict[str, Any] = {
        "data": body,
        "content_type": "application/json",
        "headers": {"Idempotency-Key": "k"},
    }
    assert Client().post("/checkout/", **send).status_code == 503
    clock[0] += BOUND
    assert Client().post("/checkout/", **send).status_code == 201
