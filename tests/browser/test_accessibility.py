"""Every page is accessible: axe-core, both languages and color schemes, a phone, a zoom, a keyboard."""

import re
from datetime import UTC, datetime

import pytest
from django.template.loader import render_to_string
from django.test import RequestFactory
from playwright.sync_api import expect

from orders.lab.race.audit import Sample
from orders.lab.race.plan import Plan
from orders.lab.race.report import summary, write_report
from tests.browser.looks import (
    CONTRAST,
    PHONE,
    SHOTS,
    at_each_width,
    in_both_schemes,
    no_violations,
    picture,
    scroll_width,
    violations_in,
)
from tests.browser.races import before_it_begins
from tests.factories import ProductFactory
from tests.lab.made_up import result

PAGES = {
    "start": "/",
    "shop": "/shop/",
    "lab": "/lab/",
    "lecture": "/lab/?present=1",
    "problems": "/problems/",
}
every_page = pytest.mark.parametrize("name", PAGES)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def open_still(open_page):
    """Open a page by its name; nothing moves on it by itself."""
    for sku, title, stock in (("mug", "Mug", 40), ("pen", "Pen", 1), ("poster", "Poster", 0)):
        ProductFactory(sku=sku, name=title, on_hand=stock)

    def open_still(name, **options):
        return open_page(PAGES[name], reduced_motion="reduce", **options)

    return open_still


@pytest.mark.parametrize("locale", ["en", "zh-CN"])
@every_page
def test_every_page_is_accessible(open_still, name, locale):
    """No page has a violation that axe-core finds, in either language and scheme, on a screen and a phone."""
    page = open_still(name, locale=locale)
    if name == "lab":
        expect(page.locator("#left .headline")).to_be_visible()

    def look(scheme):
        for width in (1280, PHONE["width"]):
            page.set_viewport_size({"width": width, "height": 740})
            assert violations_in(page, scheme, locale) == [], (scheme, width)
        at_each_width(page, f"{name}-{locale}-{scheme}")

    in_both_schemes(page, look)


REFUSALS = {
    "403.html": {},
    "403_csrf.html": {},
    "404.html": {},
    "locking/conflict.html": {"status": 409, "detail": "Another process works on it.", "retry_after": 1},
}


@pytest.mark.parametrize("template", REFUSALS)
def test_a_refusal_is_accessible(open_still, template):
    """The pages that a person gets instead of the one that was asked for."""
    page = open_still("problems")
    request = RequestFactory().get("/", headers={"host": "localhost"})
    body = render_to_string(template, REFUSALS[template], request)
    page.route("**/refused/", lambda route: route.fulfill(body=body, content_type="text/html; charset=utf-8"))
    page.goto("/refused/")
    in_both_schemes(page, no_violations(page))


def test_the_page_of_a_race_in_the_terminal_is_accessible(open_page, tmp_path):
    """What `manage.py oversell --html` writes, opened as a file."""
    plan, at = Plan(buyers=4, stock=2, processes=2), datetime(2026, 1, 2, tzinfo=UTC)
    samples = [Sample(1.0, 2, 0), Sample(1.01, 1, 2), Sample(1.02, 1, 4)]
    results = [result(samples=samples), result("row_lock", True, sold=2, left=0, evidence="")]
    path = tmp_path / "report.html"
    write_report(path, summary(plan, results, at), results)
    page = open_page(path.as_uri(), reduced_motion="reduce")
    expect(page.locator("#throughput-plot canvas")).to_be_visible()
    in_both_schemes(page, no_violations(page))


@pytest.mark.parametrize("late", [r"/sources/|recorded.*json", r"\.js$"], ids=["what is fetched", "scripts"])
@pytest.mark.parametrize("name", ["start", "lab", "lecture"])
def test_a_page_is_accessible_before_its_scripts_are_done(open_still, name, late):
    """While what a page fetches is on its way nothing is nameless: no empty heading, button or picture."""
    page = open_still("problems")
    on_their_way = []
    page.route(re.compile(late), lambda route: on_their_way.append(route))
    with page.expect_request(re.compile(late)):
        page.goto(PAGES[name], wait_until="commit")
    expect(page.locator("main h1")).to_be_attached()
    in_both_schemes(page, no_violations(page))
    assert on_their_way


def test_shapes_and_borders_have_enough_contrast(open_still):
    """Controls stand out by 3:1 from their background, text by 4.5:1."""
    page = open_still("lab")

    def look(scheme):
        for name in ("edge", "gap", "wait", "write", "read", "bad", "good", "accent"):
            assert page.evaluate(CONTRAST, [name, "panel"]) >= 3, (scheme, name)
        for name in ("text", "soft", "bad", "good", "low", "buyer-a", "buyer-b"):
            assert page.evaluate(CONTRAST, [name, "panel"]) >= 4.5, (scheme, name)

    in_both_schemes(page, look)


@pytest.mark.screenshots
def test_the_shop_is_accessible(open_page):
    """The shop, with an answer on it, in light and dark."""
    for sku, name, stock in (("mug", "Mug", 40), ("pen", "Pen", 1), ("poster", "Poster", 0)):
        ProductFactory(sku=sku, name=name, on_hand=stock)
    page = open_page("/shop/", viewport={"width": 1100, "height": 800})
    page.get_by_role("group", name="Mug").get_by_role("button", name="One more").click()
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.ordered")).to_be_visible()
    in_both_schemes(page, no_violations(page))
    if SHOTS:
        in_both_schemes(page, picture(page, "shop"))


@every_page
def test_neither_a_zoom_nor_large_text_needs_scrolling_sideways(open_still, name):
    """A window of 1280 px at 200 and 400 % has 640 and 320 px; or a reader's letters are twice as large."""
    page = open_still(name, viewport={"width": 640, "height": 360}, device_scale_factor=2)
    assert scroll_width(page) <= 640
    page.set_viewport_size({"width": 320, "height": 360})
    assert scroll_width(page) <= 320
    page.set_viewport_size({"width": 1280, "height": 800})
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    assert scroll_width(page) <= 1280


CONTROLS = """() => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((one) => one.checkVisibility({ visibilityProperty: true }))
  .filter((one) => !one.disabled && one.type !== "hidden")
  .map((one) => one.setAttribute("data-reached", "")).length"""
FOCUSED = """() => {
  const one = document.activeElement;
  const again = one.dataset.reached === "yes";
  one.dataset.reached = "yes";
  const look = getComputedStyle(one);
  const part = one.querySelector(".hit"); // of a dot, which is drawn
  const ring = part ? getComputedStyle(part).strokeWidth === "2px" : look.outlineStyle !== "none";
  return { round: again || one === document.body, ring, html: one.outerHTML.slice(0, 120) };
}"""
LEFT_OUT = """() => [...document.querySelectorAll("[data-reached='']")]
  .map((one) => one.outerHTML.slice(0, 160))"""


@every_page
def test_a_keyboard_reaches_every_control(open_still, name):
    """Tab goes through every control that is seen, in one round, and each shows that it has the focus."""
    page = open_still(name, viewport={"width": 1280, "height": 900})
    if name == "lab":
        expect(page.locator(".dot").first).to_be_visible()
    page.wait_for_load_state("networkidle")
    count = page.evaluate(CONTROLS)
    for _ in range(count + 2):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["round"]:
            break
        assert focused["ring"], focused["html"]
    assert page.evaluate(LEFT_OUT) == []


def test_the_lab_is_used_by_keyboard_alone(open_still):
    """Skip to the content, break it, and go through the race with the arrows: no mouse is needed.

    A race keeps the focus on its button, and the live region says the verdict.
    """
    page = open_still("lab", viewport={"width": 1280, "height": 900})
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Break it")).to_be_focused()
    page.get_by_role("spinbutton", name="Buyers").fill("4")
    page.get_by_role("spinbutton", name="Stock").fill("1")
    button = page.locator("#broken")
    button.focus()
    with before_it_begins(page):
        page.keyboard.press("Enter")
        expect(page.locator("#lab")).to_have_attribute("aria-busy", "true")
        expect(button).to_be_focused()
    headline = page.locator("#left .headline")
    expect(headline).to_contain_text(re.compile("✗ [1-3] p"), timeout=60_000)
    expect(page.locator("#lab")).to_have_attribute("aria-busy", "false", timeout=60_000)
    expect(button).to_be_focused()
    expect(page.get_by_role("status").filter(has_text="lost_update")).to_contain_text(
        re.compile(r"([1-3] people|1 person) paid for a mug that doesn.t exist")
    )
    page.get_by_role("slider", name="Moment of the race").focus()
    page.keyboard.press("Home")
    expect(page.locator("#left .sold").first).to_have_text("sold 0")
    page.keyboard.press("End")
    beyond = int(headline.inner_text().split()[1])  # a busy machine decides how many
    expect(page.locator("#left .sold").first).to_have_text(f"sold {1 + beyond}")
