"""Carts that are refused whatever there is: not for sale, several currencies, a limit, another price."""

from __future__ import annotations

import copy
import json
import pickle
from datetime import timedelta
from decimal import Decimal
from functools import partial

import pytest

from inventory import InvalidLines, Line, UnknownSku, stock
from orders.models import CustomerPurchase, Order, Product
from orders.selling.cart import MAX_LINES, MAX_QUANTITY, merge_lines
from orders.selling.checkout import checkout, checkout_reserved
from orders.selling.refusals import LimitReached, MixedCurrencies, NotForSale, PriceChanged
from orders.selling.reservations import release, reserve
from orders.selling.strategies import names
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import left, reserved

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)


@pytest.fixture
def products() -> None:
    """A mug, a lamp that isn't for sale, a poster in dollars, and a ticket: two for each customer."""
    ProductFactory.create(sku="mug")
    ProductFactory.create(sku="lamp", active=False)
    ProductFactory.create(sku="poster", currency="USD")
    ProductFactory.create(sku="ticket", customer_limit=2)


@pytest.mark.parametrize("strategy", names())
def test_an_inactive_product_is_refused(products, strategy):
    """Each strategy names it and takes nothing, of the other products neither; active again, it is sold."""
    with pytest.raises(NotForSale) as refused:
        checkout([Line("mug", 1), Line("lamp", 1)], strategy)
    assert refused.value.skus == ("lamp",)
    assert str(copy.copy(refused.value)) == str(refused.value)
    Product.objects.filter(sku="lamp").update(active=True)
    checkout([Line("mug", 10), Line("lamp", 10)], strategy)


@pytest.mark.parametrize("strategy", names())
def test_an_order_has_one_currency(products, strategy):
    """Euros and dollars are refused with each product's currency; apart, each order has its own."""
    with pytest.raises(MixedCurrencies) as refused:
        checkout([Line("mug", 1), Line("poster", 1)], strategy)
    assert refused.value.currencies == {"mug": "EUR", "poster": "USD"}
    assert pickle.loads(pickle.dumps(refused.value)).currencies == refused.value.currencies  # noqa: S301
    placed = checkout([Line("poster", 1)], strategy)
    assert placed.currency == Order.objects.get().currency == "USD"


def test_stock_without_a_product_is_unknown(products):
    """An item that the catalog doesn't have has no price."""
    stock.receive("screw", 10, cause="po-1")
    with pytest.raises(UnknownSku, match="screw"):
        checkout([Line("mug", 1), Line("screw", 1)])
    assert (left(), left("screw")) == (10, 10)


def test_a_product_that_is_taken_off_sale_meanwhile(products):
    """The units are taken and the order isn't written yet: nothing is sold."""
    with buyers() as start:
        a = start("A", lambda: checkout([Line("mug", 1)], "combined"), "decided").reaches("decided")
        Product.objects.filter(sku="mug").update(active=False)
        assert isinstance(a.ends().error, NotForSale)
    assert (Order.objects.count(), left()) == (0, 10)


def test_a_refused_buyer_spoils_no_batch(products):
    """Those who are sold together with one that is refused get their orders."""
    with buyers() as start:
        first = start("A", partial(checkout, [Line("mug", 1)], "combined"), "decided").reaches("decided")
        others = [
            start(name, partial(checkout, [Line(sku, 1)], "combined"))
            for name, sku in (("B", "mug"), ("C", "lamp"), ("D", "mug"))
        ]
        first.ends()
        errors = [other.ends().error for other in others]
    assert [type(error) for error in errors] == [type(None), NotForSale, type(None)]
    assert (Order.objects.count(), left(), left("lamp")) == (3, 7, 10)


def test_a_reservation_is_a_promise(products):
    """What isn't for sale can't be reserved; what was reserved before is sold."""
    with pytest.raises(NotForSale):
        reserve([Line("lamp", 1)], MINUTE)
    made = reserve([Line("mug", 1)], MINUTE)
    Product.objects.filter(sku="mug").update(active=False)
    assert checkout_reserved(made.id).order.state == "placed"


def test_a_reservation_keeps_its_price(products):
    """At another one it is refused with both, and stays; the customer may agree to the new one."""
    made = reserve([Line("mug", 2)], MINUTE)
    Product.objects.filter(sku="mug").update(price=Decimal("9.00"))
    with pytest.raises(PriceChanged) as refused:
        checkout_reserved(made.id)
    assert (refused.value.expected, refused.value.total) == (
        (Decimal("5.00"), "EUR"),
        (Decimal("18.00"), "EUR"),
    )
    assert reserved() == 2
    assert checkout_reserved(made.id, expected_total=Decimal("18.00")).body["total"] == "18.00"


def test_a_reservation_whose_prices_are_in_two_currencies_by_now(products):
    """It is refused with each product's currency, and can be bought once they agree."""
    ProductFactory.create(sku="cup")
    made = reserve([Line("cup", 1), Line("mug", 1)], MINUTE)
    Product.objects.filter(sku="mug").update(currency="USD")
    with pytest.raises(MixedCurrencies):
        checkout_reserved(made.id)
    Product.objects.filter(sku="mug").update(currency="EUR")
    assert checkout_reserved(made.id).order.currency == "EUR"


def test_another_currency_than_the_agreed_one(products):
    """The same number in dollars is another price."""
    made = reserve([Line("mug", 1)], MINUTE)
    Product.objects.filter(sku="mug").update(currency="USD")
    with pytest.raises(PriceChanged, match=r"expected 2\.50 EUR, and it costs 2\.50 USD"):
        checkout_reserved(made.id)


# Limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", names())
def test_one_customer_may_have_so_many(products, strategy):
    """Two at once or one by one, and reserved ones count; another customer has an allowance of its own."""
    buy = partial(checkout, [Line("ticket", 1)], strategy)
    with pytest.raises(LimitReached):
        checkout([Line("ticket", 3)], strategy, customer="ann")
    buy(customer="ann")
    made = reserve([Line("ticket", 1)], MINUTE, "ann")
    with pytest.raises(LimitReached) as refused:
        buy(customer="ann")
    assert (refused.value.limit, refused.value.bought, refused.value.requested) == (2, 2, 1)
    with pytest.raises(LimitReached):
        reserve([Line("ticket", 1)], MINUTE, "ann")
    release(made.id)
    buy(customer="ann")
    buy(customer="bob")
    assert set(CustomerPurchase.objects.values_list("customer", "units")) == {("ann", 2), ("bob", 1)}
    assert left("ticket") == 7


def test_an_anonymous_customer_gets_none(products):
    """Anonymous customers can't be recognized."""
    for act in (partial(checkout, [Line("ticket", 1)]), partial(reserve, [Line("ticket", 1)], MINUTE)):
        with pytest.raises(LimitReached):
            act()
    assert left("ticket") == 10


def test_what_was_reserved_is_bought_within_the_limit(products):
    """It counts once, reserved or bought."""
    made = reserve([Line("ticket", 2)], MINUTE, "ann")
    assert checkout_reserved(made.id).order.customer == "ann"


def test_two_orders_of_one_customer_at_once(products):
    """The second waits for the first one's count, and is refused."""
    buy = partial(checkout, [Line("ticket", 2)], "conditional_update", customer="ann")
    with buyers() as start:
        a = start("A", buy, "recorded").reaches("recorded")
        b = start("B", buy)
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, LimitReached)
    assert left("ticket") == 8


def test_two_reservations_of_one_customer_at_once(products):
    """So with reservations, whose units are in no order yet."""
    act = partial(reserve, [Line("ticket", 2)], MINUTE, "ann")
    with buyers() as start:
        a = start("A", act, "written").reaches("written")
        b = start("B", act)
        assert b.ends_or_waits() == "waits"
        a.ends()
        assert isinstance(b.ends().error, LimitReached)
    assert (left("ticket"), reserved("ticket")) == (8, 2)


# Lines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "at least one line"),
        ([("mug", 1)] * (MAX_LINES + 1), "at most 100 lines"),
        ([("mug", 0)], "from 1 to 10000"),
        ([("mug", MAX_QUANTITY), ("mug", 1)], "from 1 to 10000"),
        ([("mug", 10**5000)], "bits"),
        ([("mug", 1.5)], "whole number"),
        ([("mug", True)], "whole number"),
        ([(None, 1)], "a SKU is a str"),
        (["mug"], "pairs"),
        (7, "pairs"),
    ],
)
def test_lines_that_cannot_be(lines, reason):
    """What was given, why it can't be, and what would."""
    with pytest.raises(InvalidLines, match=reason):
        merge_lines(lines)


def test_an_endless_generator_is_not_waited_for():
    """One more than allowed is enough to know."""
    with pytest.raises(InvalidLines):
        merge_lines(("mug", 1) for _ in iter(int, 1))


# Over HTTP --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "slug", "members"),
    [
        ({"lines": ["lamp"]}, "not-for-sale", {"skus": ["lamp"]}),
        ({"lines": ["mug", "poster"]}, "mixed-currencies", {"currencies": {"mug": "EUR", "poster": "USD"}}),
        (
            {"lines": ["mug"], "expected_total": "2.00"},
            "price-changed",
            {"expected": "2.00", "total": "2.50", "currency": "EUR"},
        ),
    ],
)
def test_over_http_it_is_a_problem_of_its_own(client, products, body, slug, members):
    """409, with what the client needs to know, and nothing was ordered."""
    body = {**body, "lines": [{"sku": sku, "quantity": 1} for sku in body["lines"]]}
    answer = client.post("/checkout/", json.dumps(body), content_type="application/json")
    assert (answer.status_code, answer.json()["type"]) == (409, f"/problems/#{slug}")
    assert members.items() <= answer.json().items()
    assert not Order.objects.exists()


def test_an_inactive_product_is_not_on_the_shelf(client, products):
    """Neither in the list nor on the page."""
    shown = [each["sku"] for each in client.get("/products/").json()["products"]]
    assert shown == ["mug", "poster", "ticket"]
    assert 'data-sku="lamp"' not in client.get("/shop/").content.decode()


def test_an_item_keeps_the_name_it_was_bought_under(products):
    """The product is renamed afterwards; the order isn't rewritten."""
    order = checkout([Line("mug", 1)], "combined")
    Product.objects.filter(sku="mug").update(name="Cup")
    assert order.items.get().name == "Mug"


def test_a_new_product_has_the_shops_currency(settings):
    """The setting CURRENCY names it."""
    settings.CURRENCY = "CHF"
    assert ProductFactory.create().currency == "CHF"
