"""What the database refuses in orders, and what their admin pages allow."""

from __future__ import annotations

from decimal import Decimal

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.urls import reverse

from inventory import Line
from inventory.models import Item
from orders.audit import audit
from orders.models import Order, OrderEvent, OrderItem, Product
from orders.selling.checkout import checkout
from tests.factories import OrderFactory, ProductFactory
from tests.orders.shelf import left

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("model", "change", "constraint"),
    [
        (OrderItem, {"quantity": 0}, "item_quantity_positive"),
        (OrderItem, {"unit_price": -1}, "item_unit_price_not_negative"),
        (Order, {"total": -1}, "order_total_not_negative"),
        (Order, {"state": "lost"}, "order_state_is_known"),
        (OrderItem, {"shipped": 1, "cancelled": 1}, "item_shipped_was_bought"),
        (OrderItem, {"returned": 1}, "item_returned_was_shipped"),
        (Product, {"price": -1}, "product_price_not_negative"),
        (Product, {"currency": "eur"}, "product_currency_is_iso"),
        (Product, {"sku": "a b"}, "product_sku_is_plain"),
        (OrderEvent, {"order": None}, "event_of_order_or_product"),
    ],
)
def test_the_database_refuses_nonsense_in_an_order(model, change, constraint):
    """Quantities, prices, totals and states that can't be are refused by name."""
    OrderFactory.create()
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        model.objects.update(**change)


def test_a_product_is_in_an_order_once():
    """Two items of one product in one order are refused: they would have been checked apart."""
    item = OrderFactory.create().items.get()
    with pytest.raises(IntegrityError, match="item_product_once_an_order"), transaction.atomic():
        OrderItem.objects.create(order=item.order, product=item.product, quantity=1, unit_price=1)


def test_a_product_that_was_sold_stays():
    """An order's item protects its product."""
    item = OrderFactory.create().items.get()
    with pytest.raises(ProtectedError):
        item.product.delete()


def test_the_admin_shows_orders_with_their_units(admin_client):
    """The list has units, lines, total and strategy; the page has the items with their totals."""
    first, second = ProductFactory.create(), ProductFactory.create()
    order = checkout([Line(first.sku, 2), Line(second.sku, 1)], "combined")
    text = admin_client.get(reverse("admin:orders_order_changelist")).content.decode()
    for cell in ('field-units">3<', 'field-lines">2<', 'field-price">7.50 EUR<', "combined"):
        assert cell in text
    page = admin_client.get(reverse("admin:orders_order_change", args=[order.pk])).content.decode()
    assert "5.00" in page
    assert first.sku in page


def test_the_admin_finds_an_order_by_number_and_by_sku(admin_client):
    """Both searches lead to the one order."""
    order, _ = OrderFactory.create(), OrderFactory.create()
    for term in (order.pk, order.items.get().product.sku):
        answer = admin_client.get(f"{reverse('admin:orders_order_changelist')}?q={term}")
        assert [found.pk for found in answer.context["cl"].result_list] == [order.pk], term


def test_orders_can_be_read_and_nothing_else(admin_client):
    """There is no way to add, change or delete an order by hand."""
    order = OrderFactory.create()
    page = reverse("admin:orders_order_change", args=[order.pk])
    assert admin_client.post(page, {"total": 1}).status_code == 403
    assert admin_client.get(reverse("admin:orders_order_add")).status_code == 403
    assert admin_client.post(reverse("admin:orders_order_delete", args=[order.pk])).status_code == 403


def test_a_price_finer_than_its_currency_is_refused():
    """No payment could be of that amount."""
    with pytest.raises(ValidationError, match="whole units"):
        Product(sku="mug", name="Mug", price=Decimal("1.50"), currency="JPY").full_clean()


def test_saving_a_stale_product_brings_no_unit_back():
    """Ten are there, four are sold, the old copy is renamed and saved: six are for sale."""
    stale = ProductFactory.create(sku="mug")
    checkout([Line("mug", 4)])
    stale.name = "Enamel mug"
    stale.save()
    assert (left(), Product.objects.get().available, audit()) == (6, 6, [])


def test_a_product_without_a_history_can_be_deleted():
    """Its item goes with it; one that was delivered stays."""
    ProductFactory.create(sku="pen", on_hand=0).delete()
    assert not Item.objects.filter(sku="pen").exists()
    with pytest.raises(ProtectedError, match="history"):
        ProductFactory.create(sku="mug").delete()
