"""The table in terminals of every width."""

from io import StringIO

import pytest

from orders.lab.race.plan import Plan
from orders.lab.race.table import make_console, print_results, word
from tests.lab.made_up import result

PLAN = Plan(buyers=200, stock=50, processes=4)
RESULTS = [
    result("lost_update", tries=2),
    result("local_lock@processes", strategy="local_lock", sold=200, initial=50, left=49),
    result("row_lock", True, sold=2, left=0, evidence=""),
    result("version_cas", True, sold=1, left=1, errors=1, problems=("Busy: [bold]why[/bold]",)),
]


def printed(monkeypatch, columns, **options):
    """The table on a terminal of this width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    out = StringIO()
    print_results(
        make_console(file=out, **{"no_color": False, "force_color": False} | options), PLAN, RESULTS
    )
    return out.getvalue()


@pytest.mark.parametrize("columns", [20, 40, 59, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(monkeypatch, columns):
    """Columns are left out rather than cut."""
    assert max(map(len, printed(monkeypatch, columns).splitlines())) <= columns


def test_who_could_not_take_part_is_named_with_the_reason(monkeypatch):
    """A strategy without its server is named below the table, never silently missing."""
    monkeypatch.setenv("COLUMNS", "80")
    out = StringIO()
    print_results(make_console(file=out, no_color=True, force_color=False), PLAN, RESULTS, {"etcd": "no one"})
    assert "etcd: not raced, no one" in out.getvalue()


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
def test_what_proves_the_point_is_always_there(monkeypatch, columns):
    """Sold, unaccounted and the verdict are whole in each terminal that is not a toy."""
    text = printed(monkeypatch, columns)
    for words in ("200 of 50", "unaccounted", "local_lock@processes", "shown, try 2", "NOT EXACT", "exact"):
        assert words in text


def test_a_wide_terminal_has_every_column(monkeypatch):
    """Nothing is left out where there is room."""
    heading = next(line for line in printed(monkeypatch, 200).splitlines() if "strategy" in line)
    assert len(heading.split("  ")) > 10
    for words in ("oversold", "refused", "retries", "errors", "p50 ms", "p95 ms", "p99 ms", "orders/s"):
        assert words in heading


def test_a_message_is_not_read_as_markup(monkeypatch):
    """Square brackets in an error are shown as they are."""
    assert "[bold]why[/bold]" in printed(monkeypatch, 200)


def test_color_is_used_only_where_it_is_seen(monkeypatch):
    """A pipe gets plain text, a forced terminal gets color, and NO_COLOR takes it away again."""
    assert "\x1b[" not in printed(monkeypatch, 100)
    assert "\x1b[" in printed(monkeypatch, 100, force_color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in printed(monkeypatch, 100, force_color=True)


def test_the_verdict_is_a_word_or_two():
    """Each of the four ways that a race can end has its own."""
    assert [word(r) for r in RESULTS] == ["shown, try 2", "shown broken", "exact", "NOT EXACT"]
    assert word(result(sold=2, left=0)) == "NOT SHOWN"
