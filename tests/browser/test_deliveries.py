"""The import of deliveries and the lists of events in a browser: nothing inline, nothing refused."""

import os
from pathlib import Path
from urllib.parse import urljoin

import pytest
from playwright.sync_api import expect

from inventory.models import Product
from orders import relay
from orders.models import OrderEvent
from tests.factories import OrderFactory, ProductFactory

SHOTS = os.environ.get("HOLDFAST_SCREENSHOTS")
FILE = b"sku,quantity,cause,name,price\nmug,5,note-1,,\npen,3,note-1,Pen,2.40\n"


@pytest.fixture
def open_admin(open_page, django_user_model, client):
    """Open a page of the admin as a user who is signed in."""
    client.force_login(django_user_model.objects.create_superuser("ada", password="secret"))
    cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value}

    def open_admin(address):
        page = open_page("/static/inventory/admin.css")
        page.context.add_cookies([{**cookie, "url": urljoin(page.url, "/")}])
        page.goto(urljoin(page.url, address))
        return page

    return open_admin


def shoot(page, name):
    """Keep a picture, if somebody asks for them."""
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


def test_a_delivery_is_uploaded_previewed_and_confirmed(open_admin):
    """From the ledger to the preview, and from there to the booked movements."""
    ProductFactory.create(sku="mug")
    page = open_admin("/admin/inventory/stockmovement/")
    page.get_by_role("link", name="Import").click()
    page.set_input_files("input[type=file]", {"name": "d.csv", "mimeType": "text/csv", "buffer": FILE})
    page.select_option("select[name=format]", label="csv")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator("table.import-preview")).to_contain_text("note-1")
    shoot(page, "delivery-preview")
    assert Product.objects.count() == 1
    page.get_by_role("button", name="Confirm import").click()
    expect(page.locator(".messagelist")).to_contain_text("2 new")
    assert dict(Product.objects.values_list("sku", "on_hand")) == {"mug": 15, "pen": 3}


def test_events_are_listed_with_their_delivery(open_admin):
    """Delivered, waiting and failing events have their shapes, and can be made due."""
    OrderFactory.create()
    relay.relay_all()
    OrderFactory.create()
    OrderEvent.objects.filter(delivered_at=None).update(error="send_receipt: RuntimeError('no mail server')")
    page = open_admin("/admin/orders/orderevent/")
    expect(page.locator("#result_list")).to_contain_text("● delivered")
    expect(page.locator("#result_list")).to_contain_text("▲ failing")
    shoot(page, "order-events")
    page.locator("#action-toggle").check()
    page.select_option("select[name=action]", label="Retry the delivery now")
    page.get_by_role("button", name="Go").click()
    expect(page.locator(".messagelist")).to_contain_text("1 events are due now")
