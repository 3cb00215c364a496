"""The figures and the verdict of one race."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders.lab.race.audit import Totals
from orders.lab.race.messages import Answer, Mark, Outcome
from orders.lab.race.plan import Plan, Variant
from orders.lab.race.result import judge, percentile

PLAN = Plan(buyers=4, stock=2, processes=1)


def totals(sold=2, left=0, orders=None):
    """Rows that agree by default."""
    ids = frozenset(f"order-{n}" for n in range(1, sold + 1)) if orders is None else frozenset(orders)
    price = Decimal("2.50")
    return Totals(left, price, sold, price * sold, ids)


def outcomes(sold=2, refused=2, errors=0):
    """As many answers of each kind, a second apart."""
    counts: dict[Answer, int] = {"sold": sold, "refused": refused, "error": errors}
    answers = [answer for answer, count in counts.items() for _ in range(count)]
    return [
        Outcome(
            number,
            answer,
            started=1.0,
            ended=1.0 + number,
            order=f"order-{number}" if answer == "sold" else None,
            problem="Oops: why" if answer == "error" else "",
        )
        for number, answer in enumerate(answers, 1)
    ]


def result(sound=True, rows=None, answers=None, **more):
    """One race judged."""
    variant = Variant("some", "some", sound, 1)
    return judge(PLAN, variant, rows or totals(), answers or outcomes(), tries=1, evidence="", **more)


def test_a_race_without_fault_is_exact():
    """All sold, all accounted for, all rows agreed, all buyers answered."""
    fine = result()
    assert fine.exact
    assert fine.kept
    assert fine.verdict == "exact"
    assert (fine.oversold, fine.unaccounted, fine.refused, fine.errors) == (0, 0, 2, 0)
    assert fine.orders_per_second == 1.0


@pytest.mark.parametrize(
    ("rows", "answers", "words"),
    [
        (totals(sold=3, left=-1), outcomes(3, 1), "1 oversold"),
        (totals(sold=1, left=1), outcomes(1, 3), "1 undersold"),
        (totals(sold=2, left=1), outcomes(), "-1 unaccounted for"),
        (totals(orders=["order-1"]), outcomes(), "1 acknowledged orders aren't there"),
        (
            totals(orders=["order-1", "order-2", "order-3"]),
            outcomes(),
            "1 orders are there that no answer named",
        ),
        (totals(), outcomes(2, 1, 1), "1 errors (Oops: why)"),
    ],
)
def test_each_fault_keeps_a_sound_strategy_from_being_exact(rows, answers, words):
    """A single thing that doesn't agree is enough, and the verdict says which."""
    faulty = result(rows=rows, answers=answers)
    assert not faulty.exact
    assert not faulty.kept
    assert faulty.verdict.startswith("NOT EXACT")
    assert words in faulty.verdict


def test_totals_that_do_not_fit_the_pieces_are_a_disagreement():
    """The money is checked as well as the pieces."""
    rows = totals()
    wrong = Totals(rows.left, rows.price, rows.sold, Decimal("1.00"), rows.orders)
    assert "the orders' totals are 1.00 for 2 pieces" in result(rows=wrong).verdict


@pytest.mark.parametrize(
    ("rows", "shown"), [(totals(sold=4, left=1), True), (totals(sold=2, left=1), True), (totals(), False)]
)
def test_a_broken_strategy_is_shown_by_overselling_or_by_lost_pieces(rows, shown):
    """An exact race doesn't show a fault, and the verdict then admits it."""
    broken = result(sound=False, rows=rows, answers=outcomes(rows.sold, 4 - rows.sold))
    assert broken.shown_broken is broken.kept is shown
    assert broken.verdict.startswith("broken: " if shown else "NOT SHOWN broken in 1 try")


def test_errors_alone_do_not_show_a_fault_of_the_strategy():
    """A server that is down would else make every strategy look broken."""
    assert not result(sound=False, rows=totals(0, 2), answers=outcomes(0, 0, 4)).shown_broken


def test_latency_and_throughput_are_those_of_the_buyers_who_got_one():
    """Quick refusals must not make a strategy look quick."""
    some = result(rows=totals(), answers=outcomes(sold=2, refused=2))
    assert (some.p50_ms, some.p95_ms, some.p99_ms) == (1000, 2000, 2000)


def test_a_race_in_which_no_buyer_bought_has_figures_too():
    """No division by nothing."""
    none = result(rows=totals(0, 2), answers=outcomes(0, 0, 4))
    assert none.orders_per_second == none.p50_ms == 0
    assert none.verdict == "NOT EXACT: 2 undersold; 4 errors (Oops: why)"


def test_figures_are_plain_json():
    """A program finds the promised names, and JSON takes them as they are."""
    figures = json.loads(json.dumps(result().as_dict()))
    promised = (
        "name sound initial sold left oversold unaccounted errors orders_per_second p50_ms p95_ms p99_ms"
    )
    assert set(promised.split()) <= set(figures)


@given(st.lists(st.integers(), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(values, percent):
    """Nearest rank: at least so many are at or below it, and no smaller value has as many."""
    values.sort()
    found = percentile(values, percent)
    assert sum(v <= found for v in values) * 100 >= percent * len(values)
    assert sum(v < found for v in values) * 100 < percent * len(values)


def deadlocked(sound):
    """The verdict on a race in which every buyer was served, one of them after a deadlock."""
    answers = outcomes()
    answers[0] = replace(answers[0], trace=(Mark("deadlocked", 1.5),))
    return judge(PLAN, Variant("any", "any", sound, 1), totals(), answers, tries=1, evidence="")


def test_a_deadlock_shows_a_broken_strategy():
    """Nothing was oversold, and yet the fault was seen: two buyers waited for each other."""
    result = deadlocked(sound=False)
    assert (result.oversold, result.unaccounted, result.deadlocks) == (0, 0, 1)
    assert result.kept
    assert "1 deadlock" in result.verdict


def test_a_sound_strategy_that_deadlocks_is_not_exact():
    """The rows are right, and the promise isn't kept."""
    result = deadlocked(sound=True)
    assert not result.kept
    assert result.verdict == "NOT EXACT: 1 deadlock"
