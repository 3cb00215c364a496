"""The backends under test, in one table: a new one is an entry here, and its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from django.utils.module_loading import import_string

from locking.core.handler import locks


@dataclass(frozen=True)
class Backend:
    """One row: how to reach it, and how to miss it.

    Attributes:
        settings: its entry in LOCKING, as far as it is known before its servers run.
        unreachable: the same without a server.
        shortest_ttl: seconds of the shortest lease that the engine keeps exactly.
        fixture: what starts the servers (`tests/locking/support/engines.py`); it returns the other settings.
    """

    settings: Mapping[str, Any]
    unreachable: Mapping[str, Any] | None = None
    shortest_ttl: float = 0.05
    fixture: str | None = None

    def reached(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Return the settings, once its servers run: the fixture starts them, or skips, and says the rest."""
        if self.fixture is None:
            return dict(self.settings)
        found = request.getfixturevalue(self.fixture)
        options = {**self.settings.get("OPTIONS", {}), **found.get("OPTIONS", {})}
        return {**self.settings, **found, "OPTIONS": options}


REDIS = "locking.backends.redis.RedisBackend"
MEMORY = "locking.backends.memory.MemoryBackend"
ZOOKEEPER = "locking.backends.zookeeper.ZooKeeperBackend"
ETCD = "locking.backends.etcd.EtcdBackend"
REDLOCK = "locking.backends.redlock.RedlockBackend"
DATABASE = "locking.backends.database.DatabaseBackend"
ADVISORY = "locking.backends.database.AdvisoryLockBackend"

UNREACHABLE = "redis://127.0.0.1:1/0"

ANSWER = 20.0
"""Seconds in which a server that runs has answered, however busy the machine is."""
LATE_REPLICA = {"socket_timeout": 1.5 * ANSWER, "wait_timeout_ms": 20_000}
"""Options with which a replica may confirm a lock as late."""

BACKENDS = {
    "redis": Backend(
        settings={"BACKEND": REDIS, "CACHE": "default"},
        unreachable={"BACKEND": REDIS, "LOCATION": UNREACHABLE},
    ),
    "redis-cluster": Backend(
        settings={"BACKEND": REDIS, "OPTIONS": LATE_REPLICA},
        unreachable={"BACKEND": REDIS, "LOCATION": ["redis://127.0.0.1:1"]},
        fixture="cluster_locks",
    ),
    "redis-sentinel": Backend(
        settings={"BACKEND": REDIS, "OPTIONS": LATE_REPLICA},
        unreachable={"BACKEND": REDIS, "LOCATION": "sentinel+redis://127.0.0.1:1/locks/0"},
        fixture="sentinel_locks",
    ),
    "redlock": Backend(
        settings={"BACKEND": REDLOCK, "OPTIONS": {"node_timeout": ANSWER}},
        unreachable={"BACKEND": REDLOCK, "LOCATION": [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)]},
        shortest_ttl=1.5,  # a third of it is what a server has to answer in, on a busy machine as well
        fixture="redlock_locks",
    ),
    "database-postgresql": Backend(
        settings={"BACKEND": DATABASE},
        unreachable={"BACKEND": DATABASE, "OPTIONS": {"using": "nowhere"}},
        fixture="postgresql_locks",
    ),
    "database-mariadb": Backend(
        settings={"BACKEND": DATABASE},
        unreachable={"BACKEND": DATABASE, "OPTIONS": {"using": "nowhere-mysql"}},
        fixture="mariadb_locks",
    ),
    "database-sqlite": Backend(settings={"BACKEND": DATABASE}, fixture="sqlite_locks"),
    "database-advisory": Backend(
        settings={"BACKEND": ADVISORY},
        unreachable={"BACKEND": ADVISORY, "OPTIONS": {"using": "nowhere"}},
        fixture="postgresql_locks",
    ),
    "memory": Backend(settings={"BACKEND": MEMORY}),
    "zookeeper": Backend(
        # Long enough for a machine that is busy, short enough to wait for the end of a killed process.
        settings={"BACKEND": ZOOKEEPER, "OPTIONS": {"session_timeout": 5.0, "timeout": ANSWER}},
        unreachable={"BACKEND": ZOOKEEPER, "LOCATION": "127.0.0.1:1", "OPTIONS": {"timeout": 0.3}},
        shortest_ttl=0.3,
        fixture="zookeeper_settings",
    ),
    "etcd": Backend(
        settings={"BACKEND": ETCD, "OPTIONS": {"timeout": ANSWER}},
        unreachable={"BACKEND": ETCD, "LOCATION": "http://127.0.0.1:1"},
        shortest_ttl=0.3,
        fixture="etcd_settings",
    ),
}


def with_kind(kind: str) -> list[str]:
    """Return the rows whose engine has this kind of lock; of Redis' topologies, the single server."""
    return [
        row
        for row, backend in BACKENDS.items()
        if kind in getattr(import_string(backend.settings["BACKEND"]), "kinds", ())
        and not row.startswith("redis-")
    ]


def any_engine(alias: str = "default") -> Any:
    """Return a backend without its type: a test may ask of it what only some engines can."""
    return locks[alias]
