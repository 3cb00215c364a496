"""ZooKeeper, etcd and Redlock's servers for the whole run: the first test that needs one starts it."""

import secrets
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.locking.backends.queue.ensembles.servers import (
    MISSING_ETCD,
    MISSING_ZOOKEEPER,
    Etcd,
    ZooKeeper,
    end_sessions,
    no_etcd,
    no_zookeeper,
    running,
)
from tests.locking.backends.redis.topologies.servers import servers


@pytest.fixture(scope="session")
def zookeeper_location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a ZooKeeper server for the whole run."""
    if no_zookeeper():
        pytest.skip(MISSING_ZOOKEEPER)
    with running(partial(ZooKeeper, tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server.location
        end_sessions()


@pytest.fixture
def zookeeper_settings(zookeeper_location: str) -> dict[str, Any]:
    """Settings of an empty folder there."""
    return {"LOCATION": f"{zookeeper_location}/{secrets.token_hex(4)}"}


@pytest.fixture
def etcd_settings(etcd_location: list[str]) -> dict[str, Any]:
    """Settings of a prefix there that no other test uses."""
    return {"LOCATION": etcd_location, "OPTIONS": {"prefix": f"{secrets.token_hex(4)}/"}}


@pytest.fixture(scope="session")
def etcd_location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The address of an etcd server for the whole run."""
    if no_etcd():
        pytest.skip(MISSING_ETCD)
    with running(partial(Etcd, tmp_path_factory.mktemp("etcd"))) as server:
        yield server.location


@pytest.fixture(scope="session")
def redlock_location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Five Redis servers that know nothing of each other."""
    with servers(tmp_path_factory.mktemp("redlock")) as start:
        yield [start().url for _ in range(5)]
