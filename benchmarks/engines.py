"""The engines that `benchmarks.backends` compares, each on servers of its own that end with it.

They are started by the same code as the tests' (see `tests/locking`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from config import embedded
from tests.locking.backends.queue.ensembles.servers import (
    MISSING_ETCD,
    MISSING_ZOOKEEPER,
    Ensemble,
    Etcd,
    ZooKeeper,
    no_etcd,
    no_zookeeper,
    running,
)
from tests.locking.backends.redis.topologies.servers import Cluster, Service, servers
from tests.locking.support.mariadb import MISSING as MISSING_MARIADB
from tests.locking.support.mariadb import programs, running_mariadb

REDIS = "locking.backends.redis.RedisBackend"
DATABASE = "locking.backends.database.DatabaseBackend"
PLACE = "locks"


class Running(NamedTuple):
    """An engine that runs.

    Attributes:
        entry: for LOCKING. database: for DATABASES, or None.
        kill: ends the server that matters most to the lock `name`; None where there is only one, or none.
    """

    entry: dict[str, Any]
    database: dict[str, Any] | None = None
    kill: Callable[[], None] | None = None
    name: str = "after"


@dataclass(frozen=True)
class Engine:
    """One row of the table.

    Attributes:
        name: how the table calls it. needs: what it takes to run it, in words.
        start: a context manager that runs it in a folder. missing: says why it can't run here, or "".
    """

    name: str
    needs: str
    start: Callable[[Path], AbstractContextManager[Running]]
    missing: Callable[[], str] = str


@contextmanager
def _memory(folder: Path) -> Iterator[Running]:
    yield Running({"BACKEND": "locking.backends.memory.MemoryBackend"})


@contextmanager
def _redis(folder: Path) -> Iterator[Running]:
    with servers(folder) as start:
        yield Running({"BACKEND": REDIS, "LOCATION": start().url})


@contextmanager
def _cluster(folder: Path) -> Iterator[Running]:
    with servers(folder) as start:
        cluster = Cluster(start)
        yield Running(
            {"BACKEND": REDIS, "LOCATION": [f"redis://127.0.0.1:{node.port}" for node in cluster.nodes]},
            kill=cluster.masters[0].kill,  # the one that has a replica
            name=cluster.name_in(cluster.masters[0], "after"),
        )


@contextmanager
def _sentinel(folder: Path) -> Iterator[Running]:
    with servers(folder / "servers") as start:
        service = Service(folder, start)
        try:
            yield Running({"BACKEND": REDIS, "LOCATION": service.location}, kill=service.master.kill)
        finally:
            service.stop()


@contextmanager
def _redlock(folder: Path, number: int) -> Iterator[Running]:
    with servers(folder) as start:
        nodes = [start() for _ in range(number)]
        entry = {
            "BACKEND": "locking.backends.redlock.RedlockBackend",
            "LOCATION": [node.url for node in nodes],
        }
        yield Running(entry, kill=nodes[0].kill)


@contextmanager
def _postgresql(folder: Path, backend: str) -> Iterator[Running]:
    database = dict(embedded.database())
    server = f"host={database['HOST']} port={database['PORT']} user={database['USER']} dbname=postgres"
    name = "holdfast_bench_locks"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {name}")
        try:
            yield Running(_placed(backend), {**database, "NAME": name})
        finally:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def _mariadb(folder: Path) -> Iterator[Running]:
    import pymysql

    pymysql.install_as_MySQLdb()
    with running_mariadb() as socket:
        yield Running(
            _placed(DATABASE),
            {"ENGINE": "django.db.backends.mysql", "NAME": "holdfast", "USER": "root", "HOST": socket},
        )


@contextmanager
def _sqlite(folder: Path) -> Iterator[Running]:
    yield Running(
        _placed(DATABASE), {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "locks.sqlite3")}
    )


def _placed(backend: str) -> dict[str, Any]:
    return {"BACKEND": backend, "OPTIONS": {"using": PLACE}}


@contextmanager
def _ensemble(folder: Path, make: Callable[[Path, int], Ensemble], backend: str) -> Iterator[Running]:
    with running(partial(make, folder, 3)) as three:
        entry = {"BACKEND": backend, "LOCATION": three.location}  # type: ignore[attr-defined]
        yield Running(entry, kill=lambda: three.leader().kill())


def _unless(missing: Callable[[], object], reason: str) -> Callable[[], str]:
    return lambda: reason if missing() else ""


ZOO = "locking.backends.zookeeper.ZooKeeperBackend"
ETCD = "locking.backends.etcd.EtcdBackend"
ADVISORY = "locking.backends.database.AdvisoryLockBackend"

ENGINES = [
    Engine("redis", "one Redis", _redis),
    Engine("redis-sentinel", "Redis, a replica, 3 Sentinels", _sentinel),
    Engine("redis-cluster", "3 masters and a replica each to fail over", _cluster),
    Engine("redlock-3", "3 independent Redis", partial(_redlock, number=3)),
    Engine("redlock-5", "5 independent Redis", partial(_redlock, number=5)),
    Engine("database-postgresql", "your PostgreSQL", partial(_postgresql, backend=DATABASE)),
    Engine(
        "database-advisory", "your PostgreSQL, a connection a hold", partial(_postgresql, backend=ADVISORY)
    ),
    Engine(
        "database-mariadb",
        "your MariaDB (here without flushing)",
        _mariadb,
        _unless(lambda: not programs(), MISSING_MARIADB),
    ),
    Engine("database-sqlite", "a file", _sqlite),
    Engine(
        "zookeeper-3",
        "3 ZooKeepers",
        partial(_ensemble, make=ZooKeeper, backend=ZOO),
        _unless(no_zookeeper, MISSING_ZOOKEEPER),
    ),
    Engine("etcd-3", "3 etcds", partial(_ensemble, make=Etcd, backend=ETCD), _unless(no_etcd, MISSING_ETCD)),
    Engine("memory", "nothing; one process only", _memory),
]


@contextmanager
def started(engine: Engine) -> Iterator[Running]:
    """Run `engine` in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as folder,
        engine.start(Path(folder)) as running_engine,
    ):
        yield running_engine
