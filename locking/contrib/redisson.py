"""What only a team that shares locks with Redisson needs.

`get_fair_lock` queues as Java's `RFairLock` does. Among Python processes `get_lock` is first in, first out
already. The names must be Redisson's too: set `"KEY_PREFIX": ""` in `LOCKING`.
"""

from locking.core.kinds import get_fair_lock

__all__ = ["get_fair_lock"]
