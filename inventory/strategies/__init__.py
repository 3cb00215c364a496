"""Every way to sell, by name: a plain dict, so that adding one is a file and a line.

Each broken one stands before the sound ones that fix it.
"""

from __future__ import annotations

from inventory.strategies.advisory_lock import AdvisoryLock
from inventory.strategies.async_reserve import AsyncReserve
from inventory.strategies.base import Reconciled, Sale, Strategy
from inventory.strategies.combined import Combined
from inventory.strategies.conditional_update import ConditionalUpdate
from inventory.strategies.database_lock import DatabaseLock
from inventory.strategies.early_release import EarlyRelease
from inventory.strategies.etcd_lock import EtcdLock
from inventory.strategies.expired_lease import ExpiredLease
from inventory.strategies.fenced_lock import FencedLock
from inventory.strategies.local_lock import LocalLock
from inventory.strategies.lock_after_read import LockAfterRead
from inventory.strategies.lock_table import LockTable
from inventory.strategies.lost_update import LostUpdate
from inventory.strategies.negative_stock import NegativeStock
from inventory.strategies.ordered_locks import OrderedLocks
from inventory.strategies.redis_gate import RedisGate
from inventory.strategies.redis_lock import RedisLock
from inventory.strategies.redis_script import RedisScript
from inventory.strategies.redis_spin_lock import RedisSpinLock
from inventory.strategies.redlock import Redlock
from inventory.strategies.row_lock import RowLock
from inventory.strategies.segmented import Segmented
from inventory.strategies.segmented_locks import SegmentedLocks
from inventory.strategies.segmented_rows import SegmentedRows
from inventory.strategies.setnx_expire_del import SetnxExpireDel
from inventory.strategies.setnx_getset import SetnxGetset
from inventory.strategies.unique_row import UniqueRow
from inventory.strategies.unit_rows import UnitRows
from inventory.strategies.unsorted_locks import UnsortedLocks
from inventory.strategies.unsorted_redis_locks import UnsortedRedisLocks
from inventory.strategies.version_cas import VersionCas
from inventory.strategies.zookeeper_lock import ZooKeeperLock

STRATEGIES: dict[str, type[Strategy]] = {
    "lost_update": LostUpdate,
    "row_lock": RowLock,
    "version_cas": VersionCas,
    "negative_stock": NegativeStock,
    "conditional_update": ConditionalUpdate,
    "unsorted_locks": UnsortedLocks,
    "ordered_locks": OrderedLocks,
    "lock_table": LockTable,
    "unique_row": UniqueRow,
    "advisory_lock": AdvisoryLock,
    "local_lock": LocalLock,
    "early_release": EarlyRelease,
    "lock_after_read": LockAfterRead,
    "unsorted_redis_locks": UnsortedRedisLocks,
    "redis_lock": RedisLock,
    "zookeeper_lock": ZooKeeperLock,
    "etcd_lock": EtcdLock,
    "redlock": Redlock,
    "database_lock": DatabaseLock,
    "expired_lease": ExpiredLease,
    "fenced_lock": FencedLock,
    "setnx_expire_del": SetnxExpireDel,
    "setnx_getset": SetnxGetset,
    "redis_spin_lock": RedisSpinLock,
    "redis_script": RedisScript,
    "redis_gate": RedisGate,
    "segmented": Segmented,
    "segmented_rows": SegmentedRows,
    "segmented_locks": SegmentedLocks,
    "combined": Combined,
    "async_reserve": AsyncReserve,
    "unit_rows": UnitRows,
}

__all__ = ["STRATEGIES", "Reconciled", "Sale", "Strategy", "UnknownStrategy", "get_strategy"]


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
