"""The rendered description of the JSON interface."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.looks import PHONE, in_both_schemes, no_violations
from tests.factories import ProductFactory


def test_the_interface_is_shown_and_tried(transactional_db, open_page, complaints):
    """Every operation is listed; one is executed from the page, under its own Content-Security-Policy."""
    ProductFactory(sku="mug", name="Mug")
    page = open_page("/docs/")
    expect(page.locator(".opblock")).to_have_count(11)
    groups = page.locator(".opblock-tag")
    expect(groups).to_have_text(["checkout", "reservations", "orders", "products", "payments"])
    assert "`" not in "".join(page.locator(".opblock-summary-description").all_inner_texts())
    products = page.locator("#operations-products-products")
    products.locator(".opblock-summary-control").click()
    products.get_by_role("button", name="Try it out").click()
    products.get_by_role("button", name="Execute").click()
    expect(products.locator(".live-responses-table")).to_contain_text('"sku": "mug"')
    assert complaints == []


def test_it_can_be_read(transactional_db, open_page, complaints):
    """In both schemes axe finds nothing: all closed, an operation open, tried, and the dialog of the key."""
    page = open_page("/docs/", bypass_csp=True)
    expect(page.locator(".opblock")).to_have_count(11)
    expect(page.locator(".models")).to_be_visible()
    in_both_schemes(page, no_violations(page))
    checkout = page.locator("#operations-checkout-checkout")
    checkout.locator(".opblock-summary-control").click()
    expect(checkout.get_by_role("heading", name="Responses")).to_be_visible()
    in_both_schemes(page, no_violations(page))
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    checkout.get_by_role("button", name="Try it out").click()
    checkout.get_by_role("textbox", name="Body of the request").fill("{}")
    checkout.get_by_role("button", name="Execute").click()
    expect(checkout.locator(".live-responses-table")).to_contain_text("invalid-request")
    page.get_by_role("button", name="Authorize").first.click()
    expect(page.get_by_role("button", name="Close").first).to_be_visible()
    in_both_schemes(page, no_violations(page))
    complaints.clear()  # of the refusal


def test_it_is_in_the_readers_language(transactional_db, open_page):
    """In Chinese: what each operation does, Swagger UI's own words, and the problems by their titles."""
    page = open_page("/docs/", locale="zh-CN")
    expect(page.locator(".opblock-summary-description").last).to_contain_text("接收支付服务商的事件")
    summaries = page.locator(".opblock-summary-description").all_inner_texts()
    assert [text for text in summaries if text.isascii()] == []
    checkout = page.locator("#operations-checkout-checkout")
    checkout.locator(".opblock-summary-control").click()
    expect(checkout.get_by_role("button", name="试一试")).to_be_visible()
    expect(checkout.locator(".response-col_description").last).to_contain_text("busy: 现在太忙。")
