"""Ensembles of three that the tests of this folder share; each test finds them whole."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.backends import ETCD, ZOOKEEPER
from tests.locking.backends.queue.ensembles.servers import (
    MISSING_ETCD,
    MISSING_ZOOKEEPER,
    Ensemble,
    Etcd,
    ZooKeeper,
    no_etcd,
    no_zookeeper,
    running,
    serves,
    until,
)

KINDS = {
    "zookeeper": (ZooKeeper, ZOOKEEPER, no_zookeeper, MISSING_ZOOKEEPER),
    "etcd": (Etcd, ETCD, no_etcd, MISSING_ETCD),
}
SESSION = 20.0
"""Seconds of a ZooKeeper session here: two thirds of them are longer than an election on a busy machine."""
TIMEOUT = 10.0
"""Seconds of a request to ZooKeeper, which may come in the middle of an election."""


@pytest.fixture(scope="package", params=list(KINDS))
def shared_ensemble(request, tmp_path_factory) -> Iterator[tuple[str, Ensemble]]:
    """Three servers of one sort."""
    make, backend, missing, reason = KINDS[request.param]
    if missing():
        pytest.skip(reason)
    with running(partial(make, tmp_path_factory.mktemp(request.param), 3)) as ensemble:
        yield backend, ensemble


@pytest.fixture
def ensemble(shared_ensemble, settings):
    """Three servers, all there, and `LOCKING` on them."""
    backend, three = shared_ensemble
    three.restore()
    options = {"session_timeout": SESSION, "timeout": TIMEOUT} if backend == ZOOKEEPER else {}
    settings.LOCKING = {
        "default": {"BACKEND": backend, "LOCATION": three.location, "TTL": 20, "WAIT": 60, "OPTIONS": options}
    }
    until(serves, "the ensemble serves")  # a restored ensemble elects first
    return three
