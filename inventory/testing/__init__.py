"""For tests: the contract that every strategy fulfills, and races of threads and processes.

Nothing is imported before it is asked for: pytest loads the plugin of this package before Django is set up.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inventory.racing.crowd import race_processes, race_threads
    from inventory.testing.contract import StrategyContract

__all__ = ["StrategyContract", "race_processes", "race_threads"]


def __getattr__(name: str) -> Any:
    if name == "StrategyContract":
        from inventory.testing.contract import StrategyContract

        return StrategyContract
    if name in ("race_processes", "race_threads"):
        from inventory.racing import crowd

        return getattr(crowd, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
