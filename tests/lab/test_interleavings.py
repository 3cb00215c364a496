"""All interleavings of two checkouts with at most two preemptions, for every strategy, on the real database.

A schedule is two numbers: A runs to its i-th checkpoint, B to its j-th, then A runs to its end, or until it
waits for B, and B to its.
The buyers are alike, so the schedules that begin with B are the same ones. Where B waits for A before it
comes to its j-th checkpoint, the longer ones are the same schedule and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orders.lab.strategies import get_strategy
from tests.lab.interleaving import buyers
from tests.lab.products import buying, make
from tests.lab.steps import STEPS
from tests.lab.totals import Totals, totals_of

pytestmark = pytest.mark.django_db(transaction=True)

BROKEN = {
    "lost_update": "read decided written recorded committed",
    "negative_stock": "read decided written recorded committed",
    "early_release": "waiting locked read decided written unlocked recorded committed",
    "lock_after_read": "read waiting locked decided written recorded unlocked",
}
"""The broken ones that need no clock to break, with their checkpoints."""

Run = tuple[tuple[int, int], list[str], Totals]


def schedules(strategy: str, steps: list[str]) -> Iterator[Run]:
    """Run every schedule on a new product with one unit; yield it, how both ended, and the totals."""
    for i in range(1, len(steps) + 1):
        for j in range(1, len(steps) + 1):
            where, ends, kept = run(strategy, steps[:i], steps[:j])
            yield (i, j), ends, kept
            if where != "stops":
                break


def run(strategy: str, of_a: list[str], of_b: list[str]) -> tuple[str, list[str], Totals]:
    """Run one schedule; return also where B was when A went on: `stops`, `waits` or `ended`."""
    sku = make().sku
    work = buying(strategy, {sku: 1})
    with buyers() as start:
        a = start("A", work, *of_a).passes(of_a)
        b = start("B", work, *of_b)
        where = b.goes_as_far_as_it_can(of_b)
        a.runs_on().ends_or_waits()  # for B, if B has the lock by now
        ends = sorted(type(each.ends().error).__name__ for each in (b, a))
    get_strategy(strategy).reconcile(older_than=0)
    return where, ends, totals_of(sku)


@pytest.mark.parametrize("strategy", STEPS)
def test_every_interleaving_of_a_sound_strategy_sells_the_last_unit_once(strategy):
    """In each schedule one buyer is served, the other hears that it is sold out, and the totals balance."""
    for schedule, ends, kept in schedules(strategy, STEPS[strategy].split()):
        assert ends == ["NoneType", "SoldOut"], schedule
        assert (kept.sold, kept.left, kept.orders, kept.balanced) == (1, 0, 1, True), schedule


@pytest.mark.parametrize("strategy", BROKEN)
def test_the_same_interleavings_show_each_broken_strategy(strategy):
    """The search finds the fault of every broken strategy, so it would find one in a sound one."""
    kept = [kept for _, _, kept in schedules(strategy, BROKEN[strategy].split())]
    found = sum(bool(each.oversold) for each in kept)
    assert found >= 2, f"{found} of {len(kept)} schedules oversell"
