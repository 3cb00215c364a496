"""The pages of orders and reservations: states to be seen, and actions that go through the services."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from inventory import Line
from orders.models import Order, PaymentEvent, Product
from orders.selling.checkout import checkout
from orders.selling.reservations import reserve
from orders.selling.writing import ClientKey
from tests.factories import ProductFactory
from tests.orders.shelf import left

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = reverse("admin:orders_order_changelist")
PRODUCTS = reverse("admin:orders_product_changelist")


@pytest.fixture
def order():
    """Two of ten mugs, ordered by Ann with a key."""
    ProductFactory.create(sku="mug")
    return checkout([Line("mug", 2)], "conditional_update", customer="ann", key=ClientKey("ann", "k", "f"))


def act(client, address: str, action: str, *keys: object, reason: str = "") -> None:
    """Choose rows and an action, and confirm it."""
    chosen = {"action": action, "_selected_action": list(map(str, keys)), "confirmed": "yes"}
    client.post(address, {**chosen, "reason": reason})


def test_a_state_has_a_shape_and_a_color(admin_client, order):
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
    assert left() == 10
    assert "sent twice" in LogEntry.objects.get().change_message


def test_an_expired_order_cannot_be_cancelled(admin_client, order):
    """It is reported, and nothing is restocked."""
    Order.objects.update(state="expired")
    act(admin_client, ORDERS, "cancel_orders", order.pk, reason="why not")
    assert left() == 8
    assert not LogEntry.objects.exists()


def test_who_may_only_look_is_offered_no_action(client, django_user_model, order):
    """With the right to view, the pages are there and the actions aren't."""
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    user.user_permissions.add(Permission.objects.get(content_type__app_label="orders", codename="view_order"))
    client.force_login(user)
    assert "cancel_orders" not in client.get(ORDERS).content.decode()
    act(client, ORDERS, "cancel_orders", order.pk, reason="I want")
    assert Order.objects.get().state == "placed"


@pytest.mark.parametrize(
    "model",
    [
        "orders_customerpurchase",
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


def test_the_page_of_an_event_says_when_it_was_and_what_failed(admin_client, order):
    """What no form has is shown as well: its time, the attempts, the last error."""
    event = order.events.get()
    order.events.update(attempts=3, error="no mail server")
    page = admin_client.get(reverse("admin:orders_orderevent_change", args=[event.pk])).content.decode()
    for text in ("Created:", "Due:", "Attempts:", "no mail server"):
        assert text in page


FORM = {"name": "Mug", "price": "2.50", "currency": "EUR", "active": "on"}


def test_a_product_has_its_rules(admin_client, order):
    """Threshold and limit are set on its page, and the list marks what runs low."""
    product = Product.objects.get()
    address = reverse("admin:orders_product_change", args=[product.pk])
    sent = {**FORM, "low_stock_threshold": "9", "customer_limit": "3"}
    assert admin_client.post(address, sent).status_code == 302
    product.refresh_from_db()
    assert (product.low_stock_threshold, product.customer_limit) == (9, 3)
    assert 'state-warn">▲ 8' in admin_client.get(PRODUCTS).content.decode()


@pytest.mark.parametrize(
    ("change", "cause", "refusal", "there"),
    [
        ("5", "note-1", "", 13),
        ("-3", "broken", "", 5),
        ("-9", "broken", "are available there", 8),
        ("5", "", "Say what", 8),
    ],
)
def test_stock_is_changed_by_the_ledger(admin_client, order, change, cause, refusal, there):
    """With its cause; what can't be is said beside the field, and a page that is sent twice counts once."""
    address = reverse("admin:orders_product_change", args=[Product.objects.get().pk])
    for _ in range(2):
        page = admin_client.post(address, {**FORM, "change_by": change, "cause": cause})
        assert page.status_code == (200 if refusal else 302)
        assert refusal in page.content.decode()
    assert left() == there


def test_a_new_product_has_its_first_units(admin_client):
    """The product is created with its item and a delivery, in one transaction."""
    sent = {**FORM, "sku": "jar", "change_by": "7"}
    assert admin_client.post(reverse("admin:orders_product_add"), sent).status_code == 302
    assert (Product.objects.get().available, left("jar")) == (7, 7)


@pytest.mark.parametrize("orders", [1, 12])
def test_the_list_of_products_costs_the_same_for_any_history(admin_client, orders):
    """The same queries, none of which reads an order, or a movement but those of overdue reservations."""
    ProductFactory.create(sku="mug", on_hand=100)
    for _ in range(orders):
        checkout([Line("mug", 1)], "conditional_update")
    admin_client.get(PRODUCTS)
    with CaptureQueriesContext(connection) as queries:
        admin_client.get(PRODUCTS)
    assert len(queries) == 4
    read = [each["sql"].replace('"', "") for each in queries]
    assert not [sql for sql in read if "orders_order" in sql or "FROM inventory_movement" in sql]


@pytest.mark.parametrize("address", [PRODUCTS, ORDERS])
def test_a_list_counts_no_further_than_it_shows(admin_client, order, monkeypatch, address):
    """The count of a large table would cost more than its page."""
    monkeypatch.setattr("inventory.admin.MOST", 3)
    with CaptureQueriesContext(connection) as queries:
        assert admin_client.get(address).status_code == 200
    counts = [each["sql"] for each in queries if each["sql"].startswith("SELECT COUNT(*)")]
    assert counts
    assert all("LIMIT 3" in sql for sql in counts)


def test_the_admin_carries_the_shops_name_and_colors(client):
    """Its title and its head say Holdfast, in the shop's colors."""
    page = client.get("/admin/login/").content.decode()
    assert "| Holdfast</title>" in page
    assert "orders/admin.css" in page
    assert "Django administration" not in page
