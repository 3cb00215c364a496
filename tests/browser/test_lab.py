"""The lab in a real browser: every button, both colour schemes, a phone, the keyboard."""

import itertools
import re
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from locking.core.handler import locks
from locking.inspection.heartbeat import last_hour
from locking.models import LockEvent
from orders.lab.models import LabRun
from tests.browser.conftest import end_lab_runs
from tests.browser.looks import (
    PHONE,
    SHOTS,
    frame,
    in_both_schemes,
    no_violations,
    picture,
    scroll_width,
    shot,
    strip,
    violations,
)
from tests.browser.races import SOON, before_it_begins, race_ends
from tests.support.processes import until

# How many, the machine decides: on a busy one a buyer may read after another has written.
OVERSOLD = re.compile(r"([2-6] people|1 person) paid for a mug that doesn.t exist")
SMALL = "/lab/?buyers=8&stock=2&gap=20&processes=2"
pytestmark = pytest.mark.timeout(300)  # a loaded machine takes its time over processes and pictures


@pytest.fixture
def open_lab(open_page):
    """Open the lab; nothing moves by itself, so that a test need not wait for it."""

    def open_it(address=SMALL, **options):
        return open_page(address, reduced_motion="reduce", **options)

    return open_it


def test_break_it_and_fix_it(open_lab):
    """Buyers pay for nothing on the left only; a link shows both races again."""
    page = open_lab(viewport={"width": 1280, "height": 900})
    page.get_by_role("button", name="Break it").click()
    headline = page.locator("#left .headline")
    expect(headline).to_contain_text(OVERSOLD, timeout=SOON)
    reported = headline.inner_text()
    expect(page.locator("#left .evidence")).to_contain_text(re.compile(r"read [12] within"))
    race_ends(page)
    page.get_by_role("button", name="Fix it").click()
    expect(page.locator("#right .headline")).to_have_text(
        "✓ 2 mugs sold, each to a buyer who gets it", timeout=SOON
    )
    race_ends(page)
    expect(page.locator("#left .sold").first).to_have_text(f"sold {2 + int(reported.split()[1])}")
    expect(page.locator("#left .initial")).to_have_text("in stock 2")
    page.locator("summary", has_text="The figures as a table").click()
    expect(page.locator('#matrix [data-name="lost_update"] td').first).to_have_text("✗ no")
    expect(page.locator('#matrix [data-name="row_lock"] td').first).to_have_text("✓ yes")
    in_both_schemes(page, no_violations(page))
    page.reload()
    expect(headline).to_have_text(reported)
    expect(page.locator("#right .headline")).to_contain_text("2 mugs sold")
    expect(page.locator("#message")).to_contain_text("run before")


def test_the_lab_opens_with_a_recorded_race(open_page):
    """Before any click a recorded race plays, says that it is recorded, and ends with the number."""
    page = open_page("/lab/", viewport={"width": 1280, "height": 900})
    left = page.locator("#left")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()  # first: it plays for five seconds
    expect(left.locator(".tag")).to_have_text("recorded; run your own")
    expect(left.locator(".headline")).to_have_text("✗ 30 people paid for a mug that doesn't exist")
    expect(left.locator(".mug.beyond.taken")).to_have_count(30)
    expect(left.locator(".mug.shelf.taken")).to_have_count(10)
    expect(left.locator(".figures")).to_contain_text("sold 40")
    expect(page.locator("#right .headline")).to_contain_text("each to a buyer who gets it")
    assert left.locator(".headline").bounding_box()["y"] < 900 / 2


def test_the_recorded_mugs_fill_with_time(open_lab):
    """At the beginning every mug is free; half way through more are sold than there are."""
    page = open_lab("/lab/")
    page.get_by_role("slider").fill("0")
    expect(page.locator("#left .mug.taken")).to_have_count(0)
    expect(page.locator("#left .sold").first).to_have_text("sold 0")
    page.get_by_role("slider").fill("1000")
    expect(page.locator("#left .mug.beyond.taken")).to_have_count(30)


def test_as_many_mugs_are_full_as_are_sold(open_lab):
    """At every moment the mugs show the number beside them."""
    page = open_lab("/lab/")
    for moment in range(0, 1001, 125):
        page.get_by_role("slider").fill(str(moment))
        for side in ("#left", "#right"):
            sold = page.locator(f"{side} .sold").first.inner_text().split()[-1]
            expect(page.locator(f"{side} .mug.taken")).to_have_count(int(sold))


@pytest.mark.parametrize("strategy", ["lost_update", "row_lock"])
def test_a_link_to_a_strategy_of_the_recorded_pair_plays_it(open_lab, strategy):
    """Neither panel is empty, whichever of the two is chosen in the address."""
    page = open_lab(f"/lab/?strategy={strategy}")
    expect(page.locator("#left h2")).to_have_text("lost_update")
    expect(page.locator("#right h2")).to_have_text("row_lock")


def test_both_panels_share_their_axes(open_lab):
    """Lanes and curves of both races have one scale of time and one of stock, and are level."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    for side in ("#left", "#right"):  # the last that a panel draws
        expect(page.locator(f"{side} .chart .number").first).to_be_attached()
    for part in (".swim", ".chart"):
        ticks = [page.locator(f"{side} {part} .tick").all_inner_texts() for side in ("#left", "#right")]
        assert ticks[0] == ticks[1]
        tops = [page.locator(f"{side} {part}").bounding_box()["y"] for side in ("#left", "#right")]
        assert abs(tops[0] - tops[1]) < 2
    numbers = [page.locator(f"{side} .chart .number").all_inner_texts() for side in ("#left", "#right")]
    assert numbers[0] == numbers[1]


def test_the_moments_explain_the_race(open_lab):
    """Flags name what happened; choosing one goes to that moment."""
    page = open_lab("/lab/")
    moments = page.locator("#left .moments li")
    expect(moments.filter(has_text="buyers have read 10 by here")).to_have_count(1)
    expect(moments.filter(has_text="mug number 11 of 10 is sold")).to_have_count(1)
    assert page.locator("#left .swim .flag-number").count() == moments.count()
    moments.filter(has_text="mug number 11").get_by_role("button").click()
    expect(page.locator("#left .sold").first).to_have_text(re.compile(r"sold (9|1\d)"))


def test_flags_and_legend_are_beside_the_plot(open_lab):
    """The texts of the numbered flags are above the lanes, the legend right below the curve."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    expect(page.locator("#left .chart .number").first).to_be_attached()
    flags, lanes, chart = (
        page.locator(f"#left {part}").bounding_box() for part in (".moments", ".swim", ".chart")
    )
    assert flags["y"] + flags["height"] <= lanes["y"] + 2
    legend = page.locator(".legend").bounding_box()
    assert legend["y"] - (chart["y"] + chart["height"]) < 100


def test_hovering_over_break_it_keeps_it_red(open_lab):
    """The border of the red button has the same color with the pointer over it."""
    page = open_lab()
    color = "node => getComputedStyle(node).borderTopColor"
    button = page.locator("#broken")
    before = button.evaluate(color)
    button.hover()
    assert button.evaluate(color) == before


def test_break_the_fix_keeps_the_progress_in_view(open_lab):
    """A race that is started far down the page shows its progress and its message on the screen."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 700})
    with before_it_begins(page):
        page.locator('[data-fault="lease"][data-strategy="expired_lease"]').click()
        expect(page.locator("#progress")).to_be_in_viewport()
        expect(page.locator("#message")).to_be_in_viewport()
    race_ends(page)
    expect(page.locator("#left .headline")).to_be_in_viewport()


@pytest.mark.screenshots
@pytest.mark.pictures
def test_the_pictures_of_the_docs(open_lab):
    """What a visitor sees first: forty of ten, and the fix beside it."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    for button, panel in (("Break it", "#left"), ("Fix it", "#right")):
        page.get_by_role("button", name=button).click()
        race_ends(page)
        expect(page.locator(f"{panel} .tag")).to_be_hidden()
    expect(page.locator("#left .sold").first).to_have_text("sold 40")
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
    expect(panel.locator(".headline")).to_have_text("✗ 1 person paid for a mug that doesn't exist")
    expect(panel.locator(".sum")).to_have_text("-1 unaccounted for: in stock 1 − sold 2 − page 0.")
    assert panel.locator(".stale").count() == 1
    assert panel.locator(".swim .victim").count() == 1
    slider = page.get_by_role("slider", name="Moment of the race")
    slider.fill("0")
    expect(panel.locator(".sum")).to_contain_text("Every unit is accounted for")
    slider.fill("700")
    expect(panel.locator(".sold").first).to_have_text("sold 1")
    panel.locator("summary", has_text="Buyers").click()
    panel.get_by_role("button", name="2 ◐").click()
    expect(page.locator("#race-code .lit .who")).to_have_text("▶2")
    expect(page.locator("#race-code .lit .gutter")).to_have_text(re.compile(r"^\d+$"))
    play = page.get_by_role("button", name="Play again, slowly")
    # In one go: the play ends by itself after five seconds, and then there is no pause to press.
    reported = play.evaluate(
        "one => { one.click(); const label = one.ariaLabel; one.click(); return label; }"
    )
    assert reported == "Pause"
    expect(play).to_be_visible()
    slider.fill("1000")
    expect(panel.locator(".crowd .victim")).to_have_text("2 ✗")


def test_the_sum_behind_the_page_is_a_tooltip(finished, open_lab):
    """The number on the page shows the unaccounted units to a pointer, and to the keyboard."""
    page = open_lab(f"/lab/?left={finished}")
    tip = page.locator("#left .tip")
    expect(tip.locator(".sum")).to_be_hidden()
    tip.focus()
    expect(tip.locator(".sum")).to_be_visible()


@pytest.fixture
def raced(transactional_db, finished):
    """A race of all strategies as it was run: two broken ones, and two sound ones with refused buyers."""

    def buyer(number, answer):
        marks = [["decided", 2, None, 37], ["written", 9, None, 41]]
        return {"number": number, "marks": marks, "answer": answer, "problem": "", "retries": 0, "from": 0,
                "to": 12 + number}  # fmt: skip

    shown = LabRun.objects.get(pk=finished).events.get(data__type="result").data
    sound = {
        "sound": True, "sold": 1, "left": 0, "oversold": 0, "unaccounted": 0, "refused": 1, "exact": True,
        "shown_broken": False, "evidence": {"en": "", "zh-hans": ""},
        "buyers": [buyer(1, "sold"), buyer(2, "refused")],
    }  # fmt: skip
    run = LabRun.objects.create(kind="race", parameters={"buyers": 2, "stock": 1, "strategy": "all"})
    for name in ("lost_update", "negative_stock"):
        run.events.create(sender="run", data={**shown, "name": name, "strategy": name})
    for name in ("row_lock", "conditional_update"):
        run.events.create(sender="run", data={**shown, **sound, "name": name, "strategy": name})
    run.events.create(sender="run", data={"type": "ended", "why": "done"})
    LabRun.objects.update(ended_at=run.started_at)
    return run.pk


def test_a_link_to_a_race_of_all_shows_each_strategy_in_its_place(raced, open_lab):
    """Every strategy has its dot and line, and the panels show one that is broken beside its own fix."""
    page = open_lab(f"/lab/?all={raced}")
    expect(page.locator("#left h2")).to_have_text("lost_update")
    expect(page.locator("#right h2")).to_have_text("row_lock")
    expect(page.locator("#left.wrong")).to_have_count(1)
    expect(page.locator("#right.right")).to_have_count(1)
    assert f"all={raced}" in page.url
    assert "left=" not in page.url
    expect(page.locator(".dot:not(.recorded)")).to_have_count(4)
    page.locator('[data-dot="negative_stock"]').click()
    expect(page.locator("#left h2")).to_have_text("negative_stock")
    expect(page.locator("#right h2")).to_have_text("conditional_update")
    expect(page.locator("#code-title")).to_have_text("negative_stock")


def test_refused_buyers_are_not_drawn_as_if_they_had_bought(raced, open_lab):
    """A buyer who was refused has neither a decision nor a write in its lane; the evidence is never empty."""
    page = open_lab(f"/lab/?all={raced}")
    right = page.locator("#right")
    expect(right.locator(".evidence")).to_have_text("1 buyer got a mug, 1 was refused: sold out.")
    lanes = right.locator(".swim g[clip-path] > g")
    assert lanes.nth(0).locator(".piece.gap, .piece.write, .point.write").count() > 0
    assert lanes.nth(1).locator(".piece.gap, .piece.write, .point.write").count() == 0
    expect(right.locator(".swim .refused .sign")).to_have_text("–")


def boxes_of(elements):
    """Where elements are, all at one moment: the page may redraw them between two looks."""
    return elements.evaluate_all("found => found.map((one) => one.getBoundingClientRect().toJSON())")


def test_all_strategies_are_one_plot(open_lab):
    """Each recorded strategy is a dot with its name; by keyboard it shows its code; no labels overlap."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    dots = page.locator(".dot")
    expect(dots.nth(20)).to_be_visible()  # they come with the recorded races
    expect(page.locator("#matrix")).to_be_hidden()
    boxes = boxes_of(dots.locator("text"))
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            apart = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert apart or abs(one["y"] - other["y"]) >= 12
        assert one["x"] >= 0
        assert one["x"] + one["width"] <= 1280
    expect(page.locator('.dot[tabindex="0"]')).to_have_count(1)  # one stop of the Tab key; arrows go on
    page.locator('.dot[tabindex="0"]').focus()
    page.keyboard.press("End")
    last = page.evaluate("document.activeElement.dataset.dot")
    page.keyboard.press("ArrowLeft")
    before = page.evaluate("document.activeElement.dataset.dot")
    assert before != last
    page.keyboard.press("Enter")
    expect(page.locator("#code-title")).to_have_text(before)
    expect(page.locator('.dot[tabindex="0"]')).to_have_attribute("data-dot", before)


@pytest.mark.parametrize("width", [360, 768])
def test_the_plots_axis_has_room_for_its_labels(open_lab, width):
    """No two labels of the axis touch, also on a phone."""
    page = open_lab("/lab/", viewport={"width": width, "height": 800})
    expect(page.locator(".dots .tick").first).to_be_visible()
    boxes = boxes_of(page.locator(".dots .tick"))
    assert len(boxes) > 2
    assert all(one["x"] + one["width"] < other["x"] for one, other in itertools.pairwise(boxes))


def test_a_table_that_is_cut_off_fades_out(open_lab):
    """On a phone the right edge of the table is pale until it is scrolled to."""
    page = open_lab("/lab/", viewport={"width": 360, "height": 800})
    page.locator("summary", has_text="The figures as a table").click()
    fade = "getComputedStyle(document.querySelector('.figures-table .scroll')).getPropertyValue('--fade')"
    until(lambda: page.evaluate(f"parseFloat({fade})") > 20, "the edge fades")
    page.locator(".figures-table .scroll").evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    until(lambda: page.evaluate(f"parseFloat({fade})") < 1, "nothing fades")


def test_the_table_fits_its_page(open_lab):
    """At 1280 px no column of the table is cut off."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    page.locator("summary", has_text="The figures as a table").click()
    box = page.locator("#matrix").bounding_box()
    assert box["x"] + box["width"] <= page.locator(".figures-table .scroll").bounding_box()["width"] + 20


PROJECTOR = {"width": 1280, "height": 720}


def slide(page):
    """The title of the slide that is shown."""
    return page.locator("#slide-title")


def test_a_lecture_is_led_by_space_and_arrows_alone(open_page):
    """Question, reveal, why, fix, price: each fits 720p, space plays and pauses, and no race is started."""
    page = open_page("/lab/?present=1", viewport=PROJECTOR)
    assert page.evaluate("getComputedStyle(document.documentElement).fontSize") == "28px"
    expect(slide(page)).to_have_text("1/6 · The question")
    expect(page.locator("#prediction")).to_contain_text("40 people, 10 mugs. How many are sold?")
    expect(page.locator("#prediction")).to_be_in_viewport(ratio=1)
    expect(page.locator("#panels")).to_be_hidden()
    assert violations(page) == []
    page.keyboard.press(" ")
    expect(slide(page)).to_have_text("2/6 · What happened")
    expect(page.locator("#play")).to_have_text("❚❚")
    page.keyboard.press(" ")
    expect(page.locator("#play")).to_have_text("▶")
    for _ in range(60):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#left .mug.beyond.taken")).to_have_count(30)
    shot(page, "lecture-2")
    expect(page.locator("#left .mug").last).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollHeight") <= PROJECTOR["height"]
    page.keyboard.press("ArrowRight")
    expect(slide(page)).to_have_text("3/6 · Why")
    expect(page.locator("#guessed")).to_contain_text("buyers have read 10 by here")
    expect(page.locator("#left .swim svg")).to_be_in_viewport(ratio=1)
    expect(page.locator("#clock")).not_to_have_text("0 ms")
    shot(page, "lecture-3")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#right .mug").last).to_be_in_viewport(ratio=1)
    expect(page.locator("#guessed")).to_be_hidden()  # what it said was about the slide before
    shot(page, "lecture-4")
    page.keyboard.press("ArrowRight")
    for side in ("#left", "#right"):
        expect(page.locator(f"{side} .swim svg")).to_be_in_viewport(ratio=1)
    shot(page, "lecture-5")
    page.keyboard.press("ArrowLeft")
    expect(slide(page)).to_have_text("4/6 · The fix")
    assert not LabRun.objects.filter(kind="race").exists()


def test_the_space_bar_presses_no_button_in_a_lecture(open_lab):
    """Also where a button that starts a race has the focus: it is for play and pause; Enter presses."""
    page = open_lab("/lab/?present=1", viewport=PROJECTOR)
    page.keyboard.press("ArrowRight")
    expect(slide(page)).to_have_text("2/6 · What happened")
    page.locator("#play").focus()
    page.evaluate("document.getElementById('broken').style.display = 'block'")
    page.locator("#notes-button").focus()
    page.keyboard.press(" ")
    expect(page.locator("#notes")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#notes")).to_be_visible()
    assert not LabRun.objects.filter(kind="race").exists()


WHOLE = """(drawing) => {
  const frame = drawing.getBoundingClientRect();
  return [...drawing.children].map((one) => one.getBoundingClientRect())
    .every((one) => one.right <= frame.right + 1 && one.bottom <= frame.bottom + 1);
}"""


def test_the_audience_votes_by_phone(open_lab):
    """Three phones vote, one changes its mind: the bars follow, and everything fits the projector."""
    page = open_lab("/lab/?present=1", viewport=PROJECTOR)
    link = page.locator("#prediction .qr a")
    expect(link).to_contain_text("/lab/votes/")
    expect(page.locator("#prediction .qr svg")).to_be_in_viewport(ratio=1)
    address = link.get_attribute("href")
    phones = [open_lab(address, viewport=PHONE, java_script_enabled=False) for _ in range(3)]
    for phone, guess in zip(phones, ("10", "40", "40"), strict=True):
        phone.get_by_role("button", name=guess, exact=True).click()
        expect(phone.get_by_role("status")).to_have_text("Your vote counts. You can still change it.")
    bars = page.locator("#prediction .bar")
    expect(bars).to_have_text(["1", "0", "2"])
    phones[0].get_by_role("button", name="11 – 39").click()
    expect(phones[0].locator("[aria-pressed=true]")).to_have_text("11 – 39")
    expect(bars).to_have_text(["0", "1", "2"])
    expect(page.locator("#prediction .bar.none")).to_have_text(["0"])  # no vote has no bar
    widths = [box["width"] for box in boxes_of(bars)]
    assert widths[0] < widths[1] < widths[2]
    shot(page, "lecture-votes")
    assert page.evaluate("document.documentElement.scrollHeight") <= PROJECTOR["height"]
    in_both_schemes(page, no_violations(page))
    page.set_viewport_size(PHONE)
    assert page.locator("#prediction .qr svg").evaluate(WHOLE)
    phone = open_lab(address, viewport=PHONE)
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    in_both_schemes(phone, no_violations(phone))
    shot(phone, "vote")


def test_a_lecture_runs_races_live_and_has_notes(open_lab):
    """1 and 2 run one's own race on the slide that is about it; the notes are those of the slide."""
    page = open_lab("/lab/?present=1&buyers=8&stock=2&processes=2", viewport=PROJECTOR)
    page.keyboard.press("n")
    expect(page.locator("#notes svg")).to_have_count(1)
    expect(page.locator('#notes [data-slide="ask"]')).to_be_visible()
    page.keyboard.press("1")
    expect(slide(page)).to_have_text("2/6 · What happened")
    expect(page.locator('#notes [data-slide="ask"]')).to_be_hidden()
    expect(page.locator('#notes [data-slide="broken"]')).to_be_visible()
    expect(page.locator("#left .headline")).to_contain_text(OVERSOLD, timeout=SOON)
    race_ends(page)
    page.keyboard.press("2")
    expect(slide(page)).to_have_text("4/6 · The fix")
    expect(page.locator("#right .headline")).to_contain_text("2 mugs sold", timeout=SOON)
    race_ends(page)
    clock = page.locator("#clock")
    end = clock.inner_text()
    page.keyboard.press("ArrowUp")
    expect(clock).not_to_have_text(end)


def test_the_recording_ends_when_ones_own_race_begins(open_lab):
    """What is shown while it starts doesn't look like its result."""
    page = open_lab("/lab/")
    expect(page.locator("#left .headline")).to_have_count(1)
    page.route("**/lab/races/", lambda _: None)  # it stays on its way: none needs to be run
    page.get_by_role("button", name="Break it").click()
    expect(page.locator("#left")).to_have_text("Your own race is on its way …")
    expect(page.locator("#right .headline")).to_have_count(0)


def test_a_race_that_is_gone_says_so(open_lab, complaints):
    """A link to a race that is no longer kept says what to do instead."""
    page = open_lab("/lab/?left=000000000000&buyers=7")
    expect(page.locator("#message")).to_contain_text("no longer kept")
    expect(page.get_by_role("spinbutton", name="Buyers")).to_have_value("7")
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
        expect(page.locator("#message.bad")).to_have_count(1)
        race_ends(page)
    assert [(each["fault"], each["strategy"]) for each in asked] == [
        *((kind, name) for kind in ("lease", "pause", "redis") for name in ("expired_lease", "fenced_lock")),
        ("none", "all"),
    ]
    page.locator("#controls select").select_option("redis_lock")
    expect(page.locator("#idea")).to_contain_text("watchdog")
    expect(page.locator("#broken small")).to_have_text("local_lock@processes")
    page.get_by_role("spinbutton", name="Buyers").fill("9")
    page.get_by_role("spinbutton", name="Buyers").press("Enter")
    expect(page.locator("#message")).to_have_text(f"refused {len(buttons) + 1}")
    assert (asked[-1]["strategy"], asked[-1]["buyers"]) == ("redis_lock", "9")
    page.locator("summary", has_text="The figures as a table").click()
    page.locator('#matrix [data-show="segmented"]').click()
    expect(page.locator("#code-title")).to_have_text("segmented")
    assert all("409" in complaint for complaint in complaints)
    complaints.clear()


def test_nonsense_in_the_form_is_explained(open_lab, complaints):
    """The server's own words are shown in red; the field is marked and has the focus until corrected."""
    page = open_lab()
    field = page.get_by_role("spinbutton", name="Buyers")
    field.fill("61")
    page.get_by_role("button", name="▶ Race", exact=True).click()
    expect(page.locator("#message")).to_contain_text("Buyers 61")
    red = page.evaluate(
        "getComputedStyle(document.querySelector('#message')).color"
        " === getComputedStyle(document.querySelector('.bad-text')).color"
    )
    assert red
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_be_focused()
    assert violations(page) == []
    assert "400" in complaints.pop()


def may_press(page, who):
    """Wait until a buyer is at a step."""
    expect(page.locator(f'[data-next="{who}"]')).to_have_attribute("aria-disabled", "false", timeout=SOON)


def arrives(page, who, text):
    """Wait until a buyer's last step is this one."""
    expect(page.locator(f'[data-lane="{who}"] .marks li').last).to_contain_text(text, timeout=SOON)


def test_the_last_piece_is_sold_twice(open_lab):
    """A and B by button and by key: both decide, both write, and the page says that it is done."""
    page = open_lab()
    page.get_by_role("button", name="Step by step").click()
    page.get_by_role("button", name="Begin", exact=True).click()
    expect(page.locator("#goal")).to_have_text("Neither has started. Press A or B.", timeout=SOON)
    page.get_by_role("button", name="A · next").click()
    arrives(page, "A", "has read the stock: 1")
    page.get_by_role("button", name="B · next").click()
    arrives(page, "B", "has read the stock: 1")
    for who in ("A", "B"):
        expect(page.locator(f'[data-lane="{who}"] .lit .who')).to_have_text(f"▶{who}")
    for who in ("A", "B"):
        for step in ("has decided", "has written the new stock", "has written the order", "has committed"):
            may_press(page, who)
            page.keyboard.press(who.lower())
            arrives(page, who, step)
        may_press(page, who)
        page.keyboard.press(who.lower())
        expect(page.locator(f'[data-lane="{who}"] .now')).to_contain_text("✓ bought it", timeout=SOON)
    expect(page.locator("#goal")).to_contain_text("You did it")
    expect(page.locator("#totals")).to_have_text("sold 2 · in stock 1 · page says 0")
    expect(page.locator("#tile-stock")).to_have_text("0")
    expect(page.locator("#solved")).to_have_text("1 of 20 puzzles solved")
    page.get_by_role("button", name="Now try row_lock").click()
    expect(page.locator("#step-strategy")).to_have_text("row_lock")
    expect(page.locator("#goal")).to_have_text("Neither has started. Press A or B.", timeout=SOON)


def test_a_step_can_be_taken_back(open_lab):
    """Undo leads a new session to where the old one was before the last step."""
    page = open_lab()
    page.get_by_role("button", name="1 · Sell the last piece twice.").click()
    for step in ("has read the stock: 1", "has decided"):
        may_press(page, "A")
        page.keyboard.press("a")
        arrives(page, "A", step)
    may_press(page, "A")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator('[data-lane="A"] .marks li')).to_have_count(1, timeout=SOON)
    arrives(page, "A", "has read the stock: 1")
    may_press(page, "A")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator('[data-lane="A"] .marks li')).to_have_count(0, timeout=SOON)


class FakeSessions:
    """Answers for the lab: first `old`, then `new`, whose buyer A goes one step further with each press.

    `new` is made only once the page has heard what `old` says after its stop.
    """

    STEPS: tuple[list[str | int | None], ...] = (["read", 1, 36], ["decided", None, 37])

    def __init__(self, page):
        self.said, self.asked = [], []
        page.route("**/lab/steps/", self.start)
        page.route("**/lab/runs/*/say/", self.hear)
        page.route(re.compile(r"/lab/runs/\w+/\?after="), self.tell)

    def start(self, route):
        """Begin `old` at once; keep the second request."""
        self.asked.append(route)
        if len(self.asked) == 1:
            route.fulfill(status=202, json={"id": "old"})

    def hear(self, route):
        """Note what is said to which."""
        self.said.append((route.request.url.split("/")[-3], route.request.post_data.removeprefix("say=")))
        route.fulfill(status=202, json={})

    def tell(self, route):
        """Say where A is, once after each word."""
        ((run, after),) = re.findall(r"/runs/(\w+)/\?after=(\d+)", route.request.url)
        number = 1 + sum(each == run for each, _ in self.said)
        news = [{"id": number, **self.state(run)}] if int(after) < number else []
        if ("old", "stop") in self.said and run == "old" and not news and len(self.asked) == 2:
            self.asked.append(self.asked[1].fulfill(status=202, json={"id": "new"}))
        route.fulfill(json={"id": run, "kind": "steps", "parameters": {}, "events": news})

    def state(self, run):
        """Return a session's state: A has made its steps, B has not begun."""
        marks = list(self.STEPS[: self.said.count((run, "A"))])
        locks: dict[str, Any] = {"has": [], "wants": [], "victim": None}
        lane = {"state": "parked", "answer": "", "problem": "", "blocked": None, **locks}
        lanes = {"A": {**lane, "marks": marks}, "B": {**lane, "marks": []}}
        products = [{"sku": "mug", "left": 1, "lock": None}]
        return {"type": "steps", "initial": 1, "left": 1, "sold": 0, "products": products, "lanes": lanes}


def test_undo_is_not_taken_by_the_session_before(open_lab):
    """Late events of the old session take none of the steps that the new one repeats."""
    page = open_lab()
    sessions = FakeSessions(page)
    page.get_by_role("button", name="1 · Sell the last piece twice.").click()
    for step in ("has read the stock: 1", "has decided"):
        may_press(page, "A")
        page.keyboard.press("a")
        arrives(page, "A", step)
    may_press(page, "A")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator('[data-lane="A"] .marks li')).to_have_count(1)
    arrives(page, "A", "has read the stock: 1")
    assert sessions.said == [("old", "A"), ("old", "A"), ("old", "stop"), ("new", "A")]


class BusySessions(FakeSessions):
    """Buyer A gets the answer that the stock is busy."""

    STEPS = (["busy", None, 37], ["decided", None, 37])

    def state(self, run):
        """Add the server's own words for what became of A."""
        reported = super().state(run)
        reported["lanes"]["A"]["problem"] = "canceling statement due to lock timeout"
        return reported


def test_a_buyer_who_waited_too_long_is_answered_in_plain_words(open_lab):
    """The page says what to do next, not what the database said."""
    page = open_lab()
    BusySessions(page)
    page.get_by_role("button", name="1 · Sell the last piece twice.").click()
    may_press(page, "A")
    page.keyboard.press("a")
    arrives(page, "A", "was refused: busy, try again")
    expect(page.locator('[data-lane="A"] .now')).to_have_text(
        "waited too long for the other: press again to try again"
    )


@pytest.mark.screenshots
def test_a_sound_strategy_says_for_whom_a_buyer_waits(open_lab):
    """With the row locked B waits for A, and the page says so; a session can be begun again."""
    page = open_lab(f"{SMALL}&strategy=row_lock", viewport={"width": 1280, "height": 900})
    page.get_by_role("button", name="Begin", exact=True).click()
    for step in ("waits for a lock", "has the lock", "has read the stock: 1"):
        may_press(page, "A")
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
    page.get_by_role("button", name="Begin again", exact=True).click()
    expect(page.locator("#goal")).to_have_text("Neither has started. Press A or B.", timeout=SOON)


def closes_the_ring(page, puzzle):
    """Lead both buyers to their second lock, which the other one has; return the victim's lane."""
    page.get_by_role("button", name=puzzle).click()
    for step in ("waits for a lock", "has the lock", "has read the stock", "has decided", "waits for a lock"):
        for who in ("A", "B"):
            may_press(page, who)
            page.locator(f'[data-next="{who}"]').click()
            arrives(page, who, step)
    for who in ("A", "B"):
        page.locator(f'[data-next="{who}"]').click()
    return page.locator(".lane").filter(has_text="was the victim of a deadlock")


@pytest.mark.screenshots
@pytest.mark.pictures
def test_the_strip_of_a_deadlock(open_lab):
    """Four moments of two real buyers: one lock each, one waits, the ring is closed, a victim."""
    page = open_lab("/lab/?puzzle=6", viewport={"width": 1280, "height": 900})

    def lead(who, *steps):
        for step in steps:
            may_press(page, who)
            page.locator(f'[data-next="{who}"]').click()
            arrives(page, who, step)

    for who in ("A", "B"):
        lead(who, "waits for a lock", "has the lock", "has read the stock", "has decided")
    frame(page, "#ring", "1 · A has the pen, B has the mug")
    lead("A", "waits for a lock")
    frame(page, "#ring", "2 · A asks for the mug")
    lead("B", "waits for a lock")
    frame(page, "#ring", "3 · B asks for the pen: the ring is closed")
    for who in ("A", "B"):
        page.locator(f'[data-next="{who}"]').click()
    expect(page.locator("#ring .victim")).to_be_visible(timeout=SOON)
    frame(page, "#ring", "4 · one of them is made to give up")
    in_both_schemes(page, picture(page, "strip-deadlock", height=strip(page)))


def ring_is_drawn(page, victim, lock):
    """Look at the ring and its verdict: two locks with their names, four arrows, one buyer struck out."""
    lane = victim.get_attribute("data-lane", timeout=SOON)
    other = "B" if lane == "A" else "A"
    ring = page.locator("#ring")
    expect(ring.locator("svg")).to_have_class("closed")
    expect(ring.locator(".victim text").first).to_have_text(lane)
    assert ring.locator(".edge").count() == 4
    label = ring.locator("svg").get_attribute("aria-label")
    for who, had, wanted in (("A", "pen", "mug"), ("B", "mug", "pen")):
        assert f"{who} has the lock of the {had}" in label
        assert f"{who} waits for the lock of the {wanted}" in label
    names = ring.locator(".lock .name").all_text_contents()
    assert len(set(names)) == 2
    assert all(name.startswith(lock) for name in names)
    expect(page.locator("#tile-others strong")).to_have_text("1")
    verdict = page.locator("#goal")
    expect(verdict).to_contain_text(f"You did it: {lane} had the {'pen' if lane == 'A' else 'mug'}")
    expect(verdict).to_contain_text(f"so that {other} can go on")
    assert violations(page) == []
    if SHOTS:
        in_both_schemes(
            page, lambda scheme: shot(page, f"ring-{lock.strip(' :').replace(':', '-')}-{scheme}")
        )


def test_a_deadlock_is_drawn_as_a_ring_with_its_victim(open_lab):
    """The locks of rows, a verdict, and the way out of it."""
    page = open_lab(viewport={"width": 1280, "height": 900})
    ring_is_drawn(page, closes_the_ring(page, "Make both wait for each other."), "row ")
    page.get_by_role("button", name="Now try ordered_locks").click()
    expect(page.locator("#step-strategy")).to_have_text("ordered_locks")
    expect(page.locator("#goal")).to_have_text("Neither has started. Press A or B.", timeout=SOON)


def test_the_deadlock_of_distributed_locks_names_its_circle(open_lab):
    """The sixth puzzle: its ring, LockDeadlock names the circle, the audit has it, the statistics do not."""
    page = open_lab(viewport={"width": 1280, "height": 900})
    victim = closes_the_ring(page, "Do it where no database sees it.")
    ring_is_drawn(page, victim, "lab:sku:")
    expect(page.get_by_role("button", name="Now try ordered_locks")).to_be_visible()
    may_press(page, victim.get_attribute("data-lane", timeout=SOON))
    victim.locator(".next").click()
    expect(victim.locator(".now")).to_contain_text("and waits for 'lab:sku:")
    expect(page.locator("#solved")).to_have_text("1 of 20 puzzles solved")
    page.goto("/problems/")  # the session ends, and with it its process, which writes what is left
    end_lab_runs()
    assert [event.action for event in LockEvent.objects.all()] == ["deadlock"]
    assert not any("deadlock" in minute for minute in last_hour(locks["default"]))


def test_a_phone_shows_it_all(finished, open_lab):
    """Nothing scrolls sideways, with a race on the page."""
    page = open_lab(f"/lab/?left={finished}", viewport=PHONE)
    expect(page.locator("#left .headline")).to_be_visible()

    def look(scheme):
        assert scroll_width(page) <= PHONE["width"], scheme

    in_both_schemes(page, look)


def test_the_lab_speaks_chinese(finished, open_lab):
    """Page, verdict and evidence come in the visitor's language."""
    page = open_lab(f"/lab/?left={finished}", locale="zh-CN")
    expect(page.locator("h1")).to_have_text("超卖实验室")
    expect(page.locator("#left .headline")).to_have_text("✗ 1 个人为不存在的杯子付了钱")
    expect(page.locator("#left .sum")).to_contain_text("对不上账")
    expect(page.locator("h2", has_text="让修复失效")).to_be_visible()
    expect(page.locator("#left .evidence")).to_contain_text("买家 1 和 2")


def test_the_start_page_shows_the_race_and_leads_to_the_lab(open_page):
    """The recorded race is the hero, with one button; three cards are below it."""
    page = open_page("/", reduced_motion="reduce", viewport={"width": 1280, "height": 900})
    hero = page.locator("#hero")
    expect(hero.locator(".headline")).to_have_text("✗ 30 people paid for a mug that doesn't exist")
    expect(hero.locator(".mug.beyond.taken")).to_have_count(30)
    expect(page.locator(".card")).to_have_count(3)
    in_both_schemes(page, no_violations(page))
    page.get_by_role("link", name="Run it yourself").click()
    page.wait_for_url(re.compile("/lab/"))
    expect(page.locator("#left .headline")).to_be_visible()
    assert violations(page) == []


def test_the_lab_without_javascript_still_tells_the_lesson(open_page):
    """Without JavaScript the animated picture is shown, and no button that would do nothing."""
    page = open_page("/lab/", java_script_enabled=False)
    expect(page.locator(".lesson")).to_be_visible()
    expect(page.locator("#lab")).to_be_hidden()


# Break the fix: the card and the plot tell the same.

MOMENT = re.compile(r"(.+) \((\d+) ms\)")


def stood_still(page, strategy, panel):
    """Have a holder stand still; return what the card says, in ms, and the plot's flags by text."""
    page.locator(f'[data-fault="pause"][data-strategy="{strategy}"]').click()
    race_ends(page)
    expect(page.locator(f"{panel} h2")).to_have_text(strategy)
    card = page.locator(".fault", has_text="A holder stands still").locator("p").first.inner_text()
    pause, lease = (float(seconds) * 1000 for seconds in re.findall(r"(\d\.\d) s", card))
    shown = map(MOMENT.fullmatch, page.locator(f"{panel} .moments li").all_inner_texts())
    flags = {found[1]: found[2] for found in shown if found}
    return pause, lease, {text: int(ms) for text, ms in flags.items()}


def moment_of(flags, pattern):
    """When the flag with this text is, in ms."""
    (found,) = [ms for text, ms in flags.items() if re.fullmatch(pattern, text)]
    return found


def test_the_fence_is_seen_refusing_a_holder_that_returns(open_lab):
    """Its lease ends as the card says, others sell with later tokens, the late write looks refused."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    pause, lease, flags = stood_still(page, "fenced_lock", "#right")
    stops = moment_of(flags, "buyer 20 stands still here, and its lease runs on")
    ends = moment_of(flags, "the lease of buyer 20 ends")
    next_one = moment_of(flags, r"buyer \d+ gets token \d")
    refused = moment_of(flags, "buyer 20 returns with token 1: REFUSED")
    assert ends - stops == pytest.approx(lease, abs=2)
    assert stops + lease - 2 <= next_one < refused
    assert refused - stops >= pause
    panel = page.locator("#right")
    assert panel.locator(".swim .piece.expired").count() == 1
    assert panel.locator(".swim .point.refused title").all_text_contents() == ["refused by the database"]
    sold_at = {}
    for text in ("stands still", "returns"):  # it comes first, and returns when the others have their answers
        panel.locator(".moments button", has_text=text).click()
        sold_at[text] = int(panel.locator(".sold").first.inner_text().split()[-1])
    assert sold_at == {"stands still": 0, "returns": 10}
    expect(panel.locator(".headline")).to_contain_text("10 mugs sold")
    shot(page, "fencing")


def test_without_a_fence_the_late_write_is_taken(open_lab):
    """The same pause sells one mug too many, after the lease has ended; nothing looks refused."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    pause, lease, flags = stood_still(page, "expired_lease", "#left")
    ends = moment_of(flags, "the lease of buyer 20 ends")
    assert ends <= moment_of(flags, r"buyer \d+ gets token \d") + 1
    assert moment_of(flags, "mug number 11 of 10 is sold") >= ends - lease + pause
    assert page.locator("#left .swim .point.refused").count() == 0
    expect(page.locator("#left .headline")).to_have_text("✗ 1 person paid for a mug that doesn't exist")


def test_a_write_that_was_rolled_back_looks_refused(open_lab):
    """In the race of short leases as many writes are drawn as were committed."""
    page = open_lab("/lab/", viewport={"width": 1280, "height": 900})
    page.locator('[data-fault="lease"][data-strategy="fenced_lock"]').click()
    race_ends(page)
    sold = int(page.locator("#right .sold").first.inner_text().split()[-1])
    assert page.locator("#right .swim .point.write").count() == sold
    assert page.locator("#right .swim .point.refused").count() > 0


def test_a_puzzle_has_a_link_of_its_own(open_lab):
    """The number in the address begins that puzzle; one that there isn't begins none."""
    page = open_lab("/lab/?puzzle=3")
    expect(page.locator("#step-strategy")).to_have_text("row_lock")
    expect(page.locator("#goal")).to_have_text("Neither has started. Press A or B.", timeout=SOON)
    page = open_lab("/lab/?puzzle=99")
    expect(page.locator("#stage-of-steps")).to_be_hidden()
