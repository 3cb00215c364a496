"""Search a strategy's real schedules: two buyers on real connections, every order with at most two switches.

A is led to its i-th checkpoint, B to its j-th, then A goes on as far as it can, and B. The buyers are alike,
so the schedules that begin with B are the same ones. Whatever is taken for waiting, each schedule really
happens: a wrong guess could only hide one, never invent one.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from orders.lab.pages.stepping import Session
from orders.lab.race import lab_products
from orders.lab.strategies import STRATEGIES

LOOK_EVERY = 0.004
PATIENCE = 3.0
"""Seconds for one step; a buyer who takes longer and is not seen to wait is taken to wait."""

SHORT_LEASE = 1.0
"""A lease that ends within so many seconds is waited for: to outlive it is what such a strategy is about."""


@dataclass
class Schedule:
    """One order of steps: who went where, and what came of it."""

    presses: list[tuple[str, str]] = field(default_factory=list)
    sold: int = 0
    initial: int = 1
    deadlock: bool = False

    @property
    def broken(self) -> bool:
        """Whether more was sold than there was, or both waited for each other."""
        return self.sold > self.initial or self.deadlock


def search(strategy: str) -> list[Schedule]:
    """Run every schedule, each on a new last piece, those that begin with few steps of A first."""
    found = []
    with lab_products.race_in_progress() as race:
        numbers = itertools.count(1)
        for first in itertools.count(1):
            for second in itertools.count(1):
                products = lab_products.stock_up_cart(race, next(numbers), strategy, 1)
                with Session([product.sku for product in products], strategy) as session:
                    run = _Run(session, strategy)
                    a_stands, b_stands = run.lead("A", first), run.lead("B", second)
                    found.append(run.finish())
                if not b_stands:
                    break
            if not a_stands:
                return found
    return found


def report(strategy: str, found: list[Schedule], console: Console) -> bool:
    """Print what was found and the shortest schedule; return whether the strategy did as labelled."""
    broken = [schedule for schedule in found if schedule.broken]
    searched = f"{strategy}: {len(found)} schedules of two buyers searched"
    if not broken:
        console.print(f"{searched}, none oversells", style="bold")
        return STRATEGIES[strategy].sound
    shortest = min(broken, key=lambda schedule: len(schedule.presses))
    what = "end in a deadlock" if shortest.deadlock else "oversell"
    headline = f"{searched}, {len(broken)} {what}. The shortest, of {len(shortest.presses)} steps:"
    console.print(headline, style="bold", soft_wrap=True)
    for who, where in shortest.presses:
        console.print(Text(("" if who == "A" else " " * 44) + f"{who}  {where}"))
    console.print(f"sold {shortest.sold} of {shortest.initial}")
    return not STRATEGIES[strategy].sound


class _Run:
    """Leads the buyers of one session."""

    def __init__(self, session: Session, strategy: str) -> None:
        self._session = session
        self._schedule = Schedule()
        self._noted = {"A": 0, "B": 0}
        lease = getattr(STRATEGIES[strategy], "expiry", None)
        self._lease = lease if lease is not None and lease < SHORT_LEASE else 0.0

    def lead(self, who: str, steps: int) -> bool:
        """Take so many steps; return False if the buyer waits or has its answer before."""
        return all(self._step(who) for _ in range(steps))

    def finish(self) -> Schedule:
        """Lead both to their ends, A first, and B while A waits."""
        deadline = time.monotonic() + 10 * PATIENCE
        while not self._session.over and time.monotonic() < deadline:
            while self._step("A"):
                pass
            self._step("B")
        seen = self._session.snapshot()
        self._schedule.sold, self._schedule.initial = seen["sold"], seen["initial"]
        for who, lane in seen["lanes"].items():
            self._note(who, lane)
        marks = [mark for lane in seen["lanes"].values() for mark, *_ in lane["marks"]]
        self._schedule.deadlock = "deadlocked" in marks
        return self._schedule

    def _step(self, who: str) -> bool:
        """Let `who` take one step; return whether it is at another checkpoint now."""
        before = self._rests(who)
        if before["state"] != "parked":
            return False
        self._session.advance(who)
        after = self._rests(who, len(before["marks"]))
        # A lock that is polled has a checkpoint at each look: the second look in a row is waiting, or the
        # third where the first ones were early, for the lease may end.
        looks = len(list(itertools.takewhile(lambda mark: mark[0] == "waiting", reversed(after["marks"]))))
        if looks == 2:
            time.sleep(self._lease)
        return after["state"] == "parked" and looks < (3 if self._lease else 2)

    def _rests(self, who: str, marks: int = -1) -> dict[str, Any]:
        """Return the lane of `who` once it has stopped, is done, or waits for the other."""
        deadline = time.monotonic() + PATIENCE
        while True:
            lane: dict[str, Any] = self._session.snapshot()["lanes"][who]
            arrived = lane["state"] == "done" or (lane["state"] == "parked" and len(lane["marks"]) > marks)
            waits = lane["blocked"] and not (self._lease and lane["blocked"]["on"] == "lock")
            if arrived or waits or time.monotonic() > deadline:
                self._note(who, lane)
                return lane
            time.sleep(LOOK_EVERY)

    def _note(self, who: str, lane: dict[str, Any]) -> None:
        """Add what is new of a lane, also where it arrived while the other was led."""
        steps = [f"{mark}{'' if stock is None else f' {stock}'}" for mark, stock, _ in lane["marks"]]
        steps += [lane["answer"]] if lane["state"] == "done" else []
        self._schedule.presses += [(who, step) for step in steps[self._noted[who] :]]
        self._noted[who] = len(steps)
