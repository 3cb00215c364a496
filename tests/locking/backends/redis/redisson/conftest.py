"""Every version of Redisson on every topology; starting them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.locking.backends.redis.redisson.harness import VERSIONS, Java
from tests.locking.backends.redis.redisson.sites import CallSite
from tests.locking.backends.redis.topologies.servers import Cluster, Server, servers


@pytest.fixture(scope="package")
def single(tmp_path_factory) -> Iterator[Server]:
    """One server."""
    with servers(tmp_path_factory.mktemp("single")) as start:
        yield start()


@pytest.fixture(scope="package")
def whole(tmp_path_factory) -> Iterator[Cluster]:
    """A cluster of Redis 7, on which Redisson listens by SSUBSCRIBE."""
    with servers(tmp_path_factory.mktemp("cluster")) as start:
        yield Cluster(start)


OLDEST, MIDDLE, NEWEST = VERSIONS
SITES = [(OLDEST, "single"), (MIDDLE, "whole"), (NEWEST, "single"), (NEWEST, "whole")]


@pytest.fixture(scope="package", params=SITES, ids="-".join)
def shared_site(request, tmp_path_factory) -> Iterator[CallSite]:
    """A client of one version on one topology."""
    version, topology = request.param
    at = request.getfixturevalue(topology)
    nodes = [at] if topology == "single" else at.masters
    urls = [f"redis://127.0.0.1:{node.port}" for node in nodes]
    log = tmp_path_factory.mktemp("java") / "log"
    java = Java(version, urls, log)
    yield CallSite(urls[0] if topology == "single" else urls, urls, nodes, version, log, java)
    java.kill()


@pytest.fixture
def site(shared_site: CallSite, settings) -> CallSite:
    """The same, empty and with no listener of the test before, with `LOCKING` on its servers."""
    shared_site.until_silent()
    for node in shared_site.nodes:
        node.ask("FLUSHALL")
    settings.LOCKING = {
        "default": {"LOCATION": shared_site.location, "KEY_PREFIX": "", "TTL": 60, "WAIT": 60}
    }
    return shared_site
