"""The servers that the tests of a topology share; starting them takes seconds."""

from collections.abc import Callable, Iterator

import pytest

from tests.locking.backends.redis.topologies.servers import Cluster, Server, Service, servers


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Server]]:
    """Start servers that end with the test."""
    with servers(tmp_path / "servers") as starter:
        yield starter


@pytest.fixture(scope="package")
def shared_cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A cluster that every test leaves whole."""
    with servers(tmp_path_factory.mktemp("cluster")) as starter:
        yield Cluster(starter)


@pytest.fixture
def cluster(shared_cluster: Cluster, settings) -> Cluster:
    """A whole, empty cluster, and `LOCKING` on it."""
    for node in shared_cluster.masters:
        node.ask("FLUSHALL")
    settings.LOCKING = {"default": {"LOCATION": shared_cluster.location, "WAIT": 10, "TTL": 20}}
    return shared_cluster


@pytest.fixture
def service(tmp_path, start, settings) -> Iterator[Service]:
    """A master that Sentinels watch, and `LOCKING` on it."""
    watched = Service(tmp_path, start)
    settings.LOCKING = {"default": {"LOCATION": watched.location, "WAIT": 15, "TTL": 20}}
    yield watched
    watched.stop()
