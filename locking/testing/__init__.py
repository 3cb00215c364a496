"""For tests of code that locks: locks in memory, what is held, contention and loss on demand.

`locking.testing.pytest_plugin` is the pytest plugin, loaded where pytest is; `locking.testing.contract` holds
the contract suite for authors of backends. Only these two need pytest.
"""

from locking.testing.tools import (
    held_locks,
    isolate_locks,
    override_locks,
    simulate_contention,
    simulate_loss,
    simulate_outage,
)

__all__ = [
    "held_locks",
    "isolate_locks",
    "override_locks",
    "simulate_contention",
    "simulate_loss",
    "simulate_outage",
]
