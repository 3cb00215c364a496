"""kill -9 of a real process at every checkpoint of every sound strategy: totals agree, the rest is sold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.db import connection

from inventory.domain import Line, SoldOut
from inventory.models import StockClaim
from inventory.strategies import STRATEGIES, get_strategy
from orders.services import checkout
from tests.factories import LabProductFactory
from tests.inventory.interleaving import eventually
from tests.inventory.mortal import Mortals, mortals
from tests.inventory.steps import STEPS
from tests.inventory.totals import totals_of

pytestmark = pytest.mark.django_db(transaction=True)

STOCK = 3

DIE_HERE = [name for name in STEPS if not STRATEGIES[name].unconfigured()]
"""Without those on ZooKeeper and etcd: their locks end with a session, whose deaths tests/locking has."""


def stops(strategy: str) -> Iterator[tuple[str, int]]:
    """Every checkpoint of a strategy; one that comes twice is stopped at twice."""
    seen: Counter[str] = Counter()
    for name in STEPS[strategy].split():
        seen[name] += 1
        yield name, seen[name]


@pytest.fixture(scope="module")
def warm(django_db_setup) -> Iterator[Mortals]:
    """The warm parent of all who die here."""
    with mortals() as parent:
        yield parent


def nobody_works() -> bool:
    """Whether PostgreSQL has noticed every death and rolled it back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
        return bool(cursor.fetchone() == (0,))


@pytest.mark.parametrize("strategy", DIE_HERE)
def test_a_death_costs_nothing_but_its_own_order(warm, strategy):
    """Killed anywhere, a buyer's order is there whole or not at all, and others can buy exactly the rest."""
    for stop, nth in stops(strategy):
        product = LabProductFactory.create(on_hand=STOCK)
        assert warm.buy(strategy, product.sku, 1, stop, nth) == "killed"
        eventually(nobody_works, "PostgreSQL rolls the dead buyer back")
        assert set(get_strategy(strategy).drift([product]).values()) <= {0}, "copy and ledger lose no unit"
        get_strategy(strategy).reconcile(older_than=0)
        assert not StockClaim.objects.exists()
        assert totals_of(product.sku).balanced
        assert totals_of(product.sku).sold == int(is_committed(strategy, stop, nth)), (stop, nth)
        buy_the_rest(strategy, product.sku)


def buy_the_rest(strategy: str, sku: str) -> None:
    """Buy what is left, be refused after that, and find the totals right."""
    checkout([Line(sku, totals_of(sku).left)], strategy)
    with pytest.raises(SoldOut):
        checkout([Line(sku, 1)], strategy)
    assert (totals_of(sku).sold, totals_of(sku).left) == (STOCK, 0)
    assert totals_of(sku).balanced


def is_committed(strategy: str, stop: str, nth: int) -> bool:
    """Whether the order's own commit comes before this checkpoint or with it."""
    steps = STEPS[strategy].split()
    last_commit = max(i for i, name in enumerate(steps) if name == "committed")
    here = [i for i, name in enumerate(steps) if name == stop][nth - 1]
    return here >= last_commit


def test_a_dead_holders_lock_ends_before_those_behind_it_give_up():
    """In the shop as shipped a killed worker makes buyers wait, and none of them is sent away for it."""
    for strategy in STRATEGIES.values():
        if strategy.sound and not strategy.unconfigured():
            assert settings.LOCKING[strategy.lock_alias]["WATCHDOG_TTL"] <= strategy.wait / 2, strategy.name


def test_every_sound_strategy_dies_here():
    """No sound strategy is missing from the list of checkpoints."""
    assert set(STEPS) == {name for name, strategy in STRATEGIES.items() if strategy.sound}
