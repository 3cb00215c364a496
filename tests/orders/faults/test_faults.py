"""A fault at each statement and each reply: what is answered is true, and no unit is lost or moved twice.

The normal run explores the faults around each COMMIT. HOLDFAST_FAULTS=all explores every exchange.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from inventory.strategies import base, redis_gate
from orders.http import idempotency
from orders.selling.strategies import names
from tests.orders.faults.explorer import (
    OPERATIONS,
    SECRET,
    Begin,
    Violation,
    explore,
    points,
    reservation,
    reservation_without_a_key,
    sale,
    sale_without_a_key,
    seconds_until_sold_again,
)

WHOLE = os.environ.get("HOLDFAST_FAULTS") == "all"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(7200 if WHOLE else 300)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Outages are logged by the thousand here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that failed is asked again at once: each exploration makes the exchanges that were recorded."""
    monkeypatch.setattr(redis_gate, "REST", 0)


def violations(begin: Begin, *, whole: bool = WHOLE, fault: str = "") -> list[str]:
    """Explore an operation; return what was violated."""
    found, explored = [], 0
    for point, before, after in points(begin, whole=whole):
        if fault in point.fault:
            explored += 1
            try:
                explore(point, before, after)
            except Violation as violation:
                found.append(str(violation))
    print(f"{begin.__name__}: {explored} points explored")
    return found


@pytest.mark.parametrize("strategy", names())
def test_a_buyer_hears_the_truth_whatever_fails(strategy, settings):
    """By each strategy: after each fault the answer is true, and the repetition ends in one order."""
    settings.CHECKOUT_STRATEGY = strategy
    settings.LOCKING = {alias: {**entry, "TTL": 3} for alias, entry in settings.LOCKING.items()}
    assert violations(sale) == []


@pytest.mark.parametrize("begin", OPERATIONS, ids=lambda begin: begin.__name__)
def test_whatever_writes_is_answered_truly_whatever_fails(begin, settings):
    """Reserving, releasing, paying, shipping: nothing is done twice, and nothing is said wrongly."""
    settings.CHECKOUT_STRATEGY = "conditional_update"
    settings.PAYMENT_WEBHOOK_SECRETS = [SECRET]
    assert violations(begin) == []


WITHOUT_LOCKS = [name for name in names() if not name.endswith("lock")]


@pytest.mark.parametrize("strategy", WITHOUT_LOCKS)
def test_another_buyer_is_served_as_soon_as_the_servers_are(strategy, settings):
    """Whatever the one before was cut off at: within two seconds, and nothing has to clean up behind him."""
    settings.CHECKOUT_STRATEGY = strategy
    for point, _, _ in points(sale_without_a_key, whole=WHOLE):
        assert seconds_until_sold_again(point) < 2.0


# Mutants: each takes one rule away, and the explorer must find it.


def a_lost_commit_counts_as_none(patch) -> None:
    """A COMMIT without an answer is taken for one that wasn't made."""
    patch.setattr(base, "was_refused", lambda error: True)


def any_lost_connection_is_unknown(patch) -> None:
    """It doesn't count how far the work was."""
    patch.setattr("orders.transactions.Progress", type("Written", (base.Progress,), {"written": True}))


def a_key_is_not_kept(patch) -> None:
    """The key's outcome isn't looked up."""
    patch.setattr(idempotency, "_answered", lambda key: None)


@pytest.mark.parametrize(
    ("mutant", "begin", "fault"),
    [
        (a_lost_commit_counts_as_none, sale, "lost reply"),
        (a_lost_commit_counts_as_none, sale_without_a_key, "lost reply"),
        (a_lost_commit_counts_as_none, reservation, "lost reply"),
        (a_lost_commit_counts_as_none, reservation_without_a_key, "lost reply"),
        (any_lost_connection_is_unknown, reservation, "lost request"),
        (a_key_is_not_kept, sale, "lost reply"),
    ],
)
def test_a_rule_taken_out_is_found(mutant, begin, fault, monkeypatch, settings):
    """With one rule taken out the explorer finds an untrue answer; with it in, none."""
    settings.CHECKOUT_STRATEGY = "conditional_update"
    mutant(monkeypatch)
    assert violations(begin, whole=True, fault=fault)
