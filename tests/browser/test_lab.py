"""The lab in a real browser: every button, both colour schemes, a phone, the keyboard."""

import os
import re
from urllib.parse import parse_qs

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from orders.lab.models import LabRun
from tests.factories import ProductFactory

PHONE = {"width": 360, "height": 740}
SOON = 60_000  # ms; a race starts processes, and the machine may be loaded
SMALL = "/lab/?buyers=8&stock=2&gap=20&processes=2"
pytestmark = pytest.mark.timeout(300)  # a loaded machine takes its time over processes and pictures
SHOTS = os.environ.get("HOLDFAST_SCREENSHOTS")  # a folder: the pictures of the docs are made there


@pytest.fixture
def open_lab(open_page):
    """Open the lab; nothing moves by itself, so that a test need not wait for it."""

    def open_it(address=SMALL, **options):
        return open_page(address, reduced_motion="reduce", **options)

    return open_it


def race_ends(page):
    """Wait until the buttons may be pressed again."""
    expect(page.locator("#race")).to_be_enabled(timeout=SOON)


def violations(page):
    """What axe-core finds wrong with the page as it is."""
    found = Axe().run(page).response["violations"]
    return [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]


def in_both_schemes(page, look):
    """Look at the page in light and in dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        look(scheme)


def no_violations(page):
    """For `in_both_schemes`: nothing is wrong with the page."""

    def look(scheme):
        assert violations(page) == []

    return look


def picture(page, name, height=None):
    """For `in_both_schemes`: a picture for the docs, of the whole page or its first `height` pixels."""

    def look(scheme):
        if height is None:
            page.screenshot(path=f"{SHOTS}/{name}-{scheme}.png")
        else:
            clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
            page.screenshot(path=f"{SHOTS}/{name}-{scheme}.png", clip=clip, full_page=True)

    return look


def test_break_it_and_mend_it(open_lab):
    """Units are missing on the left, none on the right, and a link shows both races again."""
    page = open_lab(viewport={"width": 1280, "height": 900})
    page.get_by_role("button", name="Break it").click()
    expect(page.locator("#left .verdict")).to_contain_text("Sold 8 of 2", timeout=SOON)
    expect(page.locator("#left .verdict")).to_contain_text("units unaccounted for")
    expect(page.locator("#left .evidence")).to_contain_text("read 2 within")
    race_ends(page)
    page.get_by_role("button", name="Mend it").click()
    expect(page.locator("#right .verdict")).to_have_text(
        "✓ Sold 2 of 2 · the page says 0 left · every unit accounted for", timeout=SOON
    )
    race_ends(page)
    expect(page.locator("#left .verdict")).to_contain_text("Sold 8 of 2")
    expect(page.locator('#matrix [data-name="lost_update"] td').first).to_have_text("✗ no")
    expect(page.locator('#matrix [data-name="row_lock"] td').first).to_have_text("✓ yes")
    in_both_schemes(page, no_violations(page))
    page.reload()
    expect(page.locator("#left .verdict")).to_contain_text("Sold 8 of 2")
    expect(page.locator("#right .verdict")).to_contain_text("Sold 2 of 2")
    expect(page.locator("#message")).to_contain_text("run before")


@pytest.mark.skipif(not SHOTS, reason="makes the docs' pictures: HOLDFAST_SCREENSHOTS=docs/images")
def test_the_pictures_of_the_docs(open_lab):
    """What everybody sees first: forty of ten, and the fix beside it."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    for button, panel in (("Break it", "#left"), ("Mend it", "#right")):
        page.get_by_role("button", name=button).click()
        expect(page.locator(f"{panel} .verdict")).to_be_visible(timeout=SOON)
        race_ends(page)
    expect(page.locator("#left .verdict")).to_contain_text("Sold 40 of 10")
    in_both_schemes(page, picture(page, "lab", height=1500))


@pytest.fixture
def finished(transactional_db):
    """A race that was run: two buyers read the last piece and both sold it."""

    def buyer(number, read, written):
        marks = [["read", read, 1, 36], ["decided", read + 1, None, 37], ["written", written, None, 41]]
        answer = {"answer": "sold", "problem": "", "retries": 0, "from": 0, "to": written + 5}
        return {"number": number, "marks": marks, **answer}

    run = LabRun.objects.create(kind="race", parameters={"buyers": 2, "stock": 1, "strategy": "lost_update"})
    result = {
        "name": "lost_update", "strategy": "lost_update", "sound": False, "processes": 2, "initial": 1,
        "due": 1, "sold": 2, "left": 0, "oversold": 1, "unaccounted": -1, "refused": 0, "errors": 0,
        "problems": [],
        "disagreements": [], "retries": 0, "tries": 1, "p50_ms": 20, "p95_ms": 30, "exact": False,
        "shown_broken": True, "kept": True, "deadlocks": 0, "waits": 0,
        "evidence": {"en": "buyers 1 and 2 both read 1.", "zh-hans": "买家 1 和 2"},
        "buyers": [buyer(1, 5, 25), buyer(2, 6, 40)],
        "stock": {"ms": [0, 30, 45], "left": [1, 0, 0], "sold": [0, 1, 2]},
    }  # fmt: skip
    run.events.create(sender="run", data={"type": "result", **result})
    run.events.create(sender="run", data={"type": "ended", "why": "done"})
    LabRun.objects.update(ended_at=run.started_at)
    return run.pk


def test_a_race_is_looked_at_moment_by_moment(finished, open_lab):
    """Slider, play and pause, one buyer picked: stock, crowd and the lit line follow."""
    page = open_lab(f"/lab/?left={finished}")
    panel = page.locator("#left")
    expect(panel.locator(".missing")).to_have_text("1 unit unaccounted for")
    assert panel.locator(".stale").count() == 1
    slider = panel.get_by_role("slider", name="Moment of the race")
    slider.fill("0")
    expect(panel.locator(".missing")).to_have_text("every unit accounted for")
    slider.fill("700")
    expect(panel.locator(".sold").first).to_have_text("sold 1 of 1")
    panel.get_by_role("button", name="2 ◐").click()
    expect(page.locator("#race-code .lit .gutter")).to_have_text("▶2")
    panel.get_by_role("button", name="Play again, slowly").click()
    panel.get_by_role("button", name="Pause").click()
    expect(panel.get_by_role("button", name="Play again, slowly")).to_be_visible()


def test_a_race_that_is_gone_says_so(open_lab, complaints):
    """A link to a race that is no longer kept says what to do instead."""
    page = open_lab("/lab/?left=000000000000&buyers=7")
    expect(page.locator("#message")).to_contain_text("no longer kept")
    expect(page.get_by_label("Buyers", exact=True)).to_have_value("7")
    assert "404" in complaints.pop()


def test_a_race_can_be_stopped(open_lab):
    """Stop sends the buyers home, says so, and the next race may begin."""
    page = open_lab("/lab/?buyers=60&stock=100&gap=300&processes=2&strategy=row_lock")
    page.get_by_role("button", name="▶ Race", exact=True).click()
    expect(page.locator("#message")).to_contain_text("row_lock", timeout=SOON)
    expect(page.get_by_role("link", name="The held locks, live")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#message")).to_contain_text("Stopped", timeout=SOON)
    race_ends(page)
    expect(page.locator("#stop")).to_be_hidden()


def test_every_button_asks_for_its_race(open_lab, complaints):
    """Each button sends what it says; a refusal is shown as it came."""
    page = open_lab()
    asked = []

    def refuse(route):
        asked.append({name: value[0] for name, value in parse_qs(route.request.post_data).items()})
        route.fulfill(status=409, json={"message": f"refused {len(asked)}"})

    page.route("**/lab/races/", refuse)
    buttons = [*page.locator("[data-fault]").all(), page.get_by_role("button", name="▶ Race all")]
    for number, button in enumerate(buttons, 1):
        button.click()
        expect(page.locator("#message")).to_have_text(f"refused {number}")
    assert [(each["fault"], each["strategy"]) for each in asked] == [
        *((kind, name) for kind in ("lease", "pause", "redis") for name in ("expired_lease", "fenced_lock")),
        ("none", "all"),
    ]
    page.locator("#controls select").select_option("redis_lock")
    expect(page.locator("#idea")).to_contain_text("watchdog")
    expect(page.locator("#broken small")).to_have_text("local_lock@processes")
    page.get_by_label("Buyers", exact=True).fill("9")
    page.get_by_label("Buyers", exact=True).press("Enter")
    expect(page.locator("#message")).to_have_text(f"refused {len(buttons) + 1}")
    assert (asked[-1]["strategy"], asked[-1]["buyers"]) == ("redis_lock", "9")
    page.locator('#matrix [data-show="segmented"]').click()
    expect(page.locator("#code-title")).to_have_text("segmented")
    assert all("409" in complaint for complaint in complaints)
    complaints.clear()


def test_nonsense_in_the_form_is_explained(open_lab, complaints):
    """The server's own words are shown."""
    page = open_lab()
    page.get_by_label("Buyers", exact=True).fill("61")
    page.get_by_role("button", name="▶ Race", exact=True).click()
    expect(page.locator("#message")).to_contain_text("Buyers 61")
    assert "400" in complaints.pop()


def arrives(page, who, text):
    """Wait until a buyer's last step is this one."""
    expect(page.locator(f'[data-lane="{who}"] .marks li').last).to_contain_text(text, timeout=SOON)


def test_the_last_piece_is_sold_twice(open_lab):
    """A and B by button and by key: both decide, both write, and the page says that it is done."""
    page = open_lab()
    page.get_by_role("button", name="Step by step").click()
    page.get_by_role("button", name="Begin", exact=True).click()
    expect(page.locator("#goal")).to_have_text("Both stand at the door. Press A or B.", timeout=SOON)
    page.get_by_role("button", name="A · next").click()
    arrives(page, "A", "has read the stock: 1")
    page.get_by_role("button", name="B · next").click()
    arrives(page, "B", "has read the stock: 1")
    expect(page.locator("#step-code .lit .gutter")).to_have_text("▶A B")
    for who in ("A", "B"):
        for step in ("has decided", "has written the new stock", "has written the order", "has committed"):
            expect(page.locator(f'[data-next="{who}"]')).to_be_enabled(timeout=SOON)
            page.keyboard.press(who.lower())
            arrives(page, who, step)
        expect(page.locator(f'[data-next="{who}"]')).to_be_enabled(timeout=SOON)
        page.keyboard.press(who.lower())
        expect(page.locator(f'[data-lane="{who}"] .now')).to_contain_text("✓ bought it", timeout=SOON)
    expect(page.locator("#goal")).to_contain_text("You did it")
    expect(page.locator("#books")).to_have_text("sold 2 of 1 · the page says 0 left · 1 unit unaccounted for")


def test_a_sound_strategy_says_for_whom_a_buyer_waits(open_lab):
    """With the row locked B waits for A, and the page says so; a session can be begun again."""
    page = open_lab(f"{SMALL}&strategy=row_lock", viewport={"width": 1280, "height": 900})
    page.get_by_role("button", name="Begin", exact=True).click()
    for step in ("waits for a lock", "has the lock", "has read the stock: 1"):
        expect(page.locator('[data-next="A"]')).to_be_enabled(timeout=SOON)
        page.locator('[data-next="A"]').click()
        arrives(page, "A", step)
    page.locator('[data-next="B"]').click()
    arrives(page, "B", "waits for a lock")
    page.locator('[data-next="B"]').click()
    expect(page.locator('[data-lane="B"] .now')).to_have_text("‖ waits for A, who has the row", timeout=SOON)
    if SHOTS:
        in_both_schemes(
            page, lambda scheme: page.locator("#steps").screenshot(path=f"{SHOTS}/steps-{scheme}.png")
        )
    assert violations(page) == []
    page.get_by_role("button", name="Begin again").click()
    expect(page.locator("#goal")).to_have_text("Both stand at the door. Press A or B.", timeout=SOON)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all(finished, open_lab, scheme):
    """Nothing scrolls sideways, with a race on the page."""
    page = open_lab(f"/lab/?left={finished}", viewport=PHONE, color_scheme=scheme)
    expect(page.locator("#left .verdict")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_lab_speaks_chinese(finished, open_lab):
    """Page, verdict and evidence come in the visitor's language."""
    page = open_lab(f"/lab/?left={finished}", locale="zh-CN")
    expect(page.locator("h1")).to_have_text("超卖实验室")
    expect(page.locator("#left .verdict")).to_contain_text("1 件下落不明")
    expect(page.locator("#left .evidence")).to_contain_text("买家 1 和 2")


def test_the_shop_is_accessible(open_page):
    """The shop, with an answer on it, in light and dark."""
    for sku, name, stock in (("mug", "Mug", 40), ("pen", "Pen", 1), ("poster", "Poster", 0)):
        ProductFactory(sku=sku, name=name, on_hand=stock)
    page = open_page("/shop/", viewport={"width": 1100, "height": 800})
    page.get_by_role("group", name="Mug").get_by_role("button", name="One more").click()
    page.get_by_role("button", name="Waiter the order").click()
    expect(page.locator(".answer.ordered")).to_be_visible()
    in_both_schemes(page, no_violations(page))
    if SHOTS:
        in_both_schemes(page, picture(page, "shop"))


def test_the_start_page_leads_to_the_lab(open_page):
    """The first card is the lab's."""
    page = open_page("/")
    page.locator(".card").first.click()
    page.wait_for_url(re.compile("/lab/"))
    assert violations(page) == []
