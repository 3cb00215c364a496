"""What tests of the lock share: a server to torment, a proxy before it, locks on either."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test.utils import override_settings

from locking.core.lease import HOLDS
from locking.core.pending_release import release_retrier
from locking.inspection.heartbeat import WAITS
from locking.utils import clock
from tests.backends import MEMORY, REDIS
from tests.private_redis import PrivateRedis, private_redis
from tests.proxy import Proxy, proxy_to


@pytest.fixture(autouse=True)
def nothing_of_other_tests() -> Iterator[None]:
    """Let no pending release of one test reach the next, no lease that its traceback keeps alive, and no wait
    of a thread that a mutant has left waiting: heartbeats would publish it.
    """
    HOLDS.clear()  # of tests elsewhere, which need no such fixture
    WAITS.clear()
    yield
    release_retrier.reset()
    HOLDS.clear()


class TurnedClock:
    """The local clock of `locking`: it goes on by itself, and further when it is turned.

    It turns what this process counts: leases, watchdogs, the locks in memory. A server has its own clock, and
    a thread that sleeps already isn't woken.
    """

    def __init__(self) -> None:
        self._read, self._ahead = clock._read, 0.0

    def __call__(self) -> float:
        return self._read() + self._ahead

    def advance(self, seconds: float) -> None:
        """Turn it."""
        self._ahead += seconds


@pytest.fixture
def turned_clock(monkeypatch: pytest.MonkeyPatch) -> TurnedClock:
    """The clock of `locking` for the test to turn, instead of waiting for a lease to end."""
    turned = TurnedClock()
    monkeypatch.setattr(clock, "_read", turned)
    return turned


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

PATIENCE = 30.0
"""Seconds in which a server that lives has answered, however late; a test that freezes it names its own."""


@pytest.fixture
def locks_on() -> Iterator[LocksOn]:
    """Call it with a URL (and redis-py's options) to lock there for the rest of the test."""
    enabled: list[Any] = []

    def locks_on(url: str, **options: Any) -> None:
        options.setdefault("socket_timeout", PATIENCE)
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
