"""The shop's form without JavaScript, and the examples of the problems."""

import json

import pytest

from inventory.models import Product
from orders.models import Order
from orders.problem_examples import example
from orders.problems import PROBLEM_TYPES
from tests.factories import ProductFactory


@pytest.mark.parametrize("kind", PROBLEM_TYPES, ids=lambda kind: kind.slug)
def test_every_problem_has_an_example(kind):
    """The example is the JSON of that very type."""
    body = json.loads(example(kind))
    assert (body["type"], body["status"]) == (f"/problems/#{kind.slug}", kind.status)


@pytest.mark.django_db
def test_the_form_of_the_shop_places_an_order(client):
    """Fields with a quantity become the lines of an order; the page says its total."""
    ProductFactory(sku="mug", price="7.50", on_hand=40)
    ProductFactory(sku="pen")
    page = client.post("/shop/order/", {"quantity-mug": "2", "quantity-pen": "0"}, follow=True)
    assert "Ordered for 15.00 EUR." in page.content.decode()
    assert Order.objects.count() == 1
    assert Product.objects.get(sku="mug").on_hand == 38


@pytest.mark.django_db
@pytest.mark.parametrize("quantity", ["", "-1", "1.5", "x", "9" * 30, "41"])
def test_the_form_of_the_shop_explains_a_refusal(client, quantity):
    """What can't be ordered is refused in words by the page, and nothing is sold."""
    ProductFactory(sku="mug", on_hand=40)
    page = client.post("/shop/order/", {"quantity-mug": quantity}, follow=True)
    assert page.status_code == 200
    assert 'class="notice error"' in page.content.decode()
    assert not Order.objects.exists()


def test_the_form_of_the_shop_is_for_posts_only(client):
    """Looking at its address changes nothing."""
    assert client.get("/shop/order/").status_code == 405
