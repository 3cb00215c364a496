"""What the process of a run does once Django is there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from django.conf import settings

from orders.lab.models import LabRun
from orders.lab.pages import limits
from orders.lab.pages.event_reporter import EventReporter
from orders.lab.pages.journal import Journal
from orders.lab.pages.runner import Guard
from orders.lab.pages.stepping import Session
from orders.lab.race import lab_products
from orders.lab.race.buyer import describe
from orders.lab.race.engine import race
from orders.lab.race.interruption import Interrupted, interruptible
from orders.lab.race.messages import Fault
from orders.lab.race.plan import Plan, choose, present
from orders.lab.race.private_redis import PrivateRedis
from orders.lab.strategies import STRATEGIES, Strategy

REST = 1.0
LOOK_EVERY = 0.04


class Idle(Exception):
    """No key was pressed for a while."""


def run(run_id: str) -> None:
    """Run what the row says, and write the end of it, whatever happens."""
    row = LabRun.objects.get(pk=run_id)
    journal = Journal(row)
    steps = row.kind == LabRun.Kind.STEPS
    guard = Guard(_seconds(row), None if steps else Journal(row))
    try:
        with interruptible(), guard.watching():
            (_steps if steps else _race)(journal, **row.parameters)
    except Interrupted:
        journal.end(guard.why)
    except Idle:
        journal.end("idle")
    except Exception as error:
        journal.end("failed", describe(error))
    else:
        journal.end("done")


def _seconds(row: LabRun) -> float:
    if row.kind == LabRun.Kind.STEPS:
        return limits.STEP_SECONDS
    return limits.ALL_SECONDS if row.parameters["strategy"] == "all" else limits.RACE_SECONDS


def _race(
    journal: Journal, *, buyers: int, stock: int, gap: int, processes: int, strategy: str, fault: str
) -> None:
    plan = Plan(buyers, stock, gap / 1000, processes, limits.TRIES, limits.PATIENCE)
    with FAULTS[fault](plan) as mischievous:
        variants, _ = present(strategy, choose(strategy, STRATEGIES, mischievous), STRATEGIES)
        race(mischievous, variants, EventReporter(journal), sample=True)


@contextmanager
def _none(plan: Plan) -> Iterator[Plan]:
    yield plan


@contextmanager
def _short_lease(plan: Plan) -> Iterator[Plan]:
    """Every lock of the project ends before the work under it is done, and is not renewed."""
    lease = max(0.002, plan.gap * 0.75)
    _change_locks(TTL=lease)
    yield replace(plan, lease=lease, tries=1, deadline=4.0)


@contextmanager
def _pause(plan: Plan) -> Iterator[Plan]:
    """Stop the last buyer's process for three times its lease.

    It has a process of its own and comes first: the others then wait for this lease and nothing else.
    """
    _change_locks(TTL=limits.PAUSED_LEASE)
    fault = Fault(stand_still=limits.PAUSE, victim=plan.buyers)
    yield replace(plan, processes=max(2, plan.processes), lease=limits.PAUSED_LEASE, fault=fault)


@contextmanager
def _redis(plan: Plan) -> Iterator[Plan]:
    """Kill the lab's own Redis before a buyer writes, and restart it empty."""
    with PrivateRedis() as redis:
        settings.REDIS_URL = redis.url
        settings.CACHES = {"default": settings.CACHES["default"] | {"LOCATION": redis.url}}
        yield replace(plan, lease=limits.PAUSED_LEASE, fault=Fault(kill=redis.pidfile, rest=REST), tries=1)


FAULTS = {"none": _none, "lease": _short_lease, "pause": _pause, "redis": _redis}


def _change_locks(**options: Any) -> None:
    # Before the first lock is taken here, so nothing has read the setting yet; the pool is sent a copy.
    settings.LOCKING = {alias: values | options for alias, values in settings.LOCKING.items()}


def _steps(journal: Journal, *, strategy: str) -> None:
    # A visitor presses one button after the other: for no strategy may the wait be shorter than usual here.
    STRATEGIES[strategy].wait = max(STRATEGIES[strategy].wait, Strategy.wait)
    with ExitStack() as stack:
        race_id = stack.enter_context(lab_products.race_in_progress())
        products = lab_products.stock_up_cart(race_id, 1, strategy, 1)
        _walk(journal, stack.enter_context(Session([product.sku for product in products], strategy)))


def _walk(journal: Journal, session: Session) -> None:
    """Pass on what the visitor presses and tell what becomes of it, until both buyers have their answer."""
    shown, pressed = None, time.monotonic()
    while shown is None or not session.over:
        for say in journal.hear():
            pressed = time.monotonic()
            session.advance(say)
        seen = session.snapshot()
        if seen != shown:
            journal.tell("steps", **seen)
            shown = seen
        if time.monotonic() - pressed > limits.IDLE_SECONDS:
            raise Idle
        time.sleep(LOOK_EVERY)
    journal.tell("steps", **session.snapshot())
