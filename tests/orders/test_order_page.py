"""The page of an order: its number, what can be done next, what happened; exact however often it is sent."""

from __future__ import annotations

import re
from decimal import Decimal
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from inventory import Line
from orders.after_sale.fulfillment import ReferenceUsed
from orders.after_sale.lifecycle import OrderUnknown, cancel, pay
from orders.after_sale.refunds import TooMuch, owed, refund, refundable
from orders.audit import audit
from orders.events.relay import relay_all
from orders.events.signals import order_placed
from orders.models import Order, OrderEvent, Refund, Shipment
from orders.selling.checkout import checkout
from orders.selling.writing import Receipt, write_orders
from tests.factories import ProductFactory
from tests.lab.interleaving import buyers
from tests.orders.shelf import left

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = reverse("admin:orders_order_changelist")
HIDDEN = re.compile(r'name="(action|reference|confirmed)" value="([^"]*)"')
OFFERED = re.compile(r'<button type="submit" class="button" name="action" value="(\w+)"')


@pytest.fixture
def order():
    """Three of ten mugs at 2.50, ordered by Ann."""
    ProductFactory.create(sku="mug")
    return checkout([Line("mug", 3)], "conditional_update", customer="ann")


def page_of(order: Order) -> str:
    """Return the address of its page."""
    return reverse("admin:orders_order_change", args=[order.pk])


def shown(client, order: Order) -> str:
    """Return what its page shows."""
    return str(client.get(page_of(order)).content.decode())


def asked(client, order: Order, action: str) -> dict[str, str]:
    """Press a button of the page; return the fields of the page that asks."""
    page = client.post(page_of(order), {"action": action}).content.decode()
    return {**dict(HIDDEN.findall(page)), "reason": "because"}


def press(client, order: Order, action: str, **fields: object) -> str:
    """Press a button, fill the page in that asks, and send it; return the page that follows."""
    sent = {**asked(client, order, action), **fields}
    return str(client.post(page_of(order), sent, follow=True).content.decode())


def units(order: Order) -> str:
    """Return the name of the field for the units of its only item."""
    return f"units-{order.items.get().pk}"


def test_an_order_goes_its_way_by_the_buttons_of_its_page(admin_client, order):
    """Paid, shipped in part, returned, the rest cancelled, refunded: each state offers what fits it."""
    offered = [OFFERED.findall(shown(admin_client, order))]
    for action, fields in (
        ("pay_orders", {}),
        ("ship_orders", {units(order): 2}),
        ("take_back_orders", {units(order): 1, "condition": "good"}),
        ("cancel_units_of_orders", {units(order): 1, "fate": "back"}),
        ("refund_orders", {f"amount-{order.pk}": "5.00"}),
    ):
        said = press(admin_client, order, action, **fields)
        assert f"Order {order.number}" in said
        assert "errornote" not in said
        offered.append(OFFERED.findall(said))
    assert offered == [
        ["pay_orders", "cancel_orders"],
        ["ship_orders", "refund_orders", "cancel_units_of_orders", "cancel_orders"],
        ["ship_orders", "take_back_orders", "refund_orders", "cancel_units_of_orders"],
        ["ship_orders", "take_back_orders", "refund_orders", "cancel_units_of_orders"],
        ["take_back_orders", "refund_orders"],
        ["take_back_orders", "refund_orders"],
    ]
    assert (Order.objects.get().state, left()) == ("shipped", 9)
    assert refundable(Order.objects.get()) == Decimal("2.50")
    assert owed(order) == 0
    assert audit() == []


def test_the_timeline_says_what_happened_and_who_did_it(admin_client, order):
    """In order of time, with units, reference, amount, the reason, and whether the event was delivered."""
    press(admin_client, order, "pay_orders")
    press(admin_client, order, "ship_orders", **{units(order): 3})
    press(admin_client, order, "refund_orders", **{f"amount-{order.pk}": "1.50"})
    page = admin_client.get(page_of(order))
    lines = [(str(line.what), line.text) for line in page.context["timeline"]]
    reference = Shipment.objects.get().reference
    assert lines[:4] == [
        ("placed", ""),
        ("paid", ""),
        ("admin", "paid: because"),
        ("shipped", f"3 × mug, {reference}"),
    ]
    assert lines[4:] == [
        ("admin", "shipped: 3 × mug, because"),
        ("refunded", f"1.50 EUR, {Refund.objects.get().reference}"),
        ("admin", "refunded: 1.50 EUR, because"),
    ]
    assert page.content.decode().count("not delivered yet") == 4
    assert re.search(r"\d\d:\d\d:\d\d UTC</time>", page.content.decode())


def test_an_event_is_called_delivered_only_where_something_listens(admin_client, order):
    """Marked by the relay with a receiver, marked without one, not marked yet: three words."""
    pay(order.pk)
    order_placed.connect(heard := lambda **_: None)
    try:
        relay_all()
        press(admin_client, order, "ship_orders", **{units(order): 1})
        deliveries = [
            line.delivery for line in admin_client.get(page_of(order)).context["timeline"] if line.delivery
        ]
    finally:
        order_placed.disconnect(heard)
    assert [re.sub("<[^>]*>", "", text) for text in deliveries] == [
        "● delivered",
        "× no receiver",
        "○ not delivered yet",
    ]
    OrderEvent.objects.filter(kind__in=("placed", "paid")).delete()  # forgotten after a while
    known = [str(line.what) for line in admin_client.get(page_of(order)).context["timeline"]]
    assert known[:2] == ["placed", "paid"]


@pytest.mark.parametrize(
    ("action", "field", "value"),
    [
        ("ship_orders", "units", 1),
        ("cancel_units_of_orders", "units", 1),
        ("refund_orders", "amount", "2.50"),
        ("cancel_orders", "", ""),
    ],
)
def test_a_double_click_does_it_once(admin_client, admin_user, order, action, field, value):
    """Two requests of one page at the same time: the second waits for the first and changes nothing."""
    pay(order.pk)
    named = {"units": units(order), "amount": f"amount-{order.pk}"}.get(field)
    sent = {**asked(admin_client, order, action), **({named: value} if named else {}), "fate": "back"}

    def click() -> int:
        client = Client()
        client.cookies = admin_client.cookies
        return client.post(page_of(order), sent).status_code

    with buyers() as start:
        first = start("A", click, "written").reaches("written")
        second = start("B", click).ends_or_waits()
        assert "wait" in str(second)
        assert first.goes_on().ends().result == 302
    item = order.items.get()
    done = {
        "ship_orders": item.shipped,
        "cancel_units_of_orders": item.cancelled,
        "refund_orders": Refund.objects.count(),
        "cancel_orders": item.cancelled - 2,
    }
    assert done[action] == 1
    assert LogEntry.objects.count() == 1
    assert audit() == []


def test_money_goes_back_once_and_never_more_than_was_paid(order):
    """Also for a cancelled order; a reference means one amount, and amounts are those of the currency."""
    with pytest.raises(TooMuch, match="at most 0 EUR"):
        refund(order.pk, Decimal(1), "early")
    pay(order.pk)
    cancel(order.pk)
    assert owed(Order.objects.get()) == Decimal("7.50")
    for _ in range(2):
        refund(order.pk, Decimal(5), "r1")
    with pytest.raises(ReferenceUsed, match=r"5\.00 EUR"):
        refund(order.pk, Decimal(4), "r1")
    for amount in ("2.51", "0", "-1", "0.001", "NaN", "Infinity"):
        with pytest.raises(TooMuch, match=r"at most 2\.50 EUR"):
            refund(order.pk, Decimal(amount), "r2")
    with pytest.raises(ValueError, match="letters"):
        refund(order.pk, Decimal(1), "r 2")
    refund(order.pk, Decimal("2.50"), "r2")
    assert [str(row.amount) for row in Refund.objects.all()] == ["5.00", "2.50"]
    assert OrderEvent.objects.filter(kind="refunded").count() == 2
    with pytest.raises(OrderUnknown):
        refund(UUID(int=0), Decimal(1), "r3")


def test_refunds_of_two_clerks_share_what_was_paid(order):
    """The second waits for the first, and is refused what the first has left too little of."""
    pay(order.pk)
    with buyers() as start:
        first = start("A", lambda: refund(order.pk, Decimal(5), "a"), "written").reaches("written")
        second = start("B", lambda: refund(order.pk, Decimal(5), "b"))
        second.ends_or_waits()
        first.goes_on().ends()
        assert isinstance(second.ends().error, TooMuch)
    assert Refund.objects.get().reference == "a"


@pytest.mark.parametrize("given", ["much", "-1", "9.00", "NaN"])
def test_an_amount_that_cannot_be(admin_client, order, given):
    """The message names the order, and no money goes back."""
    pay(order.pk)
    said = press(admin_client, order, "refund_orders", **{f"amount-{order.pk}": given})
    assert re.search(rf"Order {order.number}: .*(not an amount|at most 7\.50 can be)", said)
    assert not Refund.objects.exists()


def test_an_order_is_found_by_its_number(admin_client, order):
    """However it is typed, beside a customer and a SKU of these digits; so do its id, customer and SKU."""
    number = str(order)
    named = checkout([Line("mug", 1)], "conditional_update", customer=number)
    ProductFactory(sku=number, on_hand=1)
    of_sku = checkout([Line(number, 1)], "conditional_update")
    for typed in (number, f"#{number}", f" {number} "):
        found = admin_client.get(ORDERS, {"q": typed}).context["cl"].result_list
        assert order in found, typed
    assert {order, named, of_sku} == set(admin_client.get(ORDERS, {"q": number}).context["cl"].result_list)
    for typed in (order.pk, "ann", "mug"):
        assert order in admin_client.get(ORDERS, {"q": typed}).context["cl"].result_list


@pytest.mark.parametrize("page", ["orderevent", "shipment", "paymentevent", "idempotencykey"])
def test_lists_are_searched_by_the_number_of_an_order(admin_client, order, page):
    """An event is found by its order's number; no list takes it for a fault."""
    answer = admin_client.get(reverse(f"admin:orders_{page}_changelist"), {"q": str(order)})
    assert answer.status_code == 200
    if page == "orderevent":
        assert [event.order for event in answer.context["cl"].result_list] == [order]


def test_no_two_orders_share_a_number(order):
    """Orders of one statement are numbered one by one; a number that is taken is refused."""
    receipts = [Receipt((Line("mug", 1),), "conditional_update") for _ in range(3)]
    with transaction.atomic():
        write_orders(receipts)
    numbers = [receipt.order.number for receipt in receipts]
    assert len({order.number, *numbers}) == 4
    assert [receipt.body["number"] for receipt in receipts] == list(map(str, numbers))
    assert Order.objects.create(total=1, strategy="x").number > max(numbers)
    with pytest.raises(IntegrityError), transaction.atomic():
        Order.objects.filter(pk=order.pk).update(number=numbers[0])


def test_a_step_needs_its_permission_and_an_order(client, django_user_model, order):
    """Who may look sees no button; what isn't allowed, and what is no step, is refused."""
    pay(order.pk)
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    client.force_login(user)
    assert client.get(page_of(order)).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_order", content_type__app_label="orders"))
    assert OFFERED.findall(shown(client, order)) == []
    for action in ("refund_orders", "", "delete_selected"):
        assert client.post(page_of(order), {"action": action}).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="refund_order"))
    assert OFFERED.findall(shown(client, order)) == ["refund_orders"]
    unknown = reverse("admin:orders_order_change", args=["00000000-0000-0000-0000-000000000000"])
    assert client.post(unknown, {"action": "refund_orders"}).status_code in (302, 403)


@pytest.mark.parametrize("action", ["pay_orders", "ship_orders"])
def test_a_message_leaves_numbers_and_skus_as_they_are(admin_client, order, action):
    """Django writes the first letter of a message large: it is never that of an id or a SKU."""
    if action == "ship_orders":
        pay(order.pk)
    said = press(admin_client, order, action, **{units(order): 9})
    assert "Mug" not in re.findall(r'<li class="\w+">(.*?)</li>', said)[0]
    assert f"Order {order.number}" in said
