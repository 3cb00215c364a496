"""What every test shares: a database on the real PostgreSQL, an empty Redis database, repeatable examples."""

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.utils import translation
from hypothesis import settings as hypothesis_settings

from config.coordination import ETCD, REDLOCK, ZOOKEEPER, lock_aliases
from config.selling import selling_strategies
from tests.coordination import (
    etcd_location,
    etcd_settings,
    redlock_location,
    zookeeper_location,
    zookeeper_settings,
)
from tests.emptying import deletes, drops, renew_connections
from tests.grouping import Scheduling, place
from tests.selection import pytest_addoption, pytest_configure
from tests.serving import server
from tests.support.garbage import pytest_collection
from tests.wheels import wheel, wheel_environment

__all__ = [
    "etcd_location", "etcd_settings", "pytest_addoption", "pytest_collection", "pytest_configure",
    "redlock_location", "server", "wheel", "wheel_environment", "zookeeper_location", "zookeeper_settings",
]  # fmt: skip

# Strategies whose locks need a server that isn't always there: its variable, and the fixture that starts one.
ELSEWHERE = {
    "zookeeper_lock": (ZOOKEEPER, "zookeeper_location"),
    "etcd_lock": (ETCD, "etcd_location"),
    "redlock": (REDLOCK, "redlock_location"),
}

MARK = "holdfast:tests"  # says that a Redis database is ours to empty

# Repeatable by default, so that a failure is the change's, not the day's; HYPOTHESIS_PROFILE=explore goes on.
hypothesis_settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis_settings.register_profile("explore", max_examples=1000, deadline=None)
hypothesis_settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of one group together, in whatever order others have put them."""
    items.sort(key=lambda item: place(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """Have one worker run a group, in the order of the table; another way to deal may be named by --dist."""
    if config.getvalue("dist") != "load":
        return None
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Tell processes that tests start which database is the tests'."""
    from django.conf import settings

    database = settings.DATABASES["default"]
    os.environ["HOLDFAST_TEST_DATABASE"] = database.get("TEST", {}).get("NAME") or f"test_{database['NAME']}"


@pytest.fixture(autouse=True, scope="session")
def quick_emptying() -> Iterator[None]:
    """Delete what a test committed; see `tests/emptying.py`."""
    from django.core.management.commands import flush
    from django.db.backends.postgresql.creation import DatabaseCreation
    from django.db.backends.postgresql.operations import DatabaseOperations
    from django.test import TransactionTestCase

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", deletes)
        patch.setattr(flush, "emit_post_migrate_signal", lambda *args, **kwargs: None)
        patch.setattr(DatabaseCreation, "_destroy_test_db", drops)
        patch.setattr(TransactionTestCase, "_should_reload_connections", renew_connections)
        yield


@pytest.fixture(autouse=True, scope="session")
def threads_close_their_connections() -> Iterator[None]:
    """Close what a thread has opened when it ends: the garbage collector would warn of it in another test."""
    from django.db import connections

    run = threading.Thread.run

    def run_and_close(thread: threading.Thread) -> None:
        try:
            run(thread)
        finally:
            for connection in connections.all(initialized_only=True):
                if not connection.allow_thread_sharing:
                    connection.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "run", run_and_close)
        yield


@pytest.fixture(autouse=True, scope="module")
def idle_connections_are_closed() -> Iterator[None]:
    """Close what the buyers of a module have left open; see `tests/lab/interleaving.py`."""
    from tests.lab.interleaving import close_idle_connections

    yield
    close_idle_connections()


@pytest.fixture(autouse=True, scope="session")
def quiet() -> Iterator[None]:
    """Nothing is sent from the side: tests that count requests, or lose replies, must know each of them."""
    from locking.inspection import audit
    from locking.inspection.heartbeat import reporter
    from locking.liveness import watcher
    from locking.signals import lock_deadlocked

    reporter.enabled = watcher.enabled = False
    lock_deadlocked.disconnect(dispatch_uid="locking.audit")
    yield
    audit.listen()
    reporter.enabled = watcher.enabled = True


@pytest.fixture(autouse=True)
def no_trouble_so_far() -> Iterator[None]:
    """What one test had logged, made silent, or left to be released, is no other test's trouble."""
    from locking.core.pending_release import release_retrier
    from locking.core.waits import breaker
    from locking.utils import logs

    logs.TROUBLES.clear()
    breaker.reset()
    yield
    release_retrier.reset()


@pytest.fixture(scope="session")
def redis_database() -> Iterator[redis.Redis]:
    """This test process's own Redis database; one that holds other data is refused."""
    from django.conf import settings

    with redis.Redis.from_url(settings.REDIS_URL) as client:
        if client.dbsize() and not client.exists(MARK):
            pytest.exit(
                f"{settings.REDIS_URL} holds data that is not these tests'; empty it or name another server."
            )
        yield client
        client.flushdb()


@pytest.fixture(autouse=True)
def strategy_servers(request: pytest.FixtureRequest) -> None:
    """Where a test's parameter is a strategy that locks elsewhere, have that server, or skip the test."""
    params = getattr(getattr(request.node, "callspec", None), "params", {})
    for name in {value for value in params.values() if isinstance(value, str) and value in ELSEWHERE}:
        variable, fixture = ELSEWHERE[name]
        location = request.getfixturevalue(fixture)
        text = location if isinstance(location, str) else ",".join(location)
        request.getfixturevalue("monkeypatch").setenv(variable, text)  # for processes that the test starts
        settings = request.getfixturevalue("settings")
        settings.LOCKING = {**settings.LOCKING, **lock_aliases({variable: text})}
        settings.INVENTORY = selling_strategies("redis_lock", settings.LOCKING)


@pytest.fixture(autouse=True)
def empty_redis(redis_database: redis.Redis) -> None:
    """Start each test on an empty Redis database."""
    redis_database.flushdb()
    redis_database.set(MARK, 1)


@pytest.fixture(autouse=True)
def english() -> None:
    """Start each test in the default language: a request leaves its own behind in the thread."""
    translation.deactivate()


@pytest.fixture(autouse=True)
def bare_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep locks under their bare names, as `KEY_PREFIX: ""` does: tests look at the keys in Redis."""
    from locking.backends.redis import RedisBackend
    from locking.backends.redlock import RedlockBackend

    for backend in (RedisBackend, RedlockBackend):
        monkeypatch.setattr(backend, "default_key_prefix", classmethod(lambda cls, settings: ""))
