"""Every way to sell, by name: a plain dict, so that adding one is a file and a line.

Each broken one comes before the sound ones that fix it.
"""

from __future__ import annotations

from orders.lab.strategies.advisory_lock import AdvisoryLock
from orders.lab.strategies.base import Strategy
from orders.lab.strategies.combined import Combined
from orders.lab.strategies.conditional_update import ConditionalUpdate
from orders.lab.strategies.database_lock import DatabaseLock
from orders.lab.strategies.early_release import EarlyRelease
from orders.lab.strategies.etcd_lock import EtcdLock
from orders.lab.strategies.expired_lease import ExpiredLease
from orders.lab.strategies.fenced_lock import FencedLock
from orders.lab.strategies.local_lock import LocalLock
from orders.lab.strategies.lock_after_read import LockAfterRead
from orders.lab.strategies.lock_table import LockTable
from orders.lab.strategies.lost_update import LostUpdate
from orders.lab.strategies.negative_stock import NegativeStock
from orders.lab.strategies.ordered_locks import OrderedLocks
from orders.lab.strategies.redis_gate import RedisGate
from orders.lab.strategies.redis_lock import RedisLock
from orders.lab.strategies.redis_script import RedisScript
from orders.lab.strategies.redis_spin_lock import RedisSpinLock
from orders.lab.strategies.redlock import Redlock
from orders.lab.strategies.row_lock import RowLock
from orders.lab.strategies.segmented import Segmented
from orders.lab.strategies.segmented_locks import SegmentedLocks
from orders.lab.strategies.setnx_expire_del import SetnxExpireDel
from orders.lab.strategies.setnx_getset import SetnxGetset
from orders.lab.strategies.unique_row import UniqueRow
from orders.lab.strategies.unit_rows import UnitRows
from orders.lab.strategies.unsorted_locks import UnsortedLocks
from orders.lab.strategies.unsorted_redis_locks import UnsortedRedisLocks
from orders.lab.strategies.version_cas import VersionCas
from orders.lab.strategies.zookeeper_lock import ZooKeeperLock

_ALL: tuple[type[Strategy], ...] = (
    LostUpdate, RowLock, VersionCas, NegativeStock, ConditionalUpdate, UnsortedLocks, OrderedLocks,
    LockTable, UniqueRow, AdvisoryLock, LocalLock, EarlyRelease, LockAfterRead, UnsortedRedisLocks,
    RedisLock, ZooKeeperLock, EtcdLock, Redlock, DatabaseLock, ExpiredLease, FencedLock, SetnxExpireDel,
    SetnxGetset, RedisSpinLock, RedisScript, RedisGate, Segmented, SegmentedLocks, Combined, UnitRows,
)  # fmt: skip

STRATEGIES: dict[str, type[Strategy]] = {strategy.name: strategy for strategy in _ALL}

__all__ = ["STRATEGIES", "Strategy", "UnknownStrategy", "get_strategy"]


class UnknownStrategy(ValueError):
    """There is no strategy of that name, or its settings are missing."""


def get_strategy(name: str) -> Strategy:
    """Return the strategy called `name`, ready to sell.

    Raises:
        UnknownStrategy: naming those that there are, or what the settings lack for this one.

    Example:
        >>> get_strategy("row_lock").sound
        True
    """
    if not isinstance(name, str) or name not in STRATEGIES:
        raise UnknownStrategy(f"unknown strategy {name!r}; there are {', '.join(STRATEGIES)}")
    if lack := STRATEGIES[name].unconfigured():
        raise UnknownStrategy(f"strategy {name!r} can't sell here: {lack}")
    return STRATEGIES[name]()
