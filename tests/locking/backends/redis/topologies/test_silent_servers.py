"""The breaker for threads and tasks, on one server, behind Sentinels and in a cluster."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from locking import BackendUnavailable, get_lock
from locking.core import waits
from locking.core.handler import locks
from tests.lock_fixtures import TurnedClock
from tests.locking.backends.redis.topologies.servers import (
    Cluster,
    Server,
    Service,
    until,
)

TIMEOUT = 0.4
AT_ONCE = 0.2
CALLERS = 20
OPTIONS = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}


def by_threads(name: str) -> None:
    """Acquire and release."""
    get_lock(name, ttl=20, wait=0).acquire().release()


async def by_tasks(name: str) -> None:
    """Acquire and release."""
    await (await get_lock(name, ttl=20, wait=0).aacquire()).arelease()


@pytest.fixture(params=["threads", "asyncio"])
def ask_all(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[Any]]]:
    """Callers that lock these names at the same time: (seconds, the error or None) of each."""

    def timed(name: str) -> Any:
        begun, error = time.monotonic(), None
        try:
            by_threads(name)
        except BackendUnavailable as caught:
            error = caught
        return time.monotonic() - begun, error

    async def atimed(name: str) -> Any:
        begun, error = time.monotonic(), None
        try:
            await by_tasks(name)
        except BackendUnavailable as caught:
            error = caught
        return time.monotonic() - begun, error

    async def gathered(names: Any) -> list[Any]:
        return await asyncio.gather(*map(atimed, names))

    if request.param == "threads":
        with ThreadPoolExecutor(CALLERS) as pool:
            yield lambda *names: list(pool.map(timed, names))
    else:
        with asyncio.Runner() as runner:
            yield lambda *names: runner.run(gathered(names))


@pytest.fixture(params=["one server", "sentinel", "cluster"])
def frozen(
    request: pytest.FixtureRequest, start: Callable[..., Server], tmp_path: Path, settings: Any
) -> Iterator[Any]:
    """A server that is frozen in the test, names that it has, and a name that another server has."""
    location: str | list[str]
    service = Service(tmp_path, start) if request.param == "sentinel" else None
    if request.param == "cluster":
        cluster = Cluster(start, cluster_node_timeout=30_000)
        server, location = cluster.masters[1], cluster.location
        names = [name for i in range(200) if cluster.owner(name := f"a:{i}") is server][:CALLERS]
        other = cluster.name_in(cluster.masters[2], "b")
    else:
        server = service.master if service else start()
        location, other = service.location if service else server.url, None
        names = [f"a:{i}" for i in range(CALLERS)]
    settings.LOCKING = {"default": {"LOCATION": location, "OPTIONS": OPTIONS}}
    yield server, names, other
    server.resume()
    locks["default"].close()
    if service:
        service.stop()


def test_one_request_at_a_time_tries_a_frozen_server(
    ask_all: Callable[..., list[Any]],
    frozen: Any,
    turned_clock: TurnedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a time-out others are refused at once; thawed, it serves; its neighbors serve all the while."""
    server, names, other = frozen
    until(lambda: [error for _, error in ask_all(*names)] == [None] * CALLERS, "a server that keeps up")
    monkeypatch.setattr(waits, "PAUSE", 60.0)  # no machine is so slow that all this takes as long
    server.pause()
    ((waited, error),) = ask_all(names[0])
    assert waited > TIMEOUT / 2
    assert "lately" not in str(error)

    refused = [each for name in names for each in ask_all(name)]
    assert [str(error) for _, error in refused if "nothing was sent to it" not in str(error)] == []
    assert sorted(waited for waited, _ in refused)[-2] < AT_ONCE
    if other is not None:
        assert ask_all(other)[0][1] is None

    turned_clock.advance(waits.PAUSE)
    together = ask_all(*names)
    assert sum("nothing was sent to it" not in str(error) for _, error in together) == 1

    server.resume()
    turned_clock.advance(waits.PAUSE)
    assert ask_all(names[1])[0][1] is None
