"""One buyer: places an order by a strategy, tries again when it is busy, keeps a trace."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from locking import BackendUnavailable
from orders.lab.cart import Busy, Cart, SoldOut
from orders.lab.checkpoints import installed
from orders.lab.race.fault_injection import comes_after, has_answer, once_a_round
from orders.lab.race.messages import Answer, Mark, Outcome, Round
from orders.lab.race.source_lines import line_in, strategy_file
from orders.lab.strategies import STRATEGIES, get_strategy

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.25


class Cancelled(BaseException):
    """The race was called off. No Exception, so that no strategy takes it for a fault of the shop."""


@dataclass
class Buyer:
    """A person who wants one piece."""

    number: int
    round_: Round
    stop: threading.Event
    retries: int = 0
    queries: int = 0
    trace: list[Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._file = strategy_file(self.round_.strategy)

    def buy(self, start_at: float) -> Outcome:
        """Wait for the start, then buy until there is an answer; never raises."""
        self.stop.wait(max(0.0, start_at - time.monotonic()))
        comes_after(self.round_, self.number, self.stop)
        started = time.monotonic()
        try:
            with installed(self._at_checkpoint), connection.execute_wrapper(self._count_query):
                answer, order, problem = self._until_answered(started + self.round_.deadline)
        except Cancelled:
            answer, order, problem = "error", None, "the race was called off"
        except Exception as error:
            answer, order, problem = "error", None, describe(error)
        ended = time.monotonic()
        has_answer(self.round_, self.number)
        return Outcome(
            self.number,
            answer,
            started,
            ended,
            self.retries,
            self.queries,
            order,
            problem,
            tuple(self.trace),
        )

    def _until_answered(self, deadline: float) -> tuple[Answer, str | None, str]:
        while True:
            self.queries = 0
            try:
                return "sold", str(get_strategy(self.round_.strategy).sell(self._cart())), ""
            except SoldOut:
                return "refused", None, ""
            except Busy as busy:
                if time.monotonic() >= deadline:
                    return "error", None, f"still busy after {self.round_.deadline:g} s"
                self._pause(busy.retry_after)
            except BackendUnavailable:
                if not self._may_wait_for_redis(deadline):
                    raise
                self._pause(LONGEST_PAUSE)

    def _may_wait_for_redis(self, deadline: float) -> bool:
        """Return whether to retry: only before a write, since a retry after it could be a second order."""
        attempt = itertools.takewhile(lambda mark: mark.name != "unavailable", reversed(self.trace))
        if not self.round_.outage or any(mark.name == "recorded" for mark in attempt):
            return False
        self.trace.append(Mark("unavailable", time.monotonic()))
        return time.monotonic() < deadline

    def _cart(self) -> Cart:
        skus = [self.round_.sku, *self.round_.others]
        return Cart(dict.fromkeys(skus[::-1] if self.number % 2 else skus, 1))

    def _pause(self, advised: float | None) -> None:
        """Wait as a polite client does on a 503: as long as advised, within reason, and not all in step."""
        self.retries += 1
        pause = min(max(advised or 0.0, SHORTEST_PAUSE), LONGEST_PAUSE)
        self.stop.wait(random.uniform(0.5, 1.0) * pause)  # noqa: S311
        self._give_up_if_stopped()

    def _at_checkpoint(self, name: str, /, **facts: object) -> None:
        now = time.monotonic()
        lease = {fact: facts.get(fact) for fact in ("token", "ttl")}
        self.trace.append(Mark(name, now, seen(facts, self.round_.sku), line_in(self._file), **lease))  # type: ignore[arg-type]
        # Not at "locked": a primitive lock has no expiry yet, and a buyer who gave up would hold it forever.
        if name != "locked":
            self._give_up_if_stopped()
        if self.round_.fault and name == STRATEGIES[self.round_.strategy].late_at:
            once_a_round(self.round_, self.round_.fault, self.number)
        if name == "decided":
            # The rest comes after the decision, so that those who are refused don't rest.
            self.stop.wait(self.round_.gap)
            self._give_up_if_stopped()

    def _give_up_if_stopped(self) -> None:
        if self.stop.is_set():
            raise Cancelled

    def _count_query(self, execute: Callable[..., Any], *query: Any) -> Any:
        self.queries += 1
        return execute(*query)


def seen(facts: Mapping[str, object], sku: str) -> int | None:
    """Return the stock seen at a checkpoint, if its facts have one."""
    stock = facts.get("on_hand")
    return stock.get(sku) if isinstance(stock, Mapping) else None


def describe(error: BaseException) -> str:
    """Say an exception in one line of at most 200 characters.

    Example:
        >>> describe(ValueError("two" + chr(10) + "lines"))
        'ValueError: two lines'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
