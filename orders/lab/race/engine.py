"""The race from beginning to end: sweep, pool, one round after another, judge, clear."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from orders.lab.models import Product
from orders.lab.race import audit, evidence, lab_products
from orders.lab.race.fault_injection import answers, claim
from orders.lab.race.messages import Round
from orders.lab.race.plan import Plan, Variant, set_apart, share_out
from orders.lab.race.result import Result, judge
from orders.lab.race.worker_pool import WorkerPool
from orders.lab.strategies import STRATEGIES, Strategy

CIRCLES_SHOW_WITHIN = 4.0  # seconds; PostgreSQL looks for a circle after one


class Watcher(Protocol):
    """An observer of the progress of the race; called in the process that runs it."""

    def round_(self, variant: Variant, attempt: int) -> None:
        """Report that a round begins; `attempt` counts from 1."""

    def answered(self, variant: Variant, buyers: int) -> None:
        """Report how many buyers of this round have their answer."""

    def result(self, variant: Variant, result: Result) -> None:
        """Report that the variant is done."""


def race(plan: Plan, variants: Sequence[Variant], watcher: Watcher, *, sample: bool = False) -> list[Result]:
    """Race the variants one after another; leave no process, product, order or stock key behind.

    Raises:
        LabError: the database has no room for so many buyers.

    Example:
        plan = Plan(buyers=40, stock=10, gap=0.02, processes=4)
        results = race(plan, choose("all", STRATEGIES, plan), watcher)
    """
    lab_products.require_connections(plan.buyers)
    lab_products.sweep()
    # The pool is the inner one: every buyer is home before the products are cleared away.
    with lab_products.race_in_progress() as name, WorkerPool(plan.processes) as pool:
        track = _Track(plan, name, pool, watcher, sample)
        return [track.run(variant) for variant in variants]


@dataclass
class _Track:
    """Where the variants of one race run."""

    plan: Plan
    race: str
    pool: WorkerPool
    watcher: Watcher
    sample: bool
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def run(self, variant: Variant) -> Result:
        """Race a sound variant once, a broken one until its fault has shown or its tries are used up."""
        tries = 1 if variant.sound else self.plan.tries
        for attempt in range(1, tries + 1):
            self.watcher.round_(variant, attempt)
            result = self._round(variant, attempt)
            if result.kept:
                break
        self.watcher.result(variant, result)
        return result

    def _round(self, variant: Variant, attempt: int) -> Result:
        number = next(self.numbers)
        product, *others = lab_products.stock_up_cart(self.race, number, variant.strategy, self.plan.stock)
        with audit.sampled(product.sku, self.sample) as samples:
            outcomes = self.pool.race(
                self._rounds(variant, product, others),
                lambda answered: self.watcher.answered(variant, answered),
            )
        totals = audit.read_totals(product.sku)
        explain = evidence.explain_order if variant.sound else evidence.explain_fault
        for each in (product, *others):
            lab_products.forget(each)
        for left in (claim(product.sku), answers(product.sku)):
            left.unlink(missing_ok=True)
        return judge(
            self.plan, variant, totals, outcomes, tries=attempt, evidence=explain(outcomes), samples=samples
        )

    def _rounds(self, variant: Variant, product: Product, others: Sequence[Product]) -> list[Round]:
        fault, sizes = self.plan.fault, (self.plan.buyers, variant.processes, self.plan.processes)
        alone = fault is not None and fault.victim
        hands = set_apart(alone, *sizes) if alone else share_out(*sizes)
        # A buyer that still waits in a circle after that shows nothing more.
        circles = not variant.sound and bool(others)
        round_ = Round(
            product.sku,
            variant.strategy,
            self.plan.gap,
            _lease(STRATEGIES[variant.strategy], self.plan),
            min(self.plan.deadline, CIRCLES_SHOW_WITHIN) if circles else self.plan.deadline,
            (),
            others=tuple(other.sku for other in others),
            fault=fault,
            outage=fault is not None and fault.kill is not None,
        )
        return [replace(round_, buyers=hand) for hand in hands]


def _lease(strategy: type[Strategy], plan: Plan) -> float | None:
    """Return a lease shorter than the gap for a lock whose lease can end too early."""
    expiry: float | None = getattr(strategy, "expiry", None)
    if strategy.sound or expiry is None:
        return None
    return plan.lease or min(expiry, max(0.001, plan.gap * 0.75))
