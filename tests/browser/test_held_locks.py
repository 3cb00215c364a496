import os
import re
import threading
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from locking import get_lock, get_read_lock, get_semaphore
from locking.exceptions import LockLost
from locking.inspection.heartbeat import WAITS, HeartbeatPublisher
from locking.models import LockEvent
from tests.locking.support.helpers import take_from
from tests.support.processes import until

LIST = "/admin/locking/heldlock/"
SHOTS = os.environ.get("HOLDFAST_SCREENSHOTS")


@pytest.fixture
def held(monkeypatch):
    """A few locks that are held, and what their process tells of them."""
    monkeypatch.setattr("locking.inspection.heartbeat.HELD_LONG", 0.0)
    leases = [
        get_lock("order:42", fenced=True, ttl=600).acquire(),
        get_lock("order:43", ttl=600).acquire(),
        get_read_lock("catalogue", ttl=600).acquire(),
        get_semaphore("mail-gateway", 5, ttl=600).acquire(),
    ]
    HeartbeatPublisher().beat()
    yield leases
    for lease in leases:
        try:
            lease.release()
        except LockLost:
            continue  # broken by the test, or ended


@pytest.fixture
def awaited(held, monkeypatch):
    """A thread that waits for `order:42`, and has published that it does."""
    monkeypatch.setattr("locking.inspection.heartbeat.PUBLISH_AFTER", 0.0)
    waiter = threading.Thread(target=waits_for, args=("order:42",), name="worker-7")
    waiter.start()
    until(lambda: WAITS, "a waiter")
    HeartbeatPublisher().beat()
    yield
    assert take_from("order:42", owner=held[0].owner)
    waiter.join()


def waits_for(name):
    """Wait for a lock, and release it as soon as it is granted."""
    with get_lock(name, wait=600):
        pass


@pytest.fixture
def open_list(open_admin):
    """Open the list as a user who is signed in."""
    return partial(open_admin, LIST)


def row(page, name):
    """Return the row of a lock."""
    return page.locator("#result_list tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def test_rows_come_and_go_by_themselves(open_list, held):
    """A lock taken while the page is open appears, and disappears when it is released."""
    page = open_list()
    expect(row(page, "order:42")).to_contain_text("MainThread")
    expect(page.locator("#held-live")).to_have_text("Live: refreshed every 2 seconds.")
    with get_lock("late"):
        expect(row(page, "late")).to_be_visible()
    expect(row(page, "late")).to_have_count(0)


def test_a_ticked_row_stops_the_refreshing(open_list, held):
    """While something is ticked nothing is fetched, so it stays in its place; unticked, the list goes on."""
    page = open_list(clock=True)
    row(page, "order:42").get_by_role("checkbox").check()
    expect(page.locator("#held-live")).to_have_text("Paused while something is ticked.")
    fetched: list[object] = []
    page.on("request", lambda request: fetched.append(request))
    with get_lock("late"):
        page.clock.run_for(20_000)
        assert fetched == []
        expect(row(page, "order:42").get_by_role("checkbox")).to_be_checked()
        row(page, "order:42").get_by_role("checkbox").uncheck()
        page.clock.run_for(2_000)
        expect(row(page, "late")).to_be_visible()


def test_the_focus_stays_in_its_row(open_list, held):
    """The keyboard focus stays in its row when the rows are fetched again."""
    page = open_list()
    link = row(page, "order:42").get_by_role("link", name="order:42", exact=True)
    link.focus()
    with get_lock("late"):
        expect(row(page, "late")).to_be_visible()
        expect(link).to_be_focused()
        page.keyboard.press("Shift+Tab")
        expect(row(page, "order:42").get_by_role("checkbox")).to_be_focused()
    expect(row(page, "late")).to_have_count(0)
    expect(row(page, "order:42").get_by_role("checkbox")).to_be_focused()


def test_select_all_knows_the_rows_that_came_later(open_list, held):
    """The box above all rows ticks those that are there now."""
    page = open_list()
    with get_lock("late"):
        expect(row(page, "late")).to_be_visible()
        page.get_by_label("Select all objects on this page").check()
        expect(row(page, "late").get_by_role("checkbox")).to_be_checked()
        expect(page.locator(".action-counter")).to_have_text("5 / 5")


def test_every_filter(open_list, held):
    """Each filter narrows the list, and all are cleared by one link."""
    page = open_list()
    expect(page.locator("#changelist-filter summary").nth(2)).to_have_text("Held longer than")
    page.get_by_role("link", name="semaphore", exact=True).click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Clear all filters").click()
    page.get_by_label("beginning of the name").fill("order:")
    page.get_by_label("beginning of the name").press("Enter")
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    page.get_by_role("link", name="10 minutes", exact=True).click()
    expect(page.get_by_text("No held lock matches.")).to_be_visible()
    page.get_by_role("link", name="Clear all filters").click()
    page.locator("#searchbar").fill("test_held_locks.py")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(4)
    page.get_by_label("host", exact=True).fill("nowhere")
    page.locator("form", has=page.get_by_label("host", exact=True)).get_by_role("button").click()
    expect(page.get_by_text("No held lock matches.")).to_be_visible()


def test_breaking_and_extending(open_list, held):
    """By every button: one lock is extended, one broken, two broken at once; the audit has all of it."""
    page = open_list()
    page.get_by_role("link", name="order:43", exact=True).click()
    page.get_by_role("link", name="Extend…").click()
    page.get_by_label("Seconds from now").fill("900")
    page.get_by_role("button", name="Extend", exact=True).click()
    expect(page.locator(".messagelist")).to_contain_text("Extended: order:43")
    expect(row(page, "order:43")).to_contain_text("14 min")

    page.get_by_role("link", name="order:42", exact=True).click()
    expect(page.locator(".held-facts")).to_contain_text("browser/test_held_locks.py")
    page.get_by_role("link", name="Refresh").click()
    page.get_by_role("link", name="Force release…").click()
    expect(page.locator(".held-warning")).to_contain_text("doesn't stop the holder")
    page.get_by_role("link", name="Back").click()
    page.get_by_role("link", name="Force release…").click()
    page.get_by_label("Reason").fill("worker 7 is gone")
    page.get_by_role("button", name="Force release").click()
    expect(page.locator(".messagelist")).to_contain_text("Broken: order:42")
    expect(row(page, "order:42")).to_have_count(0)

    for name in ("order:43", "catalogue"):
        row(page, name).get_by_role("checkbox").check()
    page.get_by_label("Action:").select_option("release_selected")
    page.locator("button[name=index]").click()
    page.get_by_label("Reason").fill("clearing up")
    page.get_by_role("button", name="Force release").click()
    expect(page.locator(".messagelist")).to_contain_text("Broken: 2; ended by themselves: 0")
    expect(row(page, "catalogue")).to_have_count(0)
    expect(row(page, "mail-gateway")).to_be_visible()
    assert sorted(LockEvent.objects.values_list("name", "reason")) == [
        ("catalogue", "clearing up"),
        ("order:42", "worker 7 is gone"),
        ("order:43", ""),
        ("order:43", "clearing up"),
    ]
    page.goto("/admin/locking/lockevent/")
    expect(page.locator("#result_list")).to_contain_text("worker 7 is gone")


def test_json_is_one_click_away(open_list, held):
    """The button leads to the same list for programs."""
    page = open_list()
    page.get_by_role("link", name="JSON").click()
    expect(page.locator("body")).to_contain_text('"name": "order:42"')


def test_a_server_that_is_away_is_reported(open_list, held, complaints):
    """The page says that it is old, and is alive again when the server is."""
    page = open_list()
    page.route(f"**{LIST}", lambda route: route.abort())
    expect(page.locator("#held-live")).to_have_text("Not refreshed: the server doesn't answer.")
    page.unroute(f"**{LIST}")
    expect(page.locator("#held-live")).to_have_text("Live: refreshed every 2 seconds.")
    assert complaints
    assert all("ERR_FAILED" in complaint for complaint in complaints)
    complaints.clear()


def test_a_strict_content_security_policy_has_nothing_to_forbid(open_list, held):
    """With `default-src 'self'` the page works, and the browser complains of nothing."""
    page = open_list()

    def strict(route):
        answer = route.fetch()
        headers = {**answer.headers, "content-security-policy": "default-src 'self'; img-src 'self' data:"}
        route.fulfill(response=answer, headers=headers)

    page.route(re.compile(re.escape(LIST) + "$"), strict)
    page.goto(LIST)
    with get_lock("late"):
        expect(row(page, "late")).to_be_visible()


@pytest.mark.screenshots
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(open_list, held, awaited, scheme):
    """The list follows the reader's color scheme."""
    page = open_list(color_scheme=scheme, viewport={"width": 1700, "height": 620})
    expect(row(page, "order:42")).to_be_visible()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert max(background) < 60 if scheme == "dark" else min(background) > 200
    shot(page, f"held-list-{scheme}")
    page.get_by_role("link", name="order:42", exact=True).click()
    shot(page, f"held-detail-{scheme}")
    page.get_by_role("link", name="Force release…").click()
    shot(page, f"held-release-{scheme}")


def shot(page, name):
    """Take a picture for the docs, if that is wanted."""
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")
