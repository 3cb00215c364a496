"""For tests: the contract that every strategy fulfills, and a stock to begin with."""

from inventory.testing.contract import StrategyContract
from inventory.testing.races import race_processes, race_threads

__all__ = ["StrategyContract", "race_processes", "race_threads"]
