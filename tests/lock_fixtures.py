"""What tests of the lock share: a server to torment, a proxy before it, locks on either."""

import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.test.utils import override_settings

from locking.backends.zookeeper.session import end_all_sessions
from locking.lease import HOLDS
from locking.renewal import watchdog
from tests.backends import MEMORY, REDIS
from tests.locking.ensembles.servers import (
    MISSING_ETCD,
    MISSING_ZOOKEEPER,
    Etcd,
    ZooKeeper,
    no_etcd,
    no_zookeeper,
    running,
)
from tests.private_redis import PrivateRedis, private_redis
from tests.proxy import Proxy, proxy_to


@pytest.fixture(autouse=True)
def nothing_of_other_tests() -> Iterator[None]:
    """Let no burial begun by one test, and no lease that its traceback keeps alive, reach into the next."""
    yield
    watchdog._ghosts.clear()
    HOLDS.clear()


@pytest.fixture(scope="session")
def zookeeper_location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a ZooKeeper server for the whole run."""
    if no_zookeeper():
        pytest.skip(MISSING_ZOOKEEPER)
    with running(partial(ZooKeeper, tmp_path_factory.mktemp("zookeeper"))) as server:
        yield server.location
        end_all_sessions()  # of backends that tests left behind with holds


@pytest.fixture
def zookeeper_room(zookeeper_location: str) -> dict[str, Any]:
    """Settings of an empty folder there."""
    return {"LOCATION": f"{zookeeper_location}/{secrets.token_hex(4)}"}


@pytest.fixture
def etcd_room(etcd_location: list[str]) -> dict[str, Any]:
    """Settings of a prefix there that nobody uses."""
    return {"LOCATION": etcd_location, "OPTIONS": {"prefix": f"{secrets.token_hex(4)}/"}}


@pytest.fixture(scope="session")
def etcd_location(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The address of an etcd server for the whole run."""
    if no_etcd():
        pytest.skip(MISSING_ETCD)
    with running(partial(Etcd, tmp_path_factory.mktemp("etcd"))) as server:
        yield server.location


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[PrivateRedis]:
    """A server for the whole run."""
    with private_redis() as server:
        yield server


@pytest.fixture
def own_redis(shared_redis: PrivateRedis) -> Iterator[PrivateRedis]:
    """A Redis server that tests may pause and flush; each finds it empty and awake."""
    shared_redis.client.flushall()
    yield shared_redis
    shared_redis.resume()


@pytest.fixture
def proxy(own_redis: PrivateRedis) -> Iterator[Proxy]:
    """A proxy in front of `own_redis`."""
    with proxy_to(own_redis.path) as made:
        yield made


LocksOn = Callable[..., None]


@pytest.fixture
def locks_on() -> Iterator[LocksOn]:
    """Call it with a URL (and redis-py's options) to lock there for the rest of the test."""
    enabled: list[Any] = []

    def locks_on(url: str, **options: Any) -> None:
        options.setdefault("socket_timeout", 0.25)
        entry = {"BACKEND": REDIS, "LOCATION": url, "OPTIONS": options}
        enabled.append(override_settings(LOCKING={"default": entry}))
        enabled[-1].enable()

    yield locks_on
    for each in reversed(enabled):
        each.disable()


@pytest.fixture
def memory_locks() -> Iterator[None]:
    """Locks in memory for the test."""
    from locking.testing import override_locks

    with override_settings(LOCKING={"default": {"BACKEND": MEMORY}}), override_locks():
        yield
