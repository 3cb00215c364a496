"""Products that can't be ordered, whatever there is of them: not for sale, or in another currency."""

from __future__ import annotations

import copy
import json
from datetime import timedelta

import pytest
from django.db import DataError, IntegrityError

from inventory import Line
from inventory.strategies import STRATEGIES, get_strategy
from orders.models import Order, Product
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.refusals import MixedCurrencies, NotForSale
from orders.selling.reservations import reserve
from tests.factories import ProductFactory
from tests.inventory.interleaving import buyers

pytestmark = pytest.mark.django_db(transaction=True)

SOUND = [name for name, each in STRATEGIES.items() if each.sound and not each.unconfigured()]
MINUTE = timedelta(minutes=1)


@pytest.fixture
def products():
    """A mug, a lamp that isn't for sale, and a poster in dollars."""
    mug, lamp, poster = (ProductFactory.create(sku=sku) for sku in ("mug", "lamp", "poster"))
    Product.objects.filter(sku="lamp").update(active=False)
    Product.objects.filter(sku="poster").update(currency="USD")
    return {"mug": mug, "lamp": lamp, "poster": poster}


@pytest.mark.parametrize("strategy", SOUND)
def test_an_inactive_product_is_refused(products, strategy):
    """Each strategy names it and takes nothing, of the other products neither; active again, it is sold."""
    get_strategy(strategy).forget(products.values())
    with pytest.raises(NotForSale) as refused:
        checkout([Line("mug", 1), Line("lamp", 1)], strategy)
    assert refused.value.skus == ("lamp",)
    assert str(copy.copy(refused.value)) == str(refused.value)
    Product.objects.filter(sku="lamp").update(active=True)
    checkout([Line("mug", 10), Line("lamp", 10)], strategy)


@pytest.mark.parametrize("strategy", SOUND)
def test_an_order_has_one_currency(products, strategy):
    """Euros and dollars are refused with each product's currency; apart, each order has its own."""
    with pytest.raises(MixedCurrencies) as refused:
        checkout([Line("mug", 1), Line("poster", 1)], strategy)
    assert refused.value.currencies == {"mug": "EUR", "poster": "USD"}
    assert str(copy.copy(refused.value)) == str(refused.value)
    placed = checkout([Line("poster", 1)], strategy)
    assert placed.currency == Order.objects.get().currency == "USD"


def test_a_product_that_is_taken_off_sale_meanwhile(products):
    """`combined` has looked and not sold yet: its statement sells nothing, and the buyer is told."""
    with buyers() as start:
        a = start("A", lambda: checkout([Line("mug", 1)], "combined"), "decided").reaches("decided")
        Product.objects.filter(sku="mug").update(active=False)
        assert isinstance(a.ends().error, NotForSale)
    assert not Order.objects.exists()


def test_a_reservation_is_a_promise(products):
    """What isn't for sale can't be reserved; what was reserved before is sold."""
    with pytest.raises(NotForSale):
        reserve([Line("lamp", 1)], MINUTE)
    basket = reserve([Line("mug", 1)], MINUTE).basket
    Product.objects.filter(sku="mug").update(active=False)
    assert checkout_reserved(basket).order.state == "placed"


def test_a_reservation_whose_prices_are_in_two_currencies_by_now(products):
    """It is refused with each product's currency, and can be bought once they agree."""
    ProductFactory.create(sku="cup")
    basket = reserve([Line("cup", 1), Line("mug", 1)], MINUTE).basket
    Product.objects.filter(sku="mug").update(currency="USD")
    with pytest.raises(MixedCurrencies) as refused:
        checkout_reserved(basket)
    assert refused.value.currencies == {"cup": "EUR", "mug": "USD"}
    Product.objects.filter(sku="mug").update(currency="EUR")
    assert checkout_reserved(basket).order.currency == "EUR"


def test_a_price_whose_currency_changes_meanwhile(products):
    """`combined` has read euros and not sold yet: the order has the product's currency of the sale."""
    with buyers() as start:
        a = start("A", lambda: checkout([Line("mug", 1)], "combined"), "decided").reaches("decided")
        Product.objects.filter(sku="mug").update(currency="USD")
        a.ends()
    assert [order.currency for order in Order.objects.all()] == ["USD"]


@pytest.mark.parametrize(
    ("skus", "slug", "members"),
    [
        (["lamp"], "not-for-sale", {"skus": ["lamp"]}),
        (["mug", "poster"], "mixed-currencies", {"currencies": {"mug": "EUR", "poster": "USD"}}),
    ],
)
@pytest.mark.parametrize("address", ["/checkout/", "/reservations/"])
def test_over_http_it_is_a_problem_of_its_own(client, products, address, skus, slug, members):
    """409, which products, and nothing was ordered; a reservation in two currencies could never be sold."""
    body = json.dumps({"lines": [{"sku": sku, "quantity": 1} for sku in skus]})
    answer = client.post(address, body, content_type="application/json")
    told = answer.json()
    assert (answer.status_code, told["type"]) == (409, f"/problems/#{slug}")
    assert members.items() <= told.items()
    assert not Order.objects.exists()


def test_an_inactive_product_is_not_on_the_shelf(client, products):
    """Neither in the list nor on the page."""
    assert [each["sku"] for each in client.get("/products/").json()["products"]] == ["mug", "poster"]
    assert 'data-sku="lamp"' not in client.get("/shop/").content.decode()


def test_an_item_keeps_the_name_it_was_bought_under(products):
    """The product is renamed afterwards; the order isn't rewritten."""
    for strategy in ("combined", "conditional_update"):
        order = checkout([Line("mug", 1)], strategy)
        Product.objects.filter(sku="mug").update(name="Cup")
        assert order.items.get().name == "Mug"
        Product.objects.filter(sku="mug").update(name="Mug")


@pytest.mark.parametrize("currency", ["eur", "EURO", ""])
def test_a_currency_that_is_none(products, currency):
    """The database refuses what ISO 4217 couldn't name."""
    with pytest.raises((IntegrityError, DataError)):
        Product.objects.filter(sku="mug").update(currency=currency)


def test_a_new_product_has_the_shops_currency(settings):
    """The setting CURRENCY names it."""
    settings.CURRENCY = "CHF"
    assert ProductFactory.create().currency == "CHF"
