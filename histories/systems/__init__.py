"""The systems whose locks are judged."""

from histories.systems.base import LEASE, Abilities, System
from histories.systems.ensembles import Etcd, ZooKeeper
from histories.systems.postgres import Advisory, Database, PostgresServer, RowLock, entry
from histories.systems.redis import Alone, Cluster, Guarded, Redlock, Sentinel

SYSTEMS: dict[str, type[System]] = {
    "redis": Alone,
    "sentinel": Sentinel,
    "guarded": Guarded,
    "cluster": Cluster,
    "redlock": Redlock,
    "advisory": Advisory,
    "rows": Database,
    "rowlock": RowLock,
    "zookeeper": ZooKeeper,
    "etcd": Etcd,
}

__all__ = ["LEASE", "SYSTEMS", "Abilities", "PostgresServer", "System", "entry"]
