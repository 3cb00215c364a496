"""The pages of orders and reservations: states to be seen, and actions that go through the services."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.urls import reverse

from inventory import Line
from inventory.models import StockReservation
from orders.models import Order, PaymentEvent, Product
from orders.selling.checkout import checkout
from orders.selling.reservations import reserve
from orders.selling.writing import ClientKey
from tests.factories import ProductFactory

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = reverse("admin:orders_order_changelist")
RESERVATIONS = reverse("admin:inventory_stockreservation_changelist")


@pytest.fixture
def order():
    """Two of ten mugs, ordered by Ann with a key."""
    ProductFactory.create(sku="mug")
    return checkout([Line("mug", 2)], "conditional_update", customer="ann", key=ClientKey("ann", "k", "f"))


def act(client, address: str, action: str, *keys: object, reason: str = "") -> None:
    """Choose rows and an action."""
    client.post(address, {"action": action, "_selected_action": list(map(str, keys)), "reason": reason})


def test_a_state_has_a_shape_and_a_colour(admin_client, order):
    """An open order is a ring, a paid one a disc."""
    assert 'state-open">○ placed' in admin_client.get(ORDERS).content.decode()
    Order.objects.update(state="paid")
    assert 'state-good">● paid' in admin_client.get(f"{ORDERS}?q=ann").content.decode()


def test_an_order_is_cancelled_with_a_reason(admin_client, order):
    """Without one nothing happens; with one the units go back and the history says why."""
    act(admin_client, ORDERS, "cancel_orders", order.pk)
    assert Order.objects.get().state == "placed"
    act(admin_client, ORDERS, "cancel_orders", order.pk, reason="sent twice")
    assert Order.objects.get().state == "cancelled"
    assert Product.objects.get().on_hand == 10
    assert "sent twice" in LogEntry.objects.get().change_message


def test_an_expired_order_cannot_be_cancelled(admin_client, order):
    """It is told, and nothing is restocked."""
    Order.objects.update(state="expired")
    act(admin_client, ORDERS, "cancel_orders", order.pk, reason="why not")
    assert Product.objects.get().on_hand == 8
    assert not LogEntry.objects.exists()


def test_baskets_are_released(admin_client, order):
    """A basket of two lines is released whole, once."""
    ProductFactory.create(sku="pen")
    reserve([Line("mug", 1), Line("pen", 1)], timedelta(minutes=1))
    act(admin_client, RESERVATIONS, "release_baskets", *StockReservation.objects.values_list("pk", flat=True))
    assert set(StockReservation.objects.values_list("state", flat=True)) == {"released"}
    assert set(Product.objects.values_list("reserved", flat=True)) == {0}


def test_who_may_only_look_is_offered_no_action(client, django_user_model, order):
    """With the right to view, the pages are there and the actions aren't."""
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_order"))
    client.force_login(user)
    assert "cancel_orders" not in client.get(ORDERS).content.decode()
    act(client, ORDERS, "cancel_orders", order.pk, reason="I want")
    assert Order.objects.get().state == "placed"


@pytest.mark.parametrize(
    "model",
    [
        "inventory_stockreservation",
        "inventory_customerpurchase",
        "inventory_stockmovement",
        "orders_order",
        "orders_idempotencykey",
        "orders_orderevent",
        "orders_paymentevent",
    ],
)
def test_what_happened_can_only_be_read(admin_client, order, model):
    """There is a list, a search, and neither adding nor changing."""
    reserve([Line("mug", 1)], timedelta(minutes=1))
    PaymentEvent.objects.create(event_id="evt_1", kind="charge.refunded", outcome="ignored", order=order)
    address = reverse(f"admin:{model}_changelist")
    assert admin_client.get(f"{address}?q=ann").status_code == 200
    assert admin_client.get(reverse(f"admin:{model}_add")).status_code == 403
    row = admin_client.get(address).context["cl"].result_list[0]
    page = admin_client.get(reverse(f"admin:{model}_change", args=[row.pk]))
    assert page.status_code == 200
    assert 'name="_save"' not in page.content.decode()


def test_a_product_has_its_rules(admin_client, order):
    """Threshold, limit and strategy are set on its page; a strategy that oversells is refused."""
    product = Product.objects.get()
    address = reverse("admin:inventory_product_change", args=[product.pk])
    sent = {
        "name": "Mug",
        "price": "2.50",
        "currency": "EUR",
        "active": "on",
        "backorder_limit": "0",
        "low_stock_threshold": "9",
        "customer_limit": "3",
    }
    sent |= {"movements-TOTAL_FORMS": "0", "movements-INITIAL_FORMS": "0"}
    assert "conditional_update" in admin_client.post(address, {**sent, "strategy": "lost_update"}).content.decode()
    assert admin_client.post(address, {**sent, "strategy": "conditional_update"}).status_code == 302
    product.refresh_from_db()
    assert (product.low_stock_threshold, product.customer_limit, product.strategy) == (9, 3, "conditional_update")
    assert (
        'state-warn">▲ 8' in admin_client.get(reverse("admin:inventory_product_changelist")).content.decode()
    )


def test_the_admin_carries_the_shops_name_and_colors(client):
    """Its title and its head say Holdfast, in the shop's colors."""
    page = client.get("/admin/login/").content.decode()
    assert "| Holdfast</title>" in page
    assert "orders/admin.css" in page
    assert "Django administration" not in page
