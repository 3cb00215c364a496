"""Servers for the contract, started once a session: databases of the locks' own, a cluster, a service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections

from locking.models import Fence, LockRow, ProcessRow
from tests.locking.backends.redis.topologies.servers import Cluster, Service, servers
from tests.locking.support.mariadb import MISSING, programs

Entry = dict[str, Any]

NOWHERE = {"HOST": "/nowhere", "NAME": "nowhere"}
MYSQL = {"ENGINE": "django.db.backends.mysql", "PORT": "", "USER": "root", "PASSWORD": "", "OPTIONS": {}}


@contextmanager
def database(blocker: Any, alias: str, settings: dict[str, Any]) -> Iterator[Entry]:
    """Register a database with the tables of locks, and yield the rest of an entry in LOCKING."""
    connections.settings[alias] = {**connections.settings["default"], **settings}
    with blocker.unblock(), connections[alias].schema_editor() as editor:
        editor.create_model(LockRow)
        editor.create_model(ProcessRow)
        editor.create_model(Fence)
    connections[alias].close()
    try:
        yield {"OPTIONS": {"using": alias}}
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@pytest.fixture(scope="session")
def postgresql_locks(django_db_blocker: Any) -> Iterator[Entry]:
    """A database of its own on the tests' server: no test database, so connections to it are kept."""
    default = connections["default"].settings_dict
    name = f"holdfast_locks_{os.getpid()}"  # several workers, and two runs of one checkout, may overlap
    server = connections["default"].get_connection_params() | {"dbname": "postgres"}
    address = {key: server[key] for key in ("host", "port", "user", "password", "dbname") if key in server}
    with psycopg.connect(**address, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.execute(f'CREATE DATABASE "{name}"')
        with database(django_db_blocker, "locks", {**default, "NAME": name}) as entry:
            yield entry
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def mariadb_locks(django_db_blocker: Any, request: pytest.FixtureRequest) -> Iterator[Entry]:
    """The session's MariaDB."""
    if programs() is None:
        pytest.skip(MISSING)
    settings = {**MYSQL, "NAME": "holdfast", "HOST": request.getfixturevalue("mariadb_socket")}
    with database(django_db_blocker, "mariadb_locks", settings) as entry:
        yield entry
        with django_db_blocker.unblock(), connections["mariadb_locks"].cursor() as cursor:
            cursor.execute("DROP TABLE locking_row, locking_process, locking_fence")
        connections["mariadb_locks"].close()


@pytest.fixture(scope="session")
def sqlite_locks(django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entry]:
    """A file."""
    path: Path = tmp_path_factory.mktemp("sqlite") / "locks.sqlite3"
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {}}
    with database(django_db_blocker, "sqlite_locks", settings) as entry:
        yield entry


@pytest.fixture
def nowhere() -> Iterator[None]:
    """Aliases of servers that aren't there."""
    default = connections.settings["default"]
    away = {
        "nowhere": {**default, **NOWHERE},
        "nowhere-mysql": {**default, **MYSQL, "HOST": "127.0.0.1", "PORT": "1"},
    }
    connections.settings.update(away)
    yield
    for alias in away:
        del connections.settings[alias]


@pytest.fixture(scope="session")
def cluster_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entry]:
    """Three masters and a replica."""
    with servers(tmp_path_factory.mktemp("contract-cluster")) as start:
        yield {"LOCATION": Cluster(start, cluster_node_timeout=15_000).location}  # none of them dies


@pytest.fixture(scope="session")
def redlock_locks(redlock_location: list[str]) -> Entry:
    """Servers that know nothing of each other."""
    return {"LOCATION": redlock_location}


@pytest.fixture(scope="session")
def sentinel_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entry]:
    """A master, its replica and three Sentinels."""
    folder = tmp_path_factory.mktemp("contract-sentinel")
    with servers(folder / "servers") as start:
        service = Service(folder, start)
        try:
            yield {"LOCATION": service.location}
        finally:
            service.stop()
