"""Paying, shipping, taking back and counting in the admin: asked first, allowed to few."""

from __future__ import annotations

import re
from functools import partial
from unittest import mock

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db.transaction import atomic
from django.urls import reverse

from inventory import Line
from orders import transactions
from orders.after_sale.lifecycle import cancel, pay
from orders.audit import audit
from orders.models import Order, Shipment
from orders.selling.checkout import checkout
from tests.factories import ProductFactory
from tests.lab.interleaving import Killed, buyers
from tests.orders.shelf import left

pytestmark = pytest.mark.django_db(transaction=True)
ORDERS = reverse("admin:orders_order_changelist")
HIDDEN = re.compile(r'name="(reference|confirmed)" value="([^"]*)"')


@pytest.fixture
def order():
    """Two of ten mugs, ordered by Ann."""
    ProductFactory.create(sku="mug")
    return checkout([Line("mug", 2)], "conditional_update", customer="ann")


def choose(client, address: str, action: str, *keys: object) -> dict[str, str]:
    """Choose rows and an action; return the fields of the page that asks."""
    page = client.post(address, {"action": action, "_selected_action": list(map(str, keys))})
    return dict(HIDDEN.findall(page.content.decode()))


def confirm(client, address: str, action: str, *keys: object, **fields: object) -> str:
    """Send the page that asks, filled in; return the next page, in lower case: messages are capitalized."""
    sent = {"action": action, "_selected_action": list(map(str, keys)), **fields}
    return str(client.post(address, sent, follow=True).content.decode().lower())


def units(order: Order) -> str:
    """Return the name of the field for the units of the order's only item."""
    return f"units-{order.items.get().pk}"


def test_nothing_is_done_before_it_is_confirmed(admin_client, order):
    """The page names order, state and total, and has asked for a reason."""
    page = admin_client.post(ORDERS, {"action": "pay_orders", "_selected_action": [str(order.pk)]})
    text = page.content.decode()
    assert Order.objects.get().state == "placed"
    for shown in (str(order), "ann", "5.00", 'name="reason"', "required"):
        assert shown in text


def test_an_order_is_paid_shipped_in_parts_and_returned(admin_client, order):
    """Each step is asked, done once, reported and in the history with its user."""
    asked = choose(admin_client, ORDERS, "pay_orders", order.pk)
    said = confirm(admin_client, ORDERS, "pay_orders", order.pk, reason="transfer 17", **asked)
    assert f"order {order} is paid." in said
    asked = choose(admin_client, ORDERS, "ship_orders", order.pk)
    for _ in range(2):  # the page is sent twice
        said = confirm(
            admin_client, ORDERS, "ship_orders", order.pk, reason="dhl 1", **{units(order): 1}, **asked
        )
    assert f"order {order} is partly shipped." in said
    said = confirm(  # back in the browser, and another number
        admin_client, ORDERS, "ship_orders", order.pk, reason="dhl 1", **{units(order): 2}, **asked
    )
    assert "names 1 × mug already; nothing was done" in said
    asked = choose(admin_client, ORDERS, "ship_orders", order.pk)
    confirm(admin_client, ORDERS, "ship_orders", order.pk, reason="dhl 2", **{units(order): 1}, **asked)
    assert [row.staff.get_username() for row in Shipment.objects.all() if row.staff] == ["admin"] * 2
    asked = choose(admin_client, ORDERS, "take_back_orders", order.pk)
    said = confirm(
        admin_client,
        ORDERS,
        "take_back_orders",
        order.pk,
        reason="broken",
        condition="good",
        **{units(order): 1},
        **asked,
    )
    assert f"order {order} is shipped." in said
    assert (Order.objects.get().state, order.items.get().returned) == ("shipped", 1)
    history = list(LogEntry.objects.order_by("pk").values_list("change_message", flat=True))
    assert history == [
        "paid: transfer 17",
        "shipped: 1 × mug, dhl 1",
        "shipped: 1 × mug, dhl 2",
        "returned: 1 × mug, good broken",
    ]
    assert audit() == []


def test_lost_units_are_written_off(admin_client, order):
    """The form asks how many, and whether they are for sale again or lost."""
    pay(order.pk)
    asked = choose(admin_client, ORDERS, "cancel_units_of_orders", order.pk)
    fields = {units(order): 1, "fate": "lost", **asked}
    said = confirm(admin_client, ORDERS, "cancel_units_of_orders", order.pk, reason="fell", **fields)
    assert f"order {order} is paid." in said
    assert (order.items.get().cancelled, left()) == (1, 8)
    assert LogEntry.objects.get().change_message == "cancelled: 1 × mug, lost fell"
    assert audit() == []


@pytest.mark.parametrize("action", ["pay_orders", "cancel_orders"])
def test_what_changes_nothing_is_not_in_the_history(admin_client, order, action):
    """Sent twice, by two of the staff: it was done once, and the history has it once."""
    for reason in ("first", "second"):
        confirm(admin_client, ORDERS, action, order.pk, reason=reason, confirmed="yes", reference="r")
    verb = {"pay_orders": "paid", "cancel_orders": "cancelled"}[action]
    assert LogEntry.objects.get().change_message == f"{verb}: first"


def test_what_is_not_in_the_history_was_not_done(admin_client, order, monkeypatch):
    """The process dies while it writes the history: nothing has left the building without it."""
    pay(order.pk)
    monkeypatch.setattr("django.contrib.admin.ModelAdmin.log_change", mock.Mock(side_effect=Killed))
    with pytest.raises(Killed):
        confirm(
            admin_client, ORDERS, "ship_orders", order.pk, reason="x", confirmed="yes", reference="r",
            **{units(order): 1},
        )  # fmt: skip
    assert (Order.objects.get().state, Shipment.objects.count()) == ("paid", 0)


def test_without_a_reason_it_is_asked_again(admin_client, order):
    """What was filled in is kept."""
    pay(order.pk)
    asked = choose(admin_client, ORDERS, "ship_orders", order.pk)
    said = confirm(admin_client, ORDERS, "ship_orders", order.pk, reason=" ", **{units(order): 1}, **asked)
    assert "say why" in said
    assert f'name="{units(order)}" value="1"' in said
    assert Order.objects.get().state == "paid"


@pytest.mark.parametrize(
    ("given", "reported"),
    [("3", "only 2 can be"), ("two", "not a whole number"), ("-1", "not a whole number")],
)
def test_numbers_that_cannot_be(admin_client, order, given, reported):
    """Which order, which product, how many can: and nothing is changed."""
    pay(order.pk)
    asked = choose(admin_client, ORDERS, "ship_orders", order.pk)
    said = confirm(
        admin_client, ORDERS, "ship_orders", order.pk, reason="x", **{units(order): given}, **asked
    )
    assert reported in said
    assert (Order.objects.get().state, Shipment.objects.count()) == ("paid", 0)
    assert not LogEntry.objects.exists()


def test_one_that_cannot_be_paid_does_not_hold_up_the_others(admin_client, order):
    """The cancelled one is named with what to do; the other is paid."""
    gone = checkout([Line("mug", 1)], "conditional_update")
    cancel(gone.pk)
    asked = choose(admin_client, ORDERS, "pay_orders", order.pk, gone.pk)
    said = confirm(admin_client, ORDERS, "pay_orders", order.pk, gone.pk, reason="transfers", **asked)
    assert f"order {gone} is cancelled: the payment came too late. give the money back." in said
    assert Order.objects.get(pk=order.pk).state == "paid"
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize("action", ["pay_orders", "cancel_orders"])
def test_one_that_others_keep_locked_is_reported(admin_client, order, monkeypatch, action):
    """Nothing was changed, and the page says so; the next order has its turn."""
    monkeypatch.setattr(transactions, "WAIT", 0.05)
    other = checkout([Line("mug", 1)], "conditional_update")
    sent = partial(confirm, admin_client, ORDERS, action, order.pk, other.pk, reason="x", confirmed="yes")
    with buyers() as start, atomic():
        list(Order.objects.select_for_update().filter(pk=order.pk))
        said = str(start("A", sent).ends().result)
    assert f"order {order} or its stock is locked; nothing was changed. try again." in said
    assert Order.objects.get(pk=order.pk).state == "placed"
    assert Order.objects.get(pk=other.pk).state != "placed"


def test_what_has_left_is_not_cancelled(admin_client, order):
    """The page says that its units can be returned."""
    pay(order.pk)
    asked = choose(admin_client, ORDERS, "ship_orders", order.pk)
    confirm(admin_client, ORDERS, "ship_orders", order.pk, reason="x", **{units(order): 2}, **asked)
    said = confirm(admin_client, ORDERS, "cancel_orders", order.pk, reason="too late", confirmed="yes")
    assert f"order {order} is shipped: its units can be returned, not cancelled." in said
    assert Order.objects.get().state == "shipped"


@pytest.mark.parametrize("action", ["pay", "ship", "return"])
def test_each_action_has_its_own_permission(client, django_user_model, order, action):
    """A user who may change orders may do none of the three; each needs its own permission."""
    user = django_user_model.objects.create_user("clerk", is_staff=True)
    ours = Permission.objects.filter(content_type__app_label="orders")
    user.user_permissions.add(*ours.filter(codename__in=("view_order", "change_order")))
    client.force_login(user)
    named = {"return": "take_back_orders"}.get(action, f"{action}_orders")
    assert f'value="{named}"' not in client.get(ORDERS).content.decode()
    confirm(client, ORDERS, named, order.pk, reason="x", confirmed="yes", reference="r")
    assert Order.objects.get().state == "placed"
    user.user_permissions.add(ours.get(codename=f"{action}_order"))
    assert f'value="{named}"' in client.get(ORDERS).content.decode()


def test_more_rows_than_a_page_can_show_are_refused(admin_client, order, monkeypatch):
    """With the number, and how many can be chosen."""
    monkeypatch.setattr("orders.admin.parts.MOST_ROWS", 0)
    said = confirm(admin_client, ORDERS, "ship_orders", order.pk)
    assert "1 were chosen; choose at most 0 at a time." in said


@pytest.mark.parametrize("model", ["orders_shipment"])
def test_the_records_can_only_be_read(admin_client, model):
    """A list and a search; no user adds a shipment that moved nothing."""
    assert admin_client.get(reverse(f"admin:{model}_changelist"), {"q": "mug"}).status_code == 200
    assert admin_client.get(reverse(f"admin:{model}_add")).status_code == 403


def test_the_pages_speak_chinese(admin_client, order):
    """Title, text and states."""
    admin_client.cookies.load({"django_language": "zh-hans"})
    page = admin_client.post(ORDERS, {"action": "pay_orders", "_selected_action": [str(order.pk)]})
    assert "标记为已付款" in page.content.decode()
