"""The checkout: what it writes, what it refuses, and that it asks no server about nonsense."""

from __future__ import annotations

from decimal import Decimal

import pytest

from inventory import InvalidLines, Line, Shortage, SoldOut, UnknownSku, stock
from inventory.models import Movement
from orders.audit import audit
from orders.models import Order, OrderItem
from orders.selectors import order_data
from orders.selling.cart import MAX_QUANTITY
from orders.selling.checkout import checkout, place
from orders.selling.refusals import PriceChanged
from orders.selling.strategies import UnknownStrategy, names
from tests.factories import ProductFactory
from tests.orders.shelf import left

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("strategy", names())
def test_an_order_has_its_items_prices_and_movements(strategy):
    """Every strategy, alone with one buyer, writes the same complete order."""
    pen, mug = ProductFactory.create(price=Decimal("24.00")), ProductFactory.create(price=Decimal("9.50"))
    order = checkout([Line(pen.sku, 1), Line(mug.sku, 3)], strategy)
    stored = Order.objects.get(pk=order.pk)
    assert (stored.total, stored.strategy, stored.state) == (Decimal("52.50"), strategy, "placed")
    items = OrderItem.objects.filter(order=order).values_list("product__sku", "quantity", "unit_price")
    assert set(items) == {(pen.sku, 1, Decimal("24.00")), (mug.sku, 3, Decimal("9.50"))}
    sold = Movement.objects.filter(entry__cause=f"order:{order.pk}").values_list(
        "level__item__sku", "quantity"
    )
    assert set(sold) == {(pen.sku, 1), (mug.sku, 3)}
    assert (left(pen.sku), left(mug.sku)) == (9, 7)
    assert audit() == []


def test_the_strategy_comes_from_the_settings(settings):
    """Without a name the setting decides."""
    settings.CHECKOUT_STRATEGY = "combined"
    assert checkout([Line(ProductFactory.create().sku, 1)]).strategy == "combined"


def test_duplicates_are_one_item_checked_together():
    """Two lines of six are twelve units: more than ten, though each alone would fit."""
    sku = ProductFactory.create(on_hand=10).sku
    with pytest.raises(SoldOut) as refused:
        checkout([Line(sku, 6), Line(sku, 6)], "conditional_update")
    assert refused.value.shortages[0].requested == 12
    order = checkout([Line(sku, 4), Line(sku, 6)], "conditional_update")
    assert order.items.get().quantity == 10


def test_a_generator_of_lines_is_welcome():
    """A cart that can be gone through only once loses none of its lines."""
    skus = [ProductFactory.create().sku for _ in range(3)]
    assert checkout((Line(sku, 1) for sku in skus), "conditional_update").items.count() == 3


def test_another_price_than_expected_is_refused():
    """Nothing is ordered; the refusal has both, and at the right price the order is placed."""
    sku = ProductFactory.create(price=Decimal("5.00")).sku
    with pytest.raises(PriceChanged) as refused:
        place([Line(sku, 2)], expected_total=Decimal("9.00"))
    assert (refused.value.expected[0], refused.value.total) == (Decimal("9.00"), (Decimal("10.00"), "EUR"))
    assert (Order.objects.count(), left(sku)) == (0, 10)
    assert place([Line(sku, 2)], expected_total=Decimal("10.00")).body["total"] == "10.00"


def test_the_price_is_that_of_the_sale():
    """A later price doesn't change what was sold."""
    product = ProductFactory.create(price=Decimal("5.00"))
    order = checkout([Line(product.sku, 1)], "conditional_update")
    product.price = Decimal("6.00")
    product.save(update_fields=["price"])
    assert order.items.get().unit_price == Decimal("5.00")


@pytest.mark.parametrize("cart", [[], [("mug", 0)], [("mug", 1.5)], [("mug", True)], ["mug"], [(7, 1)], None])
def test_a_cart_that_cannot_be_asks_no_server(cart, django_assert_num_queries):
    """Nonsense is refused before the first query."""
    with django_assert_num_queries(0), pytest.raises(InvalidLines):
        checkout(cart)


@pytest.mark.parametrize("strategy", ["nonsense", "", "default "])
def test_an_unknown_strategy_asks_no_server(strategy, django_assert_num_queries):
    """A misspelt strategy is refused with those that there are."""
    with django_assert_num_queries(0), pytest.raises(UnknownStrategy, match="conditional_update"):
        checkout([Line("mug", 1)], strategy)


def test_the_largest_order_is_sold_out_not_an_error():
    """The greatest quantity that may be asked for overflows nothing."""
    sku = ProductFactory.create(on_hand=1, price=Decimal("99999999.99")).sku
    with pytest.raises(SoldOut):
        checkout([Line(sku, MAX_QUANTITY)], "conditional_update")


def test_the_dearest_order_fits_its_total():
    """A hundred lines of ten thousand at the highest price still fit the total's column."""
    products = [ProductFactory.create(on_hand=0, price=Decimal("99999999.99")) for _ in range(100)]
    lines = [Line(product.sku, MAX_QUANTITY) for product in products]
    stock.receive(lines, cause="the dearest delivery")
    order = checkout(lines, "conditional_update")
    order.refresh_from_db()
    assert order.total == 100 * MAX_QUANTITY * Decimal("99999999.99")


def test_an_unknown_product_leaves_no_trace():
    """Neither an order nor a movement is left of a sale that never was."""
    with pytest.raises(UnknownSku):
        checkout([Line("missing", 1)], "conditional_update")
    assert not Order.objects.exists()


def test_a_placed_order_is_shown_without_asking_again(django_assert_num_queries):
    """Anyone who has just written the items knows them; read again, they are the same."""
    pen, mug = ProductFactory.create(price=Decimal("24.00")), ProductFactory.create(price=Decimal("9.50"))
    receipt = place([Line(pen.sku, 1), Line(mug.sku, 2)], strategy="conditional_update")
    with django_assert_num_queries(0):
        shown = receipt.body
    assert shown == order_data(Order.objects.get())


@pytest.mark.parametrize("strategy", names())
def test_a_refusal_does_not_blame_the_lines_that_it_had_taken(strategy):
    """The first line's own units are there again when the second is refused."""
    pen, mug = ProductFactory.create(on_hand=3), ProductFactory.create(on_hand=1)
    with pytest.raises(SoldOut) as refused:
        checkout([Line(pen.sku, 2), Line(mug.sku, 2)], strategy)
    assert refused.value.shortages == (Shortage(mug.sku, 2, 1),)
