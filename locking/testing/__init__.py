"""For tests of code that locks: locks in memory, what is held, contention and loss on demand.

`locking.testing.contract` holds the contract suite for authors of backends; it alone needs pytest.
"""

from locking.testing.tools import held_locks, override_locks, simulate_contention, simulate_loss

__all__ = ["held_locks", "override_locks", "simulate_contention", "simulate_loss"]
