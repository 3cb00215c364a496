"""kill -9 of a real process at every checkpoint of every sound strategy: the books balance, the rest is sold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import connection

from inventory.domain import Line, SoldOut
from inventory.models import Product, StockClaim
from inventory.strategies import STRATEGIES, get_strategy
from orders.services import checkout
from tests.factories import LabProductFactory
from tests.inventory.books import books
from tests.inventory.interleaving import eventually
from tests.inventory.mortal import Mortals, mortals
from tests.inventory.steps import STEPS

pytestmark = pytest.mark.django_db(transaction=True)

STOCK = 3


def stops() -> Iterator[tuple[str, str, int]]:
    """Every checkpoint of every sound strategy; one that comes twice is stopped at twice."""
    for strategy, steps in STEPS.items():
        seen: Counter[str] = Counter()
        for name in steps.split():
            seen[name] += 1
            yield strategy, name, seen[name]


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


@pytest.mark.parametrize(("strategy", "stop", "nth"), list(stops()))
def test_a_death_costs_nothing_but_its_own_order(warm, strategy, stop, nth):
    """Killed anywhere, a buyer's order is there whole or not at all, and others can buy exactly the rest."""
    product = LabProductFactory.create(on_hand=STOCK)
    assert warm.buy(strategy, product.sku, 1, stop, nth) == "killed"
    eventually(nobody_works, "PostgreSQL rolls the dead buyer back")
    seller = get_strategy(strategy)
    assert set(seller.drift([product]).values()) <= {0}, "copy and ledger together never lose a unit"
    seller.reconcile(older_than=0)
    kept = books(product.sku)
    assert kept.balanced
    assert not StockClaim.objects.exists()
    assert kept.sold == (1 if is_committed(strategy, stop, nth) else 0)
    if strategy == "redis_script":  # no ledger: what a crash took comes back with a reload
        seller.prepare(Product.objects.filter(pk=product.pk))
    for _ in range(kept.left):
        checkout([Line(product.sku, 1)], strategy)
    with pytest.raises(SoldOut):
        checkout([Line(product.sku, 1)], strategy)
    assert (books(product.sku).sold, books(product.sku).left) == (STOCK, 0)
    assert books(product.sku).balanced


def is_committed(strategy: str, stop: str, nth: int) -> bool:
    """Whether the order's own commit comes before this checkpoint or with it."""
    steps = STEPS[strategy].split()
    last_commit = max(i for i, name in enumerate(steps) if name == "committed")
    here = [i for i, name in enumerate(steps) if name == stop][nth - 1]
    return here >= last_commit


def test_every_sound_strategy_dies_here():
    """No sound strategy is missing from the list of checkpoints."""
    assert set(STEPS) == {name for name, strategy in STRATEGIES.items() if strategy.sound}
