"""What the database refuses in orders, and what their admin pages allow."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.urls import reverse

from inventory.domain import Line
from orders.models import Order, OrderItem
from orders.services import checkout
from tests.factories import OrderFactory, ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("model", "change", "constraint"),
    [
        (OrderItem, {"quantity": 0}, "item_quantity_positive"),
        (OrderItem, {"unit_price": -1}, "item_unit_price_not_negative"),
        (Order, {"total": -1}, "order_total_not_negative"),
        (Order, {"state": "lost"}, "order_state_is_known"),
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
    order = checkout([Line(first.sku, 2), Line(second.sku, 1)], "version_cas")
    text = admin_client.get(reverse("admin:orders_order_changelist")).content.decode()
    for cell in ('field-units">3<', 'field-lines">2<', 'field-total">7.50<', "version_cas"):
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
