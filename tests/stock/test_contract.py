"""Every built-in strategy fulfills the contract."""

import pytest

from inventory.testing import StrategyContract


@pytest.mark.django_db(transaction=True)
class TestConditionalUpdate(StrategyContract):
    strategy = "conditional_update"


@pytest.mark.django_db(transaction=True)
class TestWriteFirst(StrategyContract):
    strategy = "write_first"


@pytest.mark.django_db(transaction=True)
class TestLocked(StrategyContract):
    strategy = "locked"


@pytest.mark.django_db(transaction=True)
class TestCombined(StrategyContract):
    strategy = "combined"


@pytest.mark.django_db(transaction=True)
class TestRedisGate(StrategyContract):
    strategy = "redis_gate"
    patience = 2.0
