"""The shop without JavaScript: its form places one order, however often it is sent."""

import re

import pytest

from orders.models import IdempotencyKey, Order, Product
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def form(client):
    """The fields of a page of the shop on which two mugs are chosen, of three."""
    ProductFactory(sku="mug", name="Mug", price="7.50", on_hand=3)
    return {"quantity-mug": "2", "key": key_of(client)}


def key_of(client):
    """Return the key of a new page."""
    (key,) = re.findall(r'name="key" value="(\w+)"', client.get("/shop/").content.decode())
    return key


def send(client, fields):
    """Send the form and return what the page says then."""
    page = client.post("/shop/order/", fields, follow=True)
    return [str(message) for message in page.context["messages"]]


def test_a_form_that_is_sent_twice_places_one_order(client, form):
    """The second one, after a reload or a lost answer, gets the first one's words."""
    assert [send(client, form), send(client, form)] == [["Ordered for 15.00 EUR."]] * 2
    assert Order.objects.count() == 1


def test_an_amount_is_written_as_its_currency_is(client):
    """Yen have no hundredths, on the shelf and in the answer; a finer price of before is not rounded."""
    ProductFactory(sku="mug", price="150.00", currency="JPY", on_hand=3)
    pen = ProductFactory(sku="pen", on_hand=3)
    Product.objects.filter(pk=pen.pk).update(price="1.50", currency="JPY")
    page = client.get("/shop/").content.decode()
    assert "150 JPY" in page
    assert "1.50 JPY" in page
    assert send(client, {"quantity-mug": "2", "key": key_of(client)}) == ["Ordered for 300 JPY."]


def test_a_new_page_places_a_new_order(client, form):
    """Each page has a key of its own."""
    send(client, form)
    assert send(client, {"quantity-mug": "1", "key": key_of(client)}) == ["Ordered for 7.50 EUR."]
    assert Order.objects.count() == 2


def test_a_refusal_is_repeated_in_the_same_words(client, form):
    """A sold-out answer is repeated under its key."""
    first, second = (send(client, {**form, "quantity-mug": "4"}) for _ in range(2))
    assert first == second
    assert "Not enough" in first[0]
    assert not Order.objects.exists()


@pytest.mark.parametrize("key", [True, False])
def test_a_product_that_is_gone_is_named(client, form, key):
    """The page was open for longer than the product was in the catalog; with the page's key or without."""
    wanted = {**form, "quantity-pen": "1"}
    (said,) = send(client, wanted if key else {**wanted, "key": ""})
    assert "pen" in said
    assert "no product has this SKU" in said
    assert not Order.objects.exists()


def test_another_order_under_the_same_key_is_refused(client, form):
    """A page that was changed after it was sent places nothing, and says why."""
    send(client, form)
    assert "another request" in send(client, {**form, "quantity-mug": "1"})[0]
    assert Order.objects.count() == 1


@pytest.mark.parametrize("key", ["", "x", "0" * 300])
def test_a_form_without_a_key_is_no_error(client, form, key):
    """An old page, or a program: the order is placed, and nothing is kept."""
    assert send(client, {**form, "key": key}) == ["Ordered for 15.00 EUR."]
    assert not IdempotencyKey.objects.exists()
