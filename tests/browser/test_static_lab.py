"""The static lab in a real browser, from a plain file server: nothing behind it answers anything."""

import pytest
from django.core.management import call_command
from playwright.sync_api import expect

from tests.browser.files import file_server
from tests.browser.looks import SHOTS, in_both_schemes, no_violations, violations


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Build the lab and serve its folder; the address."""
    folder = tmp_path_factory.mktemp("lab")
    call_command("build_static_lab", folder)
    with file_server(folder) as address:
        yield address


@pytest.fixture
def static_lab(files, open_page):
    """Open a page of the folder; what is played is at its end at once."""
    return lambda path="/", **options: open_page(files + path, reduced_motion="reduce", **options)


def test_the_static_lab_shows_the_recorded_pair(static_lab):
    """Both races, every strategy's dot and its lines are there without a server of the lab."""
    page = static_lab(viewport={"width": 1280, "height": 900})
    expect(page.locator("#left .headline")).to_have_text("✗ 30 people paid for a mug that doesn't exist")
    expect(page.locator("#right .headline")).to_contain_text("10 mugs sold")
    expect(page.locator("#code-title")).to_have_text("lost_update")
    page.locator('[data-dot="version_cas"]').click()
    expect(page.locator("#code-title")).to_have_text("version_cas")
    expect(page.locator("#race-code .line").nth(5)).to_be_visible()
    in_both_schemes(page, no_violations(page))


def lead(page, order):
    """Press the buttons of recorded buyers; each is waited for until it can be pressed."""
    for who in order:
        page.locator(f"[data-next={who}]").click()


def test_every_puzzle_has_a_permalink_and_both_languages(static_lab):
    """A number in the address opens its puzzle; recorded buyers sell twice, and their fix does not."""
    page = static_lab("/?puzzle=1", viewport={"width": 1280, "height": 900})
    expect(page.locator("[data-puzzle]")).to_have_count(20)
    expect(page.locator("#puzzle h3")).to_have_text("1 · Sell the last piece twice.")
    expect(page.locator("#steps")).to_contain_text("Recorded: two real buyers")
    lead(page, "ABABABAABABB")
    expect(page.locator("#goal")).to_contain_text("You did it: the last piece is sold twice.")
    expect(page.locator("#totals")).to_contain_text("sold 2")
    expect(page.locator("#solved")).to_have_text("1 of 20 puzzles solved")
    assert violations(page) == []
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("#goal")).to_be_hidden()
    expect(page.locator("[data-lane=A] .now")).to_contain_text("bought it")
    lead(page, "B")
    expect(page.locator("#goal")).to_contain_text("You did it")
    page.locator("#try-fix").click()
    expect(page.locator("#step-strategy")).to_have_text("row_lock")
    lead(page, "A" * 8)
    expect(page.locator("#totals")).to_contain_text("sold 1")
    page.get_by_role("link", name="简体中文").click()
    expect(page.locator("#puzzle h3")).to_have_text("1 · 把最后一件卖两次。")
    expect(page.locator("#solved")).to_contain_text("1")
    assert page.url.endswith("/zh-hans.html?puzzle=1")


def test_a_recorded_deadlock_closes_its_ring(static_lab):
    """Both locks of a real run are drawn, and the victim that PostgreSQL chose."""
    page = static_lab("/?puzzle=5&embed=1", viewport={"width": 640, "height": 900})
    expect(page.locator("#own")).to_be_hidden()
    lead(page, "AAAAABBABBBB")
    expect(page.locator("#goal")).to_contain_text("was made to give up, so that")
    expect(page.locator("#ring .victim")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    in_both_schemes(page, no_violations(page))


def test_a_puzzle_can_be_embedded(static_lab):
    """In a frame of another page the puzzle stands alone, and its search runs."""
    page = static_lab("/?puzzle=8&embed=1", viewport={"width": 640, "height": 900})
    expect(page.locator("#puzzle h3")).to_contain_text("8 · Write skew")
    expect(page.locator(".bar")).to_be_hidden()
    expect(page.locator("#matrix")).to_be_hidden()
    page.locator("#search").click()
    expect(page.locator("#own-verdict")).to_contain_text("So end 910 of the 924 schedules of 2.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(page) == []


@pytest.mark.pictures
@pytest.mark.parametrize("path", ["/", "/zh-hans.html?puzzle=5"])
def test_pictures_of_the_static_lab(static_lab, path):
    """At three widths and in both schemes."""
    page = static_lab(path)
    expect(page.locator("#right .headline")).to_be_visible()
    for width in (360, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            name = f"static-{path.strip('/')[:2] or 'en'}-{scheme}-{width}"
            page.screenshot(path=f"{SHOTS}/{name}.png", full_page=True)
