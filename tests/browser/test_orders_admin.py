"""Shipping in the admin, as a clerk does it with mouse and keyboard."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from inventory import Line
from inventory.models import Entry
from orders.after_sale.lifecycle import pay
from orders.models import Order, Shipment
from orders.selling.checkout import checkout
from tests.browser.looks import (
    CONTRAST,
    PHONE,
    at_widths,
    in_both_schemes,
    scroll_width,
    violations,
)
from tests.factories import ProductFactory
from tests.support.processes import until

SHOTS = os.environ.get("HOLDFAST_SCREENSHOTS")
ORDERS, PRODUCTS = "/admin/orders/order/", "/admin/orders/product/"


@pytest.fixture
def order():
    """A paid order of three of ten mugs and a pen."""
    for sku in ("mug", "pen"):
        ProductFactory.create(sku=sku)
    return pay(
        checkout([Line("mug", 3), Line("pen", 1)], "conditional_update", customer="ann.smith@example.com").pk
    )


def act(page, action):
    """Choose every row and an action."""
    page.locator("#action-toggle").check()
    page.select_option("select[name=action]", action)
    page.get_by_role("button", name="Go").click()


def shoot(page, name):
    """Take a screenshot where one is wanted."""
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.pictures)])
def test_a_clerk_ships_a_part(open_admin, order, scheme):
    """The page says what is left; two mugs leave; the list says partly shipped, and a refusal says why."""
    # axe sets styles of its own, which the policy of the pages would refuse.
    page = open_admin(ORDERS, color_scheme=scheme, bypass_csp=True)
    act(page, "ship_orders")
    expect(page.get_by_role("heading", name="Ship")).to_be_visible()
    mugs = page.get_by_role("spinbutton", name="mug")
    expect(mugs).to_have_value("3")
    shoot(page, f"ship-{scheme}")
    mugs.fill("2")
    page.get_by_role("spinbutton", name="pen").fill("0")
    page.get_by_label("Reason").fill("first parcel")
    page.get_by_role("button", name="Ship").click()
    expect(page.locator(".messagelist .success")).to_contain_text("is partly shipped")
    shoot(page, f"orders-{scheme}")
    assert [row.quantity for row in Shipment.objects.all()] == [2]
    act(page, "cancel_orders")
    page.get_by_label("Reason").fill("changed mind")
    page.get_by_role("button", name="Cancel the order").click()
    expect(page.locator(".messagelist")).to_contain_text("returned, not cancelled")
    assert Order.objects.get().state == "partly_shipped"


FADES_IF_CUT = """() => {
  const table = document.querySelector("form.confirm .results");
  const fades = parseFloat(getComputedStyle(table).getPropertyValue("--fade")) > 20;
  return fades === table.scrollWidth > table.clientWidth + 1;
}"""


def test_the_page_that_asks_fits_a_phone(open_admin, order):
    """Its table scrolls, the page does not, and the right edge fades out while there is more."""
    page = open_admin(ORDERS, viewport={"width": 360, "height": 800})
    act(page, "ship_orders")
    expect(page.locator("form.confirm")).to_be_visible()
    for width in at_widths(page, 360, 768):
        assert scroll_width(page) <= width
        until(lambda: page.evaluate(FADES_IF_CUT), "the edge fades if it is cut off")


def test_all_columns_are_seen_at_1280(open_admin, order):
    """The filters are below the list, so that no column is cut off."""
    page = open_admin(ORDERS, viewport={"width": 1280, "height": 800})
    for address in (ORDERS, PRODUCTS):
        page.goto(address)
        assert page.locator(".results").evaluate("one => one.scrollWidth <= one.clientWidth + 1"), address


SMALL = """() => [...document.querySelectorAll(
    "#user-tools a, #user-tools button, #changelist-filter a, #changelist-filter summary, .action-select")]
  .filter((one) => one.checkVisibility())
  .filter((one) => Math.min(one.offsetWidth, one.offsetHeight) < 24)
  .map((one) => one.outerHTML.slice(0, 80))"""


def test_nothing_that_is_pressed_is_smaller_than_24_px(open_admin, order):
    """Links of the head, filters and boxes to tick, on a phone and on a screen."""
    page = open_admin(ORDERS, viewport={"width": 1280, "height": 800})
    assert page.evaluate(SMALL) == []
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate(SMALL) == []


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_the_choice_of_an_action_is_read_on_a_phone(open_admin, order, language):
    """It isn't squeezed to a few pixels."""
    page = open_admin(ORDERS, language, viewport={"width": 360, "height": 800})
    assert page.locator(".actions select[name=action]").bounding_box()["width"] >= 150


@pytest.mark.parametrize("address", [f"{PRODUCTS}add/", ORDERS, "/admin/login/"])
def test_a_field_of_the_admin_stands_out(open_admin, address):
    """The border of every field has 3:1 against the page and the panels."""
    page = open_admin(address)

    def look(scheme):
        for behind in ("body-bg", "darkened-bg"):
            assert page.evaluate(CONTRAST, ["border-color", behind]) >= 3, (scheme, behind)

    in_both_schemes(page, look)


def test_an_order_is_an_order_in_chinese(open_admin, order):
    """Words with two meanings have the right one: 订单, not 排序; and a payment was received, not stored."""
    page = open_admin(ORDERS, "zh-hans")
    expect(page.locator("#content h1")).to_contain_text("订单")
    page.goto("/admin/inventory/item/")
    expect(page.locator("#content h1")).to_contain_text("库存品项")  # not an order's line, 订单行
    page.goto("/admin/orders/paymentevent/")
    expect(page.locator("#content")).not_to_contain_text("入库")


def test_the_page_that_asks_can_be_left(open_admin, order):
    """Back to the list, and nothing was done."""
    page = open_admin(ORDERS)
    act(page, "ship_orders")
    page.get_by_role("link", name="No, take me back").click()
    expect(page.locator("#result_list")).to_be_visible()
    assert not Shipment.objects.exists()


def test_an_order_is_handled_on_its_own_page(open_admin, order):
    """By its number from the list; shipped, returned and refunded by its buttons; the timeline has it all."""
    page = open_admin(ORDERS, viewport={"width": 1280, "height": 800})
    page.get_by_role("link", name=str(order), exact=True).click()
    expect(page.get_by_role("heading", name=f"Order {order.number}")).to_be_visible()
    for button, number, said in (
        ("Ship", None, f"Order {order.number} is shipped."),
        ("Return", "1", f"Order {order.number} is shipped."),
        ("Refund", None, f"Order {order.number}: refunded."),
    ):
        page.get_by_role("button", name=button, exact=True).click()
        if number:
            page.get_by_role("spinbutton", name="mug").fill(number)
        page.get_by_label("Reason").fill("asked for it")
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.locator(".messagelist")).to_have_text(said)
    expect(page.locator(".steps button")).to_have_text(["Return", "Refund"])
    timeline = page.get_by_role("group", name="Timeline")
    for line in ("3 × mug, 1 × pen", "returned: 1 × mug, good asked for it", "2.50 EUR"):
        expect(timeline).to_contain_text(line)
    page.set_viewport_size(PHONE)
    assert scroll_width(page) <= PHONE["width"]


LISTS = (
    *("order", "product", "orderevent", "paymentevent", "shipment", "customerpurchase", "idempotencykey"),
    *("item", "location", "entry", "movement", "reservation", "count"),
)


# Colours don't depend on the language, nor names on the scheme: each is there once.
@pytest.mark.parametrize(("scheme", "language"), [("light", "en"), ("dark", "zh-hans")])
def test_no_page_of_the_shop_in_the_admin_has_violations(open_admin, order, scheme, language):
    """Lists, an order, an item, an entry, forms and the page that asks: axe finds nothing."""
    # axe sets styles of its own, which the policy of the pages would refuse.
    page = open_admin(ORDERS, language, color_scheme=scheme, bypass_csp=True)
    item = order.items.get(product__sku="mug").product.stock_id
    entry = Entry.objects.latest("pk").pk
    apps = {name: "inventory" if name in LISTS[7:] else "orders" for name in LISTS}
    pages = [f"/admin/{app}/{name}/" for name, app in apps.items()]
    pages += [f"{ORDERS}{order.pk}/change/", f"{PRODUCTS}add/", f"/admin/inventory/item/{item}/change/"]
    pages += [f"/admin/inventory/item/{item}/stock/", f"/admin/inventory/entry/{entry}/change/"]
    found: dict[tuple[str, int], object] = {}
    for address in pages:
        page.goto(address)
        for width in at_widths(page, 1280, PHONE["width"]):
            found[address, width] = violations(page)
    page.goto("/admin/")
    found["admin", 1280] = violations(page)
    page.goto(ORDERS)
    page.locator("#action-toggle").check()
    page.select_option("select[name=action]", "refund_orders")
    page.locator(".actions button").click()
    expect(page.locator("form.confirm")).to_be_visible()
    found["asks", 1280] = violations(page)
    page.context.clear_cookies(name="sessionid")
    page.goto("/admin/")
    expect(page.get_by_role("button", name={"en": "Log in", "zh-hans": "登录"}[language])).to_be_visible()
    found["login", 1280] = violations(page)
    assert {name: each for name, each in found.items() if each} == {}
