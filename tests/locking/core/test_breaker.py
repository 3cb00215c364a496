"""While a server is silent acquisitions are refused at once; the first answer ends it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from locking import BackendUnavailable, LockNotAcquired, distributed_lock, get_lock
from locking.backends.base import Busy
from locking.backends.database.connection_pool import NoConnection
from locking.core import waits as module
from locking.core.handler import locks
from locking.core.pending_release import release_retrier
from locking.core.waits import breaker
from locking.signals import LockEvent, Observer
from tests.lock_fixtures import TurnedClock
from tests.locking.backends.queue.ensembles.servers import Etcd, ZooKeeper, no_etcd, no_zookeeper, running
from tests.locking.support.engines import database
from tests.locking.support.helpers import elsewhere
from tests.locking.support.observing import observed_by
from tests.locking.support.private_databases import private_mariadb, private_postgresql
from tests.private_redis import private_redis
from tests.support.processes import until


@distributed_lock(key="'order:'+<order_id>", backend="silent", atomic=False, wait=0)
def view(request: HttpRequest, order_id: int) -> HttpResponse:
    """Answer under a lock of the server that is frozen."""
    return HttpResponse("done")


class Engine(NamedTuple):
    """An entry of LOCKING and the servers behind it."""

    entry: dict[str, Any]
    servers: list[Any]


@pytest.fixture(
    params=["redis", "redlock", "etcd", "zookeeper", "database-postgresql", "advisory", "database-mariadb"]
)
def engine(
    request: pytest.FixtureRequest, tmp_path: Path, settings: Any, django_db_blocker: Any
) -> Iterator[Engine]:
    """An engine whose servers can be frozen, as the alias `silent`."""
    if (request.param, True) in (("etcd", no_etcd()), ("zookeeper", no_zookeeper())):
        pytest.skip(f"no {request.param} here")
    with ExitStack() as stack:
        if request.param in ("etcd", "zookeeper"):
            kind: Any = {"etcd": Etcd, "zookeeper": ZooKeeper}[request.param]
            server = stack.enter_context(running(partial(kind, tmp_path)))
            made = Engine({"BACKEND": BACKENDS[request.param], "LOCATION": server.location}, server.servers)
        elif request.param in ("database-postgresql", "advisory", "database-mariadb"):
            started = private_mariadb if "mariadb" in request.param else private_postgresql
            database_server = stack.enter_context(started())
            entry = stack.enter_context(database(django_db_blocker, "frozen", database_server.entry))
            stack.enter_context(django_db_blocker.unblock())
            made = Engine({"BACKEND": BACKENDS[request.param], **entry}, [database_server])
        else:
            redis = [
                stack.enter_context(private_redis()) for _ in range(3 if request.param == "redlock" else 1)
            ]
            urls = [server.url for server in redis]
            location = urls if request.param == "redlock" else urls[0]
            made = Engine({"BACKEND": BACKENDS[request.param], "LOCATION": location}, redis)
        settings.LOCKING = {**settings.LOCKING, "silent": made.entry}
        try:
            yield made
        finally:
            for server in made.servers:
                server.resume()
            # A release that is tried later would open a connection that nothing closes.
            until(lambda: not release_retrier._queues, "what was left to be released is released")
            locks["silent"].close()


BACKENDS = {
    "redis": "locking.backends.redis.RedisBackend",
    "redlock": "locking.backends.redlock.RedlockBackend",
    "etcd": "locking.backends.etcd.EtcdBackend",
    "zookeeper": "locking.backends.zookeeper.ZooKeeperBackend",
    "database-postgresql": "locking.backends.database.DatabaseBackend",
    "advisory": "locking.backends.database.AdvisoryLockBackend",
    "database-mariadb": "locking.backends.database.DatabaseBackend",
}


def asked(order_id: int) -> tuple[int, float]:
    """Return the status of a request and the seconds that it took."""
    begun = time.monotonic()
    response = view(RequestFactory().get("/"), order_id)
    assert response.status_code == 200 or response["Retry-After"]
    return response.status_code, time.monotonic() - begun


@pytest.fixture
def tries(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names with which the engine was asked for a lock."""
    names: list[str] = []
    backend = locks["silent"]
    waiter_of = backend.waiter

    def waiter(key: str, *arguments: Any, **options: Any) -> Any:
        names.append(key)
        return waiter_of(key, *arguments, **options)

    monkeypatch.setattr(backend, "waiter", waiter)
    return names


@pytest.mark.whole
def test_a_frozen_server_holds_up_two_requests_and_then_one_a_second(
    engine: Engine, tries: list[str], turned_clock: TurnedClock
) -> None:
    """Of 200 the others ask no server, and are refused within 50 ms; thawed, it serves after the pause."""
    assert asked(0)[0] == 200
    for server in engine.servers:
        server.pause()
    answers, begun = [asked(0), asked(1)], time.monotonic()
    tries.clear()
    answers += [asked(order_id) for order_id in range(198)]
    assert len(tries) <= 1 + (time.monotonic() - begun) / module.PAUSE
    assert {status for status, _ in answers} == {503}
    assert median(seconds for _, seconds in answers[2:]) < 0.05
    for server in engine.servers:
        server.resume()
    tries.clear()
    turned_clock.advance(module.PAUSE)
    assert asked(1)[0] == 200
    assert len(tries) == 1


# --- step by step ------------------------------------------------------------------------------------------


class Server:
    """Wraps the memory backend: it answers, or is silent for five seconds of a turned clock."""

    def __init__(self, clock: TurnedClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.silent, self.asked, self.during = False, 0, list[Callable[[], object]]()
        self.backend = locks["default"]
        waiter_of = self.backend.waiter

        def waiter(*arguments: Any, **options: Any) -> Any:
            self.asked += 1
            made = waiter_of(*arguments, **options)
            if self.silent:
                made.try_acquire = self.time_out  # type: ignore[method-assign]
            return made

        self._clock = clock
        monkeypatch.setattr(self.backend, "waiter", waiter)

    def time_out(self, *, queue: bool) -> Busy:
        self._clock.advance(5)
        for step in self.during:
            step()
        raise BackendUnavailable("no answer")


@pytest.fixture
def server(memory_locks: None, turned_clock: TurnedClock, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server of the default alias."""
    return Server(turned_clock, monkeypatch)


class Heard(Observer):
    """Notes the outcomes of events."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def happened(self, event: LockEvent) -> None:
        self.outcomes.append(event.outcome)


def refused(name: str = "order:7") -> BackendUnavailable:
    """Return the error of an acquisition."""
    with pytest.raises(BackendUnavailable) as caught:
        get_lock(name).acquire(wait=0)
    return caught.value


def test_after_a_time_out_nothing_is_sent(server: Server, turned_clock: TurnedClock) -> None:
    """Until the pause is over; the error says so, and that nothing may come of it later."""
    server.silent = True
    assert refused().sent
    error = refused("another")
    assert "did not answer lately, so nothing was sent to it" in str(error)
    assert not error.sent
    assert server.asked == 1
    turned_clock.advance(module.PAUSE)
    assert refused().sent
    assert server.asked == 2


def test_one_at_a_time_is_let_through(server: Server, turned_clock: TurnedClock) -> None:
    """While it waits for its answer all others are refused, however long that takes."""
    server.silent = True
    refused()
    turned_clock.advance(module.PAUSE)
    others: list[BackendUnavailable] = []
    server.during.append(lambda: others.append(elsewhere(refused)))
    refused()
    assert [error.sent for error in others] == [False]
    assert server.asked == 2


@pytest.mark.parametrize("answer", ["granted", "busy"])
def test_any_answer_ends_it(server: Server, turned_clock: TurnedClock, answer: str) -> None:
    """Also that another has the lock."""
    lease = elsewhere(get_lock("order:7").acquire) if answer == "busy" else None
    server.silent = True
    refused("another")
    server.silent = False
    turned_clock.advance(module.PAUSE)
    if lease is None:
        get_lock("order:7").acquire(wait=0).release()
    else:
        with pytest.raises(LockNotAcquired):
            get_lock("order:7").acquire(wait=0)
    get_lock("another").acquire(wait=0).release()
    assert server.asked == 3 + bool(lease)


def test_what_is_held_is_extended_and_released_meanwhile(server: Server) -> None:
    """The breaker keeps new work away; what a holder asks is sent."""
    lease = get_lock("held", ttl=60).acquire()
    server.silent = True
    refused()
    lease.extend(90)
    lease.release()
    assert server.backend.holder("held") is None


def test_a_port_that_is_closed_refuses_no_request(server: Server, turned_clock: TurnedClock) -> None:
    """A failure that comes at once keeps no thread, so the next one asks again: a restart is over sooner."""
    server.silent = True
    turned_clock.advance = lambda seconds: None  # type: ignore[method-assign]
    assert refused().sent
    assert refused().sent


def test_a_connection_that_this_process_lacks_refuses_no_other(server: Server) -> None:
    """The server isn't silent where a pool is used up: others may have a connection."""
    server.silent = True
    server.during.append(raise_no_connection)
    assert refused().sent is False
    server.during.clear()
    assert refused().sent


def raise_no_connection() -> None:
    raise NoConnection("all are in use")


def test_the_log_says_it_once_and_each_refusal_is_counted(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Observers, and so the metrics, hear of each as of an outage."""
    server.silent = True
    with observed_by(Heard()) as observer, caplog.at_level(logging.ERROR, "locking.core.waits"):
        for _ in range(9):
            refused()
    assert observer.outcomes == ["unavailable"] * 9
    assert [record.message for record in caplog.records if record.name == "locking.core.waits"] == [
        "the lock backend 'default' is silent: acquisitions fail at once, but for one per 1 s that tries"
    ]


def test_a_forked_child_knows_of_no_silent_server(server: Server) -> None:
    """It finds out by itself."""
    server.silent = True
    refused()
    breaker.reset()
    assert refused().sent
