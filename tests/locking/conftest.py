"""Fixtures of the tests of `locking`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.core.lease import SingleLease
from tests.lock_fixtures import *  # noqa: F403
from tests.locking.support.engines import *  # noqa: F403
from tests.locking.support.fenced_databases import Database, registered, settings_of
from tests.locking.support.helpers import committed
from tests.locking.support.liveness_fixtures import *  # noqa: F403
from tests.locking.support.mariadb import MISSING, programs, running_mariadb


@pytest.fixture
def at_release(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What another connection sees at the very moment at which each lock is let go."""
    seen: list[list[str]] = []
    release = SingleLease.release

    def spy(lease: SingleLease) -> None:
        seen.append(committed())
        release(lease)

    monkeypatch.setattr(SingleLease, "release", spy)
    return seen


@pytest.fixture
def second_database(transactional_db: None) -> Iterator[str]:
    """A second alias, on the same server."""
    second = connections["default"].copy("second")
    second.connect()  # before it is registered: tests may not connect to an alias that isn't theirs
    connections.settings["second"] = second.settings_dict
    connections["second"] = second
    yield "second"
    second.close()
    del connections["second"]
    del connections.settings["second"]


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch, transactional_db: None) -> None:
    """Every view runs in a transaction of its own, as many projects have it."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def backend_down(settings: Any) -> str:
    """An alias whose Redis doesn't answer."""
    down: dict[str, Any] = {
        "BACKEND": "locking.backends.redis.RedisBackend",
        "LOCATION": "unix:///nowhere/redis.sock",
    }
    settings.LOCKING = {**settings.LOCKING, "down": down}
    return "down"


@pytest.fixture(scope="session")
def mariadb_socket() -> Iterator[str]:
    """The socket of a private MariaDB."""
    if programs() is None:
        pytest.skip(MISSING)
    pymysql.install_as_MySQLdb()
    with running_mariadb() as socket:
        yield socket


@pytest.fixture(scope="session")
def connect(django_db_blocker: Any) -> Callable[[BaseDatabaseWrapper], None]:
    """What opens a connection, as it is before a test case forbids every alias that it doesn't know."""
    with django_db_blocker.unblock():
        return BaseDatabaseWrapper.ensure_connection


@pytest.fixture
def fenced_database(
    request: pytest.FixtureRequest,
    transactional_db: None,
    connect: Callable[[BaseDatabaseWrapper], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[str]:
    """The alias of the database that the test's parameter describes."""
    database: Database = request.param
    socket = request.getfixturevalue("mariadb_socket") if database.vendor == "mariadb" else None
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", connect)
    with registered(settings_of(database, tmp_path, socket)) as alias:
        yield alias
