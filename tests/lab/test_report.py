"""The page: whole in one file, true to the figures."""

import json
import re
from datetime import UTC, datetime

import pytest

from orders.lab.race.audit import Sample
from orders.lab.race.explain import explain, headings, opening
from orders.lab.race.plan import Plan
from orders.lab.race.report import stock_over_time, summary, write_report
from orders.lab.strategies import STRATEGIES
from tests.lab.made_up import result

PLAN = Plan(buyers=4, stock=2, processes=2)


@pytest.fixture
def page(tmp_path, db):
    """The page of two races, as text."""
    samples = [Sample(1.0, 2, 0), Sample(1.01, 1, 2), Sample(1.02, 1, 4)]
    results = [result(samples=samples), result("row_lock", True, sold=2, left=0, evidence="")]
    path = tmp_path / "report.html"
    write_report(path, summary(PLAN, results, datetime(2026, 1, 2, tzinfo=UTC)), results)
    return path.read_text()


def test_the_page_needs_no_network(page):
    """Nothing is loaded from elsewhere: no script, style, image or font by address."""
    assert not re.findall(r"<script[^>]*\ssrc=|@import|url\(", page)
    assert re.findall(r'<link[^>]*href="([^"]*)"', page) == ["data:,"]
    assert "uPlot" in page


def test_the_page_carries_the_figures_and_the_lines(page):
    """The data that the plots draw is in the page, and equal to what was measured."""
    (text,) = re.findall(r'<script id="race" type="application/json">(.*?)</script>', page, re.S)
    data = json.loads(text)
    assert [v["oversold"] for v in data["variants"]] == [2, 0]
    assert data["stock"]["lost_update"] == {"ms": [0.0, 10.0, 20.0], "page": [2, 1, 1], "truth": [2, 0, -2]}


def test_the_page_escapes_what_it_gets(page):
    """An error message or a sentence can't become markup."""
    assert "both <b>read" not in page
    assert "&lt;b&gt;read" in page


def test_the_idle_time_around_a_race_is_cut_off():
    """A plot begins just before the first change and ends just after the last."""
    idle = [Sample(n / 100, 5, 0) for n in range(100)]
    after = [Sample(1.5 + n / 100, 4, 1) for n in range(100)]
    line = stock_over_time(5, [*idle, *after])
    assert line["page"] == [5, 5, 4, 4, 4, 4]
    assert line["truth"] == [5, 5, 4, 4, 4, 4]


def test_a_race_without_a_change_has_a_plot_all_the_same():
    """One point is enough for an untouched stock, and none for a race that wasn't sampled."""
    assert stock_over_time(3, [Sample(1.0, 3, 0), Sample(1.01, 3, 0)])["page"] == [3]
    assert stock_over_time(3, []) == {"ms": [], "page": [], "truth": []}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_explains_itself(name):
    """The docstring of each has the four headings, and its verdict opens with a sentence."""
    parts = headings(STRATEGIES[name])
    assert list(parts) == ["Idea", "Interleaving", "Verdict", "Cost"]
    assert len(opening(parts["Verdict"])) > 20


def test_an_explanation_ends_with_what_was_seen():
    """The docstring says why, the traces say what: the report has both, or names what is missing."""
    assert explain(result(), STRATEGIES["lost_update"]).endswith("Buyers 1 and 2 both <b>read</b> 2.")
    failed = result("row_lock", True, sold=1, left=1)
    assert explain(failed, STRATEGIES["row_lock"]).endswith("This race: 1 undersold.")
