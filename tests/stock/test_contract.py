"""Every built-in strategy fulfills the contract."""

import pytest

from inventory.conf import AliasSettings
from inventory.strategies import combined
from inventory.strategies.combined import Combined
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


class WrittenFirst(Combined):
    """Writes every batch first: it takes none before."""

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings, write_first=True)


@pytest.mark.django_db(transaction=True)
class TestCombinedWrittenFirst(StrategyContract):
    strategy = "tests.stock.test_contract.WrittenFirst"

    @pytest.fixture(autouse=True)
    def _from_the_first_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(combined, "STEADY", 0)


@pytest.mark.django_db(transaction=True)
class TestRedisGate(StrategyContract):
    strategy = "redis_gate"
    patience = 2.0
