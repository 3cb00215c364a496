"""One's own strategy in a real browser: the language, the search, what is played, the puzzles."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.looks import SHOTS, frame, in_both_schemes, no_violations, picture, strip, violations

EVERY_PUZZLE = """async () => {
  const base = new URL(document.querySelector('script[type=module]').src);
  const { PUZZLES, fixed } = await import(new URL('puzzles.js', base));
  const { parse, searchAll } = await import(new URL('model.js', base));
  const search = async (text) => {
    const program = parse(text);
    return program.problems.length ? program.problems : await searchAll(program);
  };
  const found = [];
  for (const one of PUZZLES()) {
    const mended = one.fix ? await search(fixed(one)) : [];
    found.push({ ...one, broken: await search(one.program), mended });
  }
  return found;
}"""
SEARCH = """async (text) => {
  const base = new URL(document.querySelector('script[type=module]').src);
  const { parse, searchAll, run } = await import(new URL('model.js', base));
  const program = parse(text);
  if (program.problems.length) return { problems: program.problems };
  const found = await searchAll(program);
  const last = found.at(-1);
  const states = last.shortest ? run(program, last.shortest, last.buyers) : [];
  return { found, rows: states.at(-1)?.rows };
}"""

LEASE = "lock mug for 4 steps\n{}read stock\ncheck stock > 0\nwrite stock = stock - 1\nsell\n{}unlock mug"
BEGUN = "begin {}\nread stock\ncheck stock > 0\nwrite stock = stock - 1\nsell\ncommit"
BROKEN = {
    "naive": "read stock\ncheck stock > 0\nwrite stock = stock - 1\nsell",
    "read committed": BEGUN.format("read committed"),
    "unlocked too early": "lock mug\n" + BEGUN.format("").replace("commit", "unlock mug\ncommit"),
    "a lease that ends": LEASE.format("", ""),
    "two locks": "A:\nlock a\nread stock\ncheck stock > 0\nsell\nB:\nlock b\nread stock\nsell",
}
SOUND = {
    "conditional update": "update stock = stock - 1 if stock > 0\nsell",
    "compare and swap": (
        "read stock as seen\ncheck seen > 0\nupdate stock = seen - 1 if stock = seen else again\nsell"
    ),
    "row lock": "begin\nread stock for update\ncheck stock > 0\nwrite stock = stock - 1\nsell\ncommit",
    "repeatable read": BEGUN.format("repeatable read"),
    "serializable": BEGUN.format("serializable"),
    "lock": "lock mug\nread stock\ncheck stock > 0\nwrite stock = stock - 1\nsell\nunlock mug",
    "fenced lease": LEASE.format("begin\nfence mug\n", "commit\n"),
}


@pytest.fixture
def lab(open_page):
    """Open the lab; what is played is at its end at once."""
    return lambda address="/lab/", **options: open_page(address, reduced_motion="reduce", **options)


def test_every_puzzle_can_be_solved_and_every_fix_holds(lab):
    """The search reaches what each puzzle asks for; with the fixed lines no schedule does."""
    puzzles = lab().evaluate(EVERY_PUZZLE)
    assert len(puzzles) == 20
    for puzzle in puzzles:
        assert puzzle["broken"][-1].get("shortest"), puzzle["text"]
        assert all(one["shortest"] is None and not one["cut"] for one in puzzle["mended"]), puzzle["text"]
        assert puzzle["hint"]
        assert puzzle["incident"]
    assert sum(1 for puzzle in puzzles if puzzle["mended"]) == 17


def test_the_search_finds_what_is_broken_and_nothing_else(lab):
    """Broken ones are shown with a schedule that oversells; of sound ones all were searched."""
    page = lab()
    for name, text in BROKEN.items():
        answer = page.evaluate(SEARCH, f"stock = 1\n{text}")
        assert answer["rows"]["sold"] == 2, name
        assert answer["found"][-1]["bad"] > 0, name
    for name, text in SOUND.items():
        found = page.evaluate(SEARCH, f"stock = 1\n{text}")["found"]
        assert [one["buyers"] for one in found] == [2, 3], name
        assert all(one["bad"] == 0 and one["schedules"] > 1 and not one["cut"] for one in found), name


def test_the_number_of_schedules_is_the_number_of_orders(lab):
    """Two buyers of four steps that never wait nor leave have 8 over 4 = 70 schedules, three have 34,650."""
    steps = "stock = 9\nread stock\nread stock\nread stock\nsell"
    two, three = lab().evaluate(SEARCH, steps)["found"]
    assert (two["schedules"], three["schedules"]) == (70, 34_650)


WRONG = [
    ("stock = 1\nlok mug", 2, "did you mean “lock”?"),
    ("stock = 1\nlock", 2, "lock mug for 4 steps"),
    ("stock = 1\ncheck seen > 0", 2, "add read seen above"),
    ("stock = 1\nread mug", 2, "add the line mug = 1 at the top"),
    ("stock = 1\nread stock\ncheck stock >", 3, "Something is missing"),
    ("stock = 1\nread stock\ncheck stock > alert(1)", 3, "can't be read"),
    ("sold = 1\nsell", 1, "choose another name"),
    ("read = 1\nsell", 1, "add the line stock = 1"),
    ("stock = 1", 1, "There is no step yet"),
    ("stock = 1\nsell\nA:\nsell", 2, "below a heading"),
]
"""Texts that can't be run, the line of the first error, and a part of what is said of it."""


def test_an_error_names_its_line_and_its_cure(lab):
    """A text that can't be run is refused with the line and what to write instead."""
    page = lab()
    for text, line, cure in WRONG:
        problems = page.evaluate(SEARCH, text)["problems"]
        assert problems[0]["line"] == line, text
        assert cure in problems[0]["text"], text


def test_a_strategy_is_written_searched_and_played(lab):
    """The naive one is shown selling twice; after its repair no schedule does; an error leads to its line."""
    page = lab(viewport={"width": 1280, "height": 900})
    verdict, area = page.locator("#own-verdict"), page.get_by_label("Your strategy")
    page.get_by_role("button", name="naive, broken").click()
    page.get_by_role("button", name="Search all schedules").click()
    expect(verdict).to_contain_text("Found: after 8 steps “sold > 1” is true.")
    expect(verdict).to_contain_text("So end 60 of the 66 schedules of 2.")
    expect(page.locator("#own-rows")).to_have_text("sold = 2 · stock = 0")
    expect(page.locator("#own-panel .point.write")).to_have_count(2)
    expect(page.locator("#own-panel .stale")).to_have_count(1)
    assert violations(page) == []
    area.fill(
        area.input_value().replace(
            "write stock = seen - 1", "update stock = stock - 1 if stock = seen else again"
        )
    )
    page.get_by_role("button", name="Search all schedules").click()
    expect(verdict).to_contain_text("No schedule of two or three buyers does it.")
    area.fill("stock = 1\nread stock\nchek stock > 0")
    page.get_by_role("button", name="Search all schedules").click()
    expect(page.locator("#own-problems")).to_have_text("Line 3: Unknown step “chek”: did you mean “check”?")
    expect(area).to_be_focused()
    assert (
        area.evaluate("area => area.value.slice(area.selectionStart, area.selectionEnd)") == "chek stock > 0"
    )
    expect(page.locator("#own-player")).to_be_hidden()
    in_both_schemes(page, no_violations(page))


def test_a_puzzle_of_the_model_is_solved_by_hand(lab):
    """Its link opens it; A and B are led to the write skew; it counts as solved, and its fix holds."""
    page = lab("/lab/?puzzle=8", viewport={"width": 1280, "height": 900})
    expect(page.locator("#puzzle h3")).to_contain_text("8 · Write skew")
    expect(page.locator("#puzzle a")).to_have_attribute("href", re.compile("jepsen"))
    expect(page.locator("#own-panel")).to_be_hidden()  # no step is taken yet
    for who in "AAAABBBB":
        page.get_by_role("button", name=f"{who} · next").click()
    expect(page.locator("#own-panel .tick")).to_have_text(["0 steps", "4 steps", "8 steps"])
    page.get_by_role("button", name="A · next").click()
    page.get_by_role("button", name="A · next").click()
    page.locator("#own-undo").click()
    for who in "ABB":
        page.get_by_role("button", name=f"{who} · next").click()
    expect(page.locator("#own-verdict")).to_contain_text("You did it: “alice + bob = 0” is true.")
    expect(page.locator("#solved")).to_have_text("1 of 20 puzzles solved")
    page.get_by_role("button", name="Search all schedules").click()
    page.get_by_role("button", name="Show the fix").click()
    expect(page.locator("#own-verdict")).to_contain_text("No schedule does it. Searched: 924.")


@pytest.mark.pictures
@pytest.mark.parametrize("locale", ["en", "zh-CN"])
def test_pictures_of_ones_own_strategy(lab, locale):
    """At each width, in both schemes and languages."""
    page = lab("/lab/?puzzle=13", locale=locale, viewport={"width": 1280, "height": 900})
    page.locator("#search").click()
    expect(page.locator("#own-panel svg")).to_be_visible()
    for width in (360, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            page.locator("#own").screenshot(path=f"{SHOTS}/own-{locale}-{scheme}-{width}.png")


@pytest.mark.screenshots
@pytest.mark.pictures
def test_the_strip_of_fencing(lab):
    """Four moments: a holder stands still, another gets the lock and sells, the first one is refused."""
    page = lab("/lab/?puzzle=12", viewport={"width": 1280, "height": 900})
    for presses, caption in (
        ("AA", "1 · A has the lock with token 1, and stands still"),
        ("BBBB", "2 · its lease has ended: B gets the lock with token 2"),
        ("BBBBBBB", "3 · B passes the fence, sells and commits"),
        ("A", "4 · A comes back with token 1: the database refuses it"),
    ):
        for who in presses:
            page.get_by_role("button", name=f"{who} · next").click()
        frame(page, "#own-lanes", caption)
    expect(page.locator("#own-verdict")).to_contain_text("You did it")
    in_both_schemes(page, picture(page, "strip-fencing", height=strip(page)))
