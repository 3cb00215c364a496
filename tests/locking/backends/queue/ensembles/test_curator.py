"""Python and Curator's InterProcessMutex on one path: they exclude, wake, take over from one another."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from locking import get_lock
from locking.backends.zookeeper import encode
from locking.core.handler import locks
from locking.testing.contract.base import begin, counted_waiters, until
from tests.backends import ZOOKEEPER, any_engine
from tests.locking.backends.queue.ensembles.servers import needs_zookeeper
from tests.locking.backends.redis.redisson.harness import FETCHING, Java, missing

pytestmark = [
    needs_zookeeper,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.timeout(FETCHING),
]

HOME = Path(__file__).parent / "curator"
VERSION = "5.7.1"
PATIENCE = 30.0


@pytest.fixture(scope="module")
def start_java(zookeeper_location, tmp_path_factory):
    """Start Curator clients, which end with the module."""
    started: list[Java] = []

    def start() -> Java:
        hosts = zookeeper_location.partition("/")[0]
        started.append(Java(VERSION, [hosts], tmp_path_factory.mktemp("java") / "log", HOME))
        return started[-1]

    yield start
    for client in started:
        client.kill()


@pytest.fixture(scope="module")
def java(start_java):
    """One client for all that leave it alive."""
    return start_java()


@pytest.fixture
def path(zookeeper_settings, settings) -> str:
    """`LOCKING` on an empty folder, and the path under which Curator finds the lock `shared` there."""
    options = {"session_timeout": 4.0}
    settings.LOCKING = {
        "default": {"BACKEND": ZOOKEEPER, **zookeeper_settings, "TTL": 60, "WAIT": 60, "OPTIONS": options}
    }
    root = zookeeper_settings["LOCATION"].partition("/")[2]
    return f"/{root}/{encode('shared')}"


def is_one_waiting():
    """Return whether a waiter is queued behind the holder."""
    return [held.waiters for held in any_engine().held()] == [1]


def test_they_exclude_each_other(java, path):
    """What one side holds the other can't take, and a release on either side frees it for the other."""
    with get_lock("shared"):
        assert java.do("try", path) == "false"
    assert java.do("try", path) == "true"
    assert get_lock("shared").try_acquire() is None
    assert [held.owner[:3] for held in any_engine().held()] == ["_c_"]
    java.do("unlock", path)
    get_lock("shared").acquire(wait=0).release()


def test_curator_wakes_a_python_waiter(java, path):
    """Python watches Curator's node and has the lock soon after it is gone."""
    assert java.do("try", path) == "true"
    with counted_waiters(locks["default"]) as waiters:
        waiter = begin(get_lock("shared").acquire)
        until(waiters.number, PATIENCE)
        java.do("unlock", path)
        waiter.result(timeout=PATIENCE).release()


def test_python_wakes_a_waiting_curator(java, path):
    """Curator queues behind our node, and has the lock once that is released."""
    with get_lock("shared"):
        waiter = java.begin("main", "wait", path)
        until(is_one_waiting, PATIENCE)
        assert not waiter.done()
    assert waiter.result(PATIENCE) == "true"
    assert get_lock("shared").try_acquire() is None
    java.do("unlock", path)


def test_both_stand_in_one_line(java, path):
    """Python, Curator, Python: served in the order they came."""
    with counted_waiters(locks["default"]) as waiters:
        with get_lock("shared"):
            second = java.begin("main", "wait", path)
            until(is_one_waiting, PATIENCE)
            third = begin(get_lock("shared").acquire)
            until(partial(waiters.are, 1), PATIENCE)
        assert second.result(PATIENCE) == "true"
        assert not third.done()
        java.do("unlock", path)
        third.result(timeout=PATIENCE).release()


def test_python_takes_over_from_a_killed_curator(start_java, path):
    """After `kill -9` of the Java process its session ends, and the waiter has the lock."""
    doomed = start_java()
    assert doomed.do("try", path) == "true"
    with counted_waiters(locks["default"]) as waiters:
        waiter = begin(get_lock("shared").acquire)
        until(waiters.number, PATIENCE)
        doomed.kill()
        waiter.result(timeout=PATIENCE).release()


def test_curator_takes_over_from_a_killed_python(java, path):
    """After `kill -9` of our process its session ends, and Curator has the lock."""
    from locking.testing.contract.processes import child

    def hold(pipe):
        get_lock("shared").acquire()
        pipe.send("held")
        pipe.recv()

    with child(hold) as holder:
        assert holder.report() == "held"
        waiter = java.begin("main", "wait", path)
        until(is_one_waiting, PATIENCE)
        holder.kill()
    assert waiter.result(PATIENCE) == "true"
    java.do("unlock", path)
