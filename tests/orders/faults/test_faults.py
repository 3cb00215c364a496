"""A fault at each statement and each reply of a sale: what the client was told is true, and no unit is lost.

The normal run explores every fault of the strategies that keep units in two places, and for each other sound
strategy the faults from the write of the order on. EXPLORE=all explores everything: every sound
strategy, every fault at every exchange, with a key and without, with the stock in Redis loaded and not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import redis
from django.test import override_settings

from inventory import stock_store
from inventory.progress import CONNECTION_ERRORS, DatabaseUnavailable, SaleProgress
from inventory.stock_reservation import StockReservation
from inventory.strategies import STRATEGIES, Strategy
from inventory.strategies.async_reserve import AsyncReserve
from inventory.strategies.redis_script import RedisScript
from inventory.strategies.redis_spin_lock import RedisSpinLock
from locking import BackendUnavailable
from orders import idempotency
from orders.audit import audit
from tests.inventory.interleaving import buyers
from tests.inventory.mortal import LEASE
from tests.inventory.steps import STEPS
from tests.orders.faults.explorer import (
    KEY,
    Point,
    Send,
    Violation,
    explore,
    ids,
    in_process,
    points,
    post,
    rest,
    settle,
    stock_up,
)
from tests.orders.faults.mortal import Mortals, mortals
from tests.orders.faults.transport import KILLS
from tests.selection import EXPLORE_ALL

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(7200 if EXPLORE_ALL else 120)]

SOUND = [name for name, each in STRATEGIES.items() if each.sound and not each.unconfigured()]
"""Without those on ZooKeeper, etcd and Redlock: their locks are the same code over another engine."""

IN_TWO_PLACES = ["redis_script", "redis_gate", "segmented", "async_reserve", "unit_rows"]
"""Strategies that take units in one step and sell them in another."""

EXPLORED: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def quiet_and_short(monkeypatch):
    """Outages are logged by the thousand here; and a lock whose release was lost ends soon."""
    logging.disable(logging.CRITICAL)
    monkeypatch.setattr(RedisSpinLock, "expiry", LEASE)
    yield
    logging.disable(logging.NOTSET)
    rest()


@pytest.fixture(scope="module", autouse=True)
def count(request) -> Iterator[None]:
    """Print how many points were explored."""
    yield
    each = ", ".join(f"{name} {number}" for name, number in sorted(EXPLORED.items()))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nfaults of a sale: {EXPLORED.total()} points explored ({each})")


@pytest.fixture(scope="module")
def warm(django_db_setup) -> Iterator[Mortals]:
    """The warm parent of all who are killed here."""
    with mortals() as parent:
        yield parent


def violations(chosen: Iterable[Point], send: Send = in_process) -> list[str]:
    """Explore the points, and return what was violated."""
    found, before = [], EXPLORED.total()
    for point in chosen:
        EXPLORED[point.strategy] += 1
        try:
            explore(point, send)
        except Violation as violation:
            found.append(str(violation))
    print(f"points explored: {EXPLORED.total() - before}")
    return found


def chosen_of(strategy: str, *, keyed: bool) -> Iterator[Point]:
    """Yield the points of a strategy that this run explores."""
    for cold in (False, True) if EXPLORE_ALL and STRATEGIES[strategy].keeps_stock else (False,):
        for point in points(strategy, keyed=keyed, cold=cold):
            if EXPLORE_ALL or (strategy in IN_TWO_PLACES and strategy != "segmented") or point.may_be_unknown:
                yield point


@pytest.mark.parametrize("keyed", [True, False] if EXPLORE_ALL else [True], ids=lambda keyed: f"key={keyed}")
@pytest.mark.parametrize("strategy", SOUND)
def test_what_the_client_is_told_is_true_whatever_fails(strategy, keyed):
    """After each fault the answer is true, the repetition ends in one order, and the totals agree."""
    assert violations(chosen_of(strategy, keyed=keyed)) == []
    assert audit() == []


@pytest.mark.parametrize("keyed", [True, False] if EXPLORE_ALL else [True], ids=lambda keyed: f"key={keyed}")
@pytest.mark.parametrize(
    "strategy", SOUND if EXPLORE_ALL else ["redis_script", "redis_gate", "async_reserve"]
)
def test_a_killed_process_costs_no_unit(strategy, keyed, warm):
    """Killed at any exchange: repetition and reconciler end in one order, or in a unit that is for sale."""
    kinds = KILLS if EXPLORE_ALL else KILLS[1:]
    killed = points(strategy, keyed=keyed, cold=False, faults=kinds)
    assert violations(killed, warm.send) == []
    assert audit() == []


# A retry that overtakes the first request, in another process.


class Elsewhere(set):
    """What another process knows of the keys that are at work here: nothing."""

    def add(self, item: object) -> None:
        """Forget it."""


def overtaken(strategy: str, stop: str, nth: int, *, fails: bool) -> str:
    """Let the first request stop at a checkpoint, a retry run, and the first one fail or go on."""
    sku = stock_up(strategy, cold=False)
    request = partial(post, sku, KEY.format(sku))
    stops = [name for name in STEPS[strategy].split() if name == stop][:nth]
    with override_settings(CHECKOUT_STRATEGY=strategy, RECONCILE_OLDER_THAN=0), buyers() as start:
        first = start("A", request, *stops).passes(stops)
        retry = start("B", request)
        retry.ends_or_waits()
        first.dies() if fails else first.ends()
        retry.ends()
        last = request()
        settle(strategy)
        if len(ids(sku)) != 1 or [last.order] != ids(sku):
            return f"{strategy} at {stop}: the retry is told {last} beside the orders {ids(sku)}"
    return ""


def retries(strategy: str) -> Iterator[str]:
    """Yield what is untrue when a retry overtakes a request that is stopped at a checkpoint."""
    seen: Counter[str] = Counter()
    for stop in STEPS[strategy].split():
        seen[stop] += 1
        for fails in (True, False):
            EXPLORED[f"{strategy} (overtaken)"] += 1
            if untrue := overtaken(strategy, stop, seen[stop], fails=fails):
                yield untrue


@pytest.mark.parametrize("strategy", [*IN_TWO_PLACES, "row_lock"])
def test_a_retry_does_not_refuse_the_request_that_it_repeats(strategy, monkeypatch):
    """Wherever the first request stands, and whether it fails or not, the key ends in exactly one order."""
    monkeypatch.setattr(idempotency, "_in_flight", Elsewhere())
    assert list(retries(strategy)) == []


# Mutants: each takes one rule away, and the explorer must find it.


def the_last_error_counts(patch) -> None:
    """A key that can't be looked up hides what ended the sale."""

    def settled(key, error):
        try:
            return idempotency._answered(key) or idempotency._kept(key, error)
        except CONNECTION_ERRORS as outage:
            raise DatabaseUnavailable("the database can't be reached") from outage

    patch.setattr(idempotency, "_settled", settled)


def a_lost_commit_counts_as_none(patch) -> None:
    """A COMMIT without an answer is taken for a sale that wasn't made."""
    patch.setattr(SaleProgress, "is_unknown_after", lambda progress, error: False)


def any_lost_connection_is_unknown(patch) -> None:
    """It doesn't count how far the sale was."""
    patch.setattr(
        SaleProgress, "is_unknown_after", lambda progress, error: isinstance(error, CONNECTION_ERRORS)
    )


def only_silence_counts_as_an_outage(patch) -> None:
    """A Redis that answers with an error isn't taken for one that can't be used."""

    @contextmanager
    def answering():
        try:
            yield stock_store.client()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise BackendUnavailable(str(error)) from error

    patch.setattr(stock_store, "answering", answering)


def a_missing_script_is_an_error(patch) -> None:
    """A server that doesn't know a script is never sent its text."""

    def run(script, keys, args):
        return stock_store.client().evalsha(stock_store._script(script)[1], len(keys), *keys, *args)

    patch.setattr("inventory.shards.run", run)
    patch.setattr(stock_store, "run", run)


def the_gate_keeps_the_units(patch) -> None:
    """What the database never got isn't given back."""
    patch.setattr(StockReservation, "_void", lambda gate, hold: None)


def a_claim_counts_from_the_answer_on(patch) -> None:
    """A claim whose COMMIT wasn't answered is left."""
    claim = AsyncReserve._claim
    patch.setattr(AsyncReserve, "_claim", lambda self, sale, _: claim(self, sale, SaleProgress()))


def the_copy_is_not_reconciled(patch) -> None:
    """The stock of `redis_script` isn't in the reconciler's schedule."""
    patch.setattr(RedisScript, "reconcile", Strategy.reconcile)


MUTANTS = {
    the_last_error_counts: ("row_lock", True, "lost reply, then down"),
    a_lost_commit_counts_as_none: ("row_lock", False, "lost reply"),
    any_lost_connection_is_unknown: ("redis_gate", False, "lost request"),
    only_silence_counts_as_an_outage: ("redis_gate", False, "read-only"),
    a_missing_script_is_an_error: ("redis_gate", False, "no script"),
    the_gate_keeps_the_units: ("redis_gate", False, "lost request"),
    a_claim_counts_from_the_answer_on: ("async_reserve", False, "lost reply"),
    the_copy_is_not_reconciled: ("redis_script", False, "lost reply"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_rule_taken_out_is_found(mutant, monkeypatch):
    """With one rule taken out the explorer finds an untrue answer or a lost unit; with it in, none."""
    strategy, keyed, fault = MUTANTS[mutant]
    chosen = list(points(strategy, keyed=keyed, cold=False, faults=[fault]))
    mutant(monkeypatch)
    assert violations(chosen)


@pytest.mark.parametrize("strategy", IN_TWO_PLACES)
def test_a_refusal_that_is_kept_unasked_is_found(strategy, monkeypatch):
    """Kept without asking the database, a refusal ends a request that only its own first try refused."""
    monkeypatch.setattr(idempotency, "_in_flight", Elsewhere())
    monkeypatch.setattr(idempotency, "is_short", lambda shortages: True)
    assert list(retries(strategy))
