"""Held locks and their waiters in a real browser: widths, schemes, languages, odd names, deadlocks."""

import re
import threading
from contextlib import contextmanager, suppress

import pytest
from playwright.sync_api import expect

from locking import LockLost, get_lock
from locking.inspection.heartbeat import WAITS, HeartbeatPublisher
from locking.inspection.held import holds_of
from locking.models import LockEvent
from tests.browser.looks import at_each_width, at_widths, in_both_schemes, scroll_width, violations_in
from tests.locking.support.helpers import take_from
from tests.support.processes import until

LIST = "/admin/locking/heldlock/"
WAITING = f"{LIST}waiting/"
LANGUAGES = ("en", "zh-hans")
LONG = "catalogue:" + "x" * 900
TURNED = "order:\u202e24"
CIRCLE = "deadlock: " + "; ".join(["web-1:812:Thread-3 holds 'order:42' and waits for 'stock:mug'"] * 3)
LONG_ENOUGH = 600  # seconds; longer than a test may last, so that no wait ends in the middle of a slow one
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def contended(monkeypatch):
    """A deadlock without a search for it, one more waiter, a long name and one that turns the text round."""
    monkeypatch.setattr("locking.inspection.deadlocks.FIRST_LOOK", 3600.0)
    monkeypatch.setattr("locking.inspection.heartbeat.HELD_LONG", 0.0)
    monkeypatch.setattr("locking.inspection.heartbeat.PUBLISH_AFTER", 0.0)
    reporter, meeting = HeartbeatPublisher(), threading.Barrier(3, timeout=30)
    pairs = [("order:42", "stock:mug"), ("stock:mug", "order:42"), ("order:8", "order:42")]
    threads = [
        threading.Thread(target=crosses, args=(*pair, meeting), name=f"worker-{number}")
        for number, pair in enumerate(pairs)
    ]
    leases = [get_lock(name, ttl=600).acquire() for name in (LONG, TURNED, "order:7")]
    for thread in threads:
        thread.start()
    until(lambda: len(WAITS) >= len(pairs), "all wait")
    with beating(reporter):
        yield reporter
    (holder,) = holds_of("order:42")
    assert take_from("order:42", owner=holder.owner)
    for thread in threads:
        thread.join()
    for lease in leases:
        lease.release()
    reporter.deregister()


@contextmanager
def beating(reporter):
    """Publish the waiters again and again, as a live process does, however slow a page is."""
    over = threading.Event()

    def beat():
        while not over.wait(2.0):
            reporter.beat()

    reporter.beat()
    heart = threading.Thread(target=beat)
    heart.start()
    yield
    over.set()
    heart.join()


def crosses(mine, other, meeting):
    """Hold `mine` and wait for `other`; the end of the test breaks the circle."""
    with suppress(LockLost), get_lock(mine, ttl=600):
        meeting.wait()
        with get_lock(other, ttl=600, wait=LONG_ENOUGH):
            pass


@pytest.fixture
def open_at(open_admin):
    """Open a page of the admin as a superuser, in a window of some width."""

    def open_at(address, width=1280, **options):
        return open_admin(address, viewport={"width": width, "height": 900}, **options)

    return open_at


def row(page, name):
    """Return the row of a lock."""
    return page.locator("#result_list tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def test_each_row_names_its_waiters(open_at, contended):
    """The most contended lock comes first; after its name, how many wait, who, and for how long."""
    page = open_at(LIST)
    expect(page.locator("#result_list thead th").nth(3)).to_have_text("Waiters")
    expect(page.locator("#result_list tbody tr").first).to_contain_text("order:42")
    expect(row(page, "order:42").locator(".field-waiter_count")).to_contain_text("worker-1")
    expect(row(page, "order:42").locator(".field-waiter_count")).to_contain_text("worker-2")
    page.get_by_role("link", name="the oldest first").click()
    expect(page.locator("#result_list tbody tr").first).to_contain_text("catalogue")
    page.get_by_role("link", name="most waiters first").click()
    expect(page.locator("#result_list tbody tr").first).to_contain_text("order:42")
    page.get_by_role("link", name="order:42", exact=True).click()
    expect(page.locator(".held-waiting")).to_contain_text("worker-2")


def test_a_lock_is_released_from_its_row(open_at, contended):
    """The row's own link leads to the question why, and its button looks dangerous: not as Extend does."""
    page = open_at(LIST)
    row(page, "order:7").get_by_role("link", name="Force release…").click()
    danger = page.get_by_role("button", name="Force release")
    expect(danger).to_have_css("background-color", "rgb(186, 33, 33)")
    page.get_by_role("link", name="Back").click()
    colour = "element => getComputedStyle(element).backgroundColor"
    release = page.get_by_role("link", name="Force release…").evaluate(colour)
    assert release != page.get_by_role("link", name="Extend…").evaluate(colour)


def test_a_search_without_hits_does_not_say_that_nothing_is_held(open_at, contended):
    """It says that nothing matches, and links to everything."""
    page = open_at(f"{LIST}?q=unknown")
    expect(page.get_by_text("No held lock matches.")).to_be_visible()
    expect(page.get_by_text("Nothing is held.")).to_have_count(0)
    page.get_by_role("link", name="Show all held locks").click()
    expect(row(page, "order:42")).to_be_visible()


def test_odd_names_are_short_and_cannot_turn_the_row_round(open_at, contended):
    """A name of 900 characters is cut, U+202E is shown as what it is, and no row is taller than 150 px."""
    page = open_at(LIST)
    expect(page.get_by_role("link", name="order:⟨U+202E⟩24")).to_be_visible()
    long = page.get_by_role("link", name="catalogue:xxx")
    assert len(long.inner_text()) <= 80
    assert long.locator("bdi").get_attribute("title") == LONG
    expect(page.locator("#result_list")).not_to_contain_text(" ms")  # for a tenth of a second ages are longer
    for each in page.locator("#result_list tbody tr").all():
        assert each.bounding_box()["height"] < 150


LINES = """(all, letters) => all.map((one) => {
  const [range, text] = [document.createRange(), one.firstChild];
  range.setStart(text, 0);
  range.setEnd(text, Math.min(letters, text.length));
  return range.getClientRects().length;
})"""
DATE = len("2026-11-26")


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_name_of_a_thread_and_no_date_is_broken(open_at, contended, language):
    """Neither within a word nor after a hyphen: in the list, on a lock's own page, in the audit."""
    write_deadlock()
    page = open_at(LIST, language=language)
    parts = page.locator("#result_list .held-part")
    expect(parts.filter(has_text="worker-2")).to_have_count(2)  # it holds, and it waits
    for _ in at_widths(page, 1280, 360):
        assert set(parts.evaluate_all(LINES, 99)) == {1}
    page.get_by_role("link", name="order:42", exact=True).click()
    expect(page.locator(".held-facts")).to_be_visible()
    for _ in at_widths(page, 1280, 360):
        assert page.locator(".held-facts td").filter(has_text=":worker-").evaluate_all(LINES, 99) == [1]
    page.goto("/admin/locking/lockevent/")
    for _ in at_widths(page, 1280, 360):
        assert page.locator("#result_list .field-moment a").evaluate_all(LINES, DATE) == [1]


def test_a_holder_is_not_broken_in_the_middle_of_a_word(open_at, contended):
    """A narrow column breaks it after a colon; `worker-0` stays on one line."""
    page = open_at(LIST, width=1280)
    cell = row(page, "order:42").locator(".field-holder bdi")
    height = """e => {
      const range = document.createRange();
      range.selectNodeContents(e.lastChild);
      return range.getClientRects().length;
    }"""
    assert cell.evaluate(height) == 1
    expect(cell).to_have_text(re.compile(r"^\S+:\d+:worker-0$"))
    page.get_by_role("link", name="order:42", exact=True).click()
    acquired = page.locator(".held-events tr", has_text="Acquired").locator("bdi")
    assert acquired.evaluate(height) == 1


def test_the_columns_that_matter_are_on_the_screen(open_at, contended):
    """Waiters, lease, token and the release of every row are seen without scrolling sideways."""
    page = open_at(LIST)
    for width in at_widths(page, 1280, 1440, 1920):
        right = page.locator("#held-rows").evaluate("e => e.getBoundingClientRect().right")
        for name in ("waiter_count", "remaining", "token", "release"):
            box = row(page, "order:42").locator(f".field-{name}").bounding_box()
            assert box["x"] + box["width"] <= right + 1, (name, width)
        assert right <= width


def test_who_waits_for_whom(open_at, contended):
    """The page nests the waiters, marks both of the deadlock, and not the third one behind them."""
    page = open_at(LIST)
    page.get_by_role("link", name="Who waits for whom").click()
    expect(page.locator(".held-tree li.deadlock > .held-state")).to_have_count(3)  # once more where it closes
    third = page.locator(".held-tree li").filter(has_text="worker-2").last
    expect(third).not_to_contain_text("deadlock")
    expect(third).to_contain_text("order:42")


def test_a_holder_that_waits_for_nothing_stands_above_its_waiters(open_at, contended):
    """Who waits for a lock whose holder goes on with its work is shown below that holder."""
    with held_and_waited_for("report"):
        contended.beat()
        page = open_at(WAITING)
        root = page.locator(".held-tree > li").filter(has_text="report")
        expect(root).to_have_count(1)
        expect(root.locator("> dl dd")).to_have_text("report")
        expect(root.locator("> ul > li")).to_contain_text("late-worker")


def test_the_tree_of_waiters_is_live(open_at, contended):
    """A new waiter is shown without a reload, and what a release of its holder would do."""
    page = open_at(WAITING)
    expect(page.locator("#held-live")).to_have_text("Live: refreshed every 2 seconds.")
    with held_and_waited_for("report"):
        contended.beat()
        incident = page.locator(".held-incident").filter(has_text="with report")
        expect(incident).to_contain_text("late-worker go on, which has waited", timeout=20_000)
        incident.get_by_role("link", name="Force release…").click()
        expect(page.locator("#content")).to_contain_text("late-worker go on, which has waited")


@contextmanager
def held_and_waited_for(name):
    """Hold a lock for which one thread waits until the block ends."""
    lease, before = get_lock(name, ttl=600).acquire(), len(WAITS)
    thread = threading.Thread(target=lambda: get_lock(name, ttl=600, wait=LONG_ENOUGH).acquire().release())
    thread.name = "late-worker"
    thread.start()
    try:
        while len(WAITS) <= before:
            threading.Event().wait(0.01)
        yield
    finally:
        lease.release()
        thread.join()


PAGES_OF_A_LOCK = ("list", "waiting", "detail", "release", "extend", "release_selected")


def open_page_of(page, name):
    """Go from the list to a page about its locks."""
    if name == "waiting":
        page.goto(WAITING)
    elif name == "release_selected":
        page.locator("#action-toggle").check()
        page.select_option("select[name=action]", "release_selected")
        page.get_by_role("button", name="Go").click()
    elif name != "list":
        page.get_by_role("link", name="catalogue:xxx").click()
        if name != "detail":
            page.locator(f"a[href$='/{name}/']").click()
    expect(page.locator("#content")).to_contain_text("catalogue" if name != "waiting" else "order:8")


def test_a_narrow_page_needs_no_scrolling_sideways(open_at, contended):
    """On a phone and a tablet every page about a lock, however long its name, is as wide as the screen."""
    page = open_at(LIST, width=360)
    for name in PAGES_OF_A_LOCK:
        page.goto(LIST)
        open_page_of(page, name)
        page.wait_for_load_state()  # before its style has come a page is as wide as its text
        for width in at_widths(page, 360, 768):
            assert scroll_width(page) <= width, name


def test_columns_that_are_cut_off_fade_until_they_are_scrolled_to(open_at, contended):
    """The right edge of the list fades out on a phone while there is more, and not where all is seen."""
    page = open_at(LIST, width=360)
    fade = "getComputedStyle(document.querySelector('.results')).getPropertyValue('--held-fade')"
    until(lambda: page.evaluate(f"parseFloat({fade})") > 20, "the edge fades")
    page.locator(".results").evaluate("rows => rows.scrollTo(rows.scrollWidth, 0)")
    until(lambda: page.evaluate(f"parseFloat({fade})") < 1, "nothing fades")
    page.set_viewport_size({"width": 1920, "height": 900})
    until(lambda: page.evaluate(f"parseFloat({fade})") < 1, "nothing fades")


def test_a_waiters_name_and_its_time_are_apart(open_at, contended):
    """The time is never broken, and a sign separates it from the name, which may end in a number."""
    page = open_at(LIST)
    waited = row(page, "order:42").locator(".held-waited").first
    expect(waited).to_have_css("white-space", "nowrap")
    assert "·" in waited.evaluate("one => getComputedStyle(one, '::before').content")


def write_deadlock():
    """Write a row to the audit, with a long reason."""
    reported = {
        "backend": "default",
        "kind": "lock",
        "key": "order:42",
        "name": "order:42",
        "holder": "f" * 41,
    }
    LockEvent.objects.create(action="deadlock", actor="deadlock detection", reason=CIRCLE, **reported)


def test_the_audits_reason_is_on_the_screen(open_at, transactional_db):
    """However long it is: it wraps."""
    write_deadlock()
    page = open_at("/admin/locking/lockevent/")
    reason = page.locator("#result_list td.field-reason")
    expect(reason).to_contain_text("waits for 'stock:mug'")
    for width in at_widths(page, 1280, 1920):
        box = reason.bounding_box()
        assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_violations(open_at, contended, language):
    """axe finds nothing on the list, the waits, a hold, its release and the audit, nor on a phone."""
    # axe sets styles of its own, which the page's policy would refuse.
    page = open_at(LIST, language=language, bypass_csp=True)
    found = {}

    def look(name):
        contended.beat()  # a process that falls silent waits no more
        page.reload()

        def see(scheme):
            for width in at_widths(page, 1280, 360):
                found[name, scheme, width] = violations_in(page, scheme, language)
            at_each_width(page, f"{name}-{language}-{scheme}")

        in_both_schemes(page, see)

    look("held")
    page.goto(WAITING)
    look("waiting")
    page.goto(f"{LIST}?q=order:42")
    with page.expect_navigation():
        page.get_by_role("link", name="order:42", exact=True).click()
    look("detail")
    with page.expect_navigation():
        page.locator("a.held-danger").click()
    look("release")
    write_deadlock()
    page.goto("/admin/locking/lockevent/")
    look("audit")
    wrong = [(where, one) for where, each in found.items() for one in each]
    assert wrong == [], wrong


def test_a_long_name_leaves_room_for_the_reason(open_at):
    """The audit cuts a name of 900 characters, shows one that turns the text round, and a reason is read."""
    for name in (LONG, TURNED):
        event = {"backend": "default", "name": name, "key": name, "kind": "lock", "owner": "o", "holder": "h"}
        LockEvent.objects.create(action="deadlock", actor="admin", reason=CIRCLE, **event)
    page = open_at("/admin/locking/lockevent/")
    expect(page.locator(f'bdi[title="{LONG}"]')).to_have_text(re.compile("^catalogue:x{20,40}…x{20,40}$"))
    expect(page.get_by_text("order:⟨U+202E⟩24")).to_be_visible()
    assert page.locator("td.field-reason").first.bounding_box()["width"] >= 200
