import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import expect

from inventory import Busy
from orders.after_sale.lifecycle import cancel
from orders.http.errors import problem_of
from orders.http.responses import respond
from orders.models import Order
from tests.browser.looks import scroll_width
from tests.factories import ProductFactory
from tests.orders.shelf import receive

PHONE = {"width": 360, "height": 740}


@pytest.fixture
def shelf(transactional_db: None) -> None:
    """Mugs, the last pen, and posters that are gone."""
    ProductFactory(sku="mug", name="Mug", price="7.50", on_hand=40)
    ProductFactory(sku="pen", name="Pen", price="2.40", on_hand=1)
    ProductFactory(sku="poster", name="Poster", price="12.00", on_hand=0)


def row(page, sku):
    """Return the product's row on the shelf."""
    return page.locator(f'.product[data-sku="{sku}"]')


def test_a_sum_is_written_as_its_currency_is(open_page):
    """Yen have no hundredths, dinars of Kuwait have thousandths."""
    ProductFactory(sku="mug", price="1500.00", currency="JPY", on_hand=3)
    ProductFactory(sku="pen", price="1.50", currency="KWD", on_hand=3)
    page = open_page("/shop/")
    for sku in ("mug", "pen"):
        row(page, sku).get_by_role("button", name="One more").click()
    expect(page.locator("#total")).to_have_text("1,500 JPY + 1.500 KWD")


def test_a_person_buys(shelf, open_page):
    """Plus twice, minus once, buy: an order is placed, shown, and gone from the stock on the page."""
    page = open_page("/shop/")
    expect(page.get_by_role("button", name="Place the order")).to_be_disabled()
    row(page, "mug").get_by_role("button", name="One more").dblclick()
    row(page, "mug").get_by_role("button", name="One less").click()
    row(page, "pen").get_by_role("spinbutton").fill("1")
    expect(page.locator("#total")).to_have_text("9.90 EUR")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.ordered")).to_contain_text("Ordered for 9.90 EUR")
    expect(row(page, "mug")).to_contain_text("39 in stock")
    expect(row(page, "pen")).to_contain_text("sold out")
    expect(page.locator("#units")).to_have_text("0 pieces")
    assert str(Order.objects.get().total) == "9.90"


def test_a_short_cart_says_which_line(shelf, open_page, complaints):
    """A short item is named with its remaining units, and nothing of the cart is sold."""
    page = open_page("/shop/")
    row(page, "mug").get_by_role("spinbutton").fill("1")
    row(page, "pen").get_by_role("spinbutton").fill("2")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.soldout")).to_contain_text("pen: 2 wanted, 1 in stock")
    expect(page.locator("#message.bad")).to_contain_text("Not enough in stock")
    page.get_by_text("the whole answer").click()
    expect(page.locator(".answer pre")).to_contain_text("409")
    assert "409" in complaints.pop()
    assert not Order.objects.exists()


def test_nonsense_is_explained(shelf, open_page):
    """A quantity that can't be is named in plain words, its field is marked and has the focus."""
    page = open_page("/shop/")
    mugs, pens = (row(page, sku).get_by_role("spinbutton") for sku in ("mug", "pen"))
    mugs.fill("51.5")
    pens.fill("1")
    expect(page.locator("#units")).to_have_text("1 piece")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator("#message.bad")).to_have_text("Mug: 51.5 is not a whole number from 0 to 10000.")
    expect(mugs).to_have_attribute("aria-invalid", "true")
    expect(mugs).to_be_focused()
    mugs.fill("0")
    expect(mugs).not_to_have_attribute("aria-invalid", "true")
    assert not Order.objects.exists()


def test_the_servers_faults_are_reported_by_product(shelf, open_page, complaints):
    """What only the server refuses names the product, not a JSON pointer."""
    page = open_page("/shop/")
    page.route(
        "**/checkout/",
        lambda route: route.fulfill(
            status=400,
            content_type="application/problem+json",
            json={
                "type": "/problems/#invalid-request",
                "errors": [{"pointer": "/lines/0/quantity", "detail": "3: is one too many"}],
            },
        ),
    )
    row(page, "pen").get_by_role("spinbutton").fill("3")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.invalid p")).to_have_text("Pen: 3: is one too many")
    assert "400" in complaints.pop()


def test_the_focus_stays_after_an_order(shelf, open_page):
    """The button that placed the order still has the focus, and says that it can't be pressed now."""
    page = open_page("/shop/")
    row(page, "mug").get_by_role("button", name="One more").click()
    button = page.get_by_role("button", name="Place the order")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".answer.ordered")).to_be_visible()
    expect(page.locator("#units")).to_have_text("0 pieces")
    expect(button).to_be_focused()
    expect(button).to_have_attribute("aria-disabled", "true")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(1)


def test_the_language_may_be_changed_with_a_full_basket(shelf, open_page):
    """The basket is the same in the other language, and empty after the order."""
    page = open_page("/shop/")
    row(page, "mug").get_by_role("spinbutton").fill("3")
    page.get_by_role("button", name="简体中文").click()
    expect(row(page, "mug").get_by_role("spinbutton")).to_have_value("3")
    expect(page.locator("#units")).to_have_text("3 件")
    page.get_by_role("button", name="下单").click()
    expect(page.locator(".answer.ordered")).to_be_visible()
    page.reload()
    expect(row(page, "mug").get_by_role("spinbutton")).to_have_value("0")


def test_buying_without_javascript(shelf, open_page):
    """Without JavaScript the stock is in words, and the form places an order and says so."""
    page = open_page("/shop/", java_script_enabled=False)
    expect(row(page, "mug")).to_contain_text("40 in stock")
    expect(row(page, "poster")).to_contain_text("sold out")
    expect(page.get_by_role("button", name="One more").first).to_be_hidden()
    row(page, "mug").get_by_role("spinbutton").fill("2")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".notice")).to_have_text("Ordered for 15.00 EUR.")
    expect(row(page, "mug")).to_contain_text("38 in stock")
    row(page, "poster").get_by_role("spinbutton").fill("1")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".notice")).to_contain_text("Not enough")
    assert Order.objects.count() == 1


def test_busy_is_not_sold_out(shelf, open_page, complaints):
    """A busy answer says when to try again, keeps the cart, and the next try succeeds."""
    page = open_page("/shop/")
    busy = respond(
        problem_of(Busy("stayed locked", retry_after=3))
    )  # what the checkout says after its long wait
    page.route(
        "**/checkout/",
        lambda route: route.fulfill(
            status=busy.status_code, headers=dict(busy.headers), body=busy.content.decode()
        ),
        times=1,
    )
    row(page, "mug").get_by_role("spinbutton").fill("1")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.busy")).to_contain_text("Try again in 3 s")
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.ordered")).to_be_visible()
    assert "503" in complaints.pop()


def test_refresh_shows_what_others_bought(shelf, open_page):
    """The button Refresh fetches the stock again."""
    page = open_page("/shop/")
    receive(2)
    page.get_by_role("button", name="Refresh").click()
    expect(row(page, "mug")).to_contain_text("42 in stock")


def test_the_stock_that_was_asked_for_last_is_shown(shelf, open_page):
    """A look whose answer comes late, behind that of a newer one, changes nothing on the page."""
    page = open_page("/shop/")
    page.evaluate(
        """() => {
            window.answers = [];
            const shown = (available) => ({ json: async () => ({ products: [{ sku: "mug", available }] }) });
            window.fetch = () => new Promise((done) => answers.push((units) => done(shown(units))));
        }"""
    )
    for _ in range(2):
        page.get_by_role("button", name="Refresh").click()
    page.evaluate("() => answers[1](7)")
    expect(row(page, "mug")).to_contain_text("7 in stock")
    page.evaluate("() => new Promise((done) => { answers[0](40); setTimeout(done); })")  # its handlers ran
    assert "7 in stock" in row(page, "mug").inner_text()


def test_a_strategy_is_chosen_and_explained(shelf, open_page):
    """The chosen strategy's idea is shown, and the order is placed with it."""
    page = open_page("/shop/")
    page.get_by_label("Strategy").select_option("combined")
    expect(page.locator("#idea")).to_contain_text("commit once")
    row(page, "mug").get_by_role("button", name="One more").click()
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.ordered")).to_contain_text("combined")
    assert Order.objects.get().strategy == "combined"


def test_buying_by_keyboard(shelf, open_page):
    """Type a quantity, press Enter: no mouse is needed."""
    page = open_page("/shop/")
    row(page, "mug").get_by_role("spinbutton").focus()
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.locator(".answer.ordered")).to_contain_text("2 × mug")


def test_a_server_that_is_gone_leaves_the_outcome_open(shelf, open_page, complaints):
    """When no answer comes the page doesn't claim to know whether the order was placed."""
    page = open_page("/shop/")
    page.route("**/checkout/", lambda route: route.abort())
    row(page, "mug").get_by_role("button", name="One more").click()
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.unknown")).to_contain_text("isn't known")
    assert "ERR_FAILED" in complaints.pop()


def place_an_order(page):
    """Order a mug; return the answer on the page."""
    row(page, "mug").get_by_role("button", name="One more").click()
    page.get_by_role("button", name="Place the order").click()
    answer = page.locator(".answer.ordered").first
    expect(answer).to_be_visible()
    return answer


def test_an_order_is_paid_and_cancelled(shelf, open_page):
    """Pay, then cancel: each button does what it says, the state follows, and the pieces come back."""
    page = open_page("/shop/")
    answer = place_an_order(page)
    expect(answer.locator(".state")).to_contain_text("placed")
    expect(row(page, "mug")).to_contain_text("39 in stock")
    answer.get_by_role("button", name="Pay").click()
    expect(answer.locator(".state")).to_have_text("paid")
    expect(answer.get_by_role("button", name="Pay")).to_have_count(0)
    assert Order.objects.get().state == Order.State.PAID
    answer.get_by_role("button", name="Cancel the order").click()
    expect(answer.locator(".state")).to_contain_text("cancelled")
    expect(row(page, "mug")).to_contain_text("40 in stock")
    expect(answer.get_by_role("button")).to_have_count(0)
    assert Order.objects.get().state == Order.State.CANCELLED


def test_an_order_that_has_ended_can_not_be_paid(shelf, open_page, complaints):
    """An order cancelled elsewhere: the page shows its present state, and offers nothing more."""
    page = open_page("/shop/")
    answer = place_an_order(page)
    cancel(Order.objects.get().pk)
    answer.get_by_role("button", name="Pay").click()
    expect(answer.locator(".state")).to_contain_text("cancelled")
    expect(answer.get_by_role("button")).to_have_count(0)
    assert "409" in complaints.pop()


def test_the_time_to_pay_is_shown(shelf, open_page):
    """An order with an end to its payment window shows how long that is, and its end."""
    page = open_page("/shop/", clock=True)

    def hurry(route):
        answer = route.fetch()
        soon = datetime.now(UTC) + timedelta(seconds=125)
        route.fulfill(response=answer, json=answer.json() | {"pay_by": soon.isoformat()})

    page.route("**/checkout/", hurry)
    answer = place_an_order(page)
    expect(answer.locator(".state")).to_contain_text(re.compile(r"placed, [12]:\d\d left to pay"))
    page.clock.fast_forward(300_000)
    expect(answer.locator(".state")).to_have_text("the time to pay is over")


def test_asking_again_places_no_second_order(shelf, open_page, complaints):
    """The answer is lost on its way; the second ask has the same key and gets that answer."""
    page = open_page("/shop/")

    def lose(route):
        route.fetch()
        route.abort()

    page.route("**/checkout/", lose, times=1)
    row(page, "mug").get_by_role("button", name="One more").click()
    page.get_by_role("button", name="Place the order").click()
    expect(page.locator(".answer.unknown")).to_contain_text("isn't known")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".answer.ordered")).to_be_visible()
    expect(row(page, "mug")).to_contain_text("39 in stock")
    assert Order.objects.count() == 1
    assert "ERR_FAILED" in complaints.pop()


def test_the_language_buttons(shelf, open_page):
    """中文 and back, on the page and in the script's answers."""
    page = open_page("/shop/")
    page.get_by_role("button", name="简体中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    row(page, "mug").get_by_role("button", name="加一件").click()
    page.get_by_role("button", name="下单").click()
    expect(page.locator(".answer.ordered")).to_contain_text("已下单")
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", name="Shop", exact=True)).to_be_visible()


def test_the_links_of_the_start_page(shelf, open_page):
    """Every card and link of the start page leads to a page without complaints."""
    page = open_page("/")
    for target in ("/shop/", "/problems/", "/admin/", "/products/"):
        page.goto("/")
        page.locator(f'main a[href="{target}"]').click()
        page.wait_for_url(re.compile(re.escape(target)))


def test_narrow_screens_do_not_scroll_sideways(shelf, open_page):
    """On a phone every page fits its width, in light and dark."""
    page = open_page("/", viewport=PHONE)
    for address in ("/", "/shop/", "/problems/"):
        page.goto(address)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert scroll_width(page) <= PHONE["width"], (address, scheme)


LINES = "all => new Set(all.map((one) => Math.round(one.getBoundingClientRect().bottom))).size"


@pytest.mark.parametrize("locale", ["en", "zh-CN"])
def test_what_belongs_together_is_one_line_on_a_phone(shelf, open_page, locale):
    """The links of the head, and sold, in stock and what the page says."""
    page = open_page("/", viewport=PHONE, locale=locale, reduced_motion="reduce")
    expect(page.locator("#hero .figures > *")).to_have_count(3)
    for together in (".bar nav a", "#hero .figures > *"):
        assert page.locator(together).evaluate_all(LINES) == 1, together


def test_dark_is_dark(shelf, open_page):
    """The pages follow the reader's colour scheme."""
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    page = open_page("/shop/", color_scheme="dark")
    assert max(page.evaluate(brightness)) < 60
    page.emulate_media(color_scheme="light")
    page.reload()
    assert min(page.evaluate(brightness)) > 200
