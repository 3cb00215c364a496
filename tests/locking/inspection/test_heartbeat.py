import asyncio
import json
import os
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from locking import LockNotAcquired, distributed_lock, get_lock
from locking.backends.memory import STORES
from locking.core.handler import locks
from locking.core.lease import live_leases
from locking.exceptions import LockLost
from locking.inspection import heartbeat
from locking.inspection.heartbeat import (
    IDLE_AFTER,
    SAMPLES,
    HeartbeatPublisher,
    last_hour,
    records_of,
    take_counters,
)
from locking.inspection.held import held_locks
from locking.testing.contract.base import begin, counted_waiters
from locking.utils.call_site import activity_of
from locking.utils.clock import now
from locking.utils.ownership import PROCESS
from tests.backends import BACKENDS, MEMORY, any_engine
from tests.locking.backends.redis.topologies.servers import until
from tests.locking.support.helpers import elsewhere, publishing

LINES = ("zookeeper", "etcd")
TABLES = ("database-postgresql", "database-mariadb", "database-sqlite")


@pytest.fixture(params=["redis", "memory", "redlock", *TABLES, *LINES])
def each_backend(request, settings, django_db_blocker):
    """The backends where processes can tell of themselves, one after the other."""
    row = BACKENDS[request.param]
    settings.LOCKING = {"default": {**row.reached(request), "KEY_PREFIX": "shop:"}}
    backend = any_engine()
    SAMPLES.clear()
    STORES.clear()  # the memory backend keeps everything for as long as the process lives
    if row.fixture is None:
        yield backend
        return
    with django_db_blocker.unblock():
        backend.publish_heartbeats({}, forget=[PROCESS.client_id])  # from other tests
        yield backend
        backend.publish_heartbeats({}, forget=[PROCESS.client_id])


only_lines = pytest.mark.parametrize("each_backend", LINES, indirect=True)


@pytest.fixture
def reporter(monkeypatch, each_backend):
    """A reporter that tells of every hold, however young, when it is asked to."""
    monkeypatch.setattr("locking.inspection.heartbeat.HELD_LONG", 0.0)
    return HeartbeatPublisher()


def rows():
    """Return what is listed."""
    return held_locks().rows


def test_a_holder_tells_who_it_is(reporter):
    """Host, process, thread, length of the lease, and the line that took the lock."""
    with get_lock("a", ttl=20):
        reporter.beat()
        (row,) = rows()
    assert row.thread == "MainThread"
    assert row.host
    assert row.pid
    assert row.holder == f"{row.host}:{row.pid}:MainThread"
    assert (row.ttl, row.renewals) == (20, 0)
    assert row.site.startswith("inspection/test_heartbeat.py:")
    assert row.site.endswith(" in test_a_holder_tells_who_it_is")
    assert row.silent is None or row.silent < 60  # ZooKeeper's sessions live, or take all with them
    assert row.started == PROCESS.started


def test_a_decorated_function_is_the_place(reporter):
    """The list names the function that is decorated, not anyone who called it."""

    @distributed_lock(key="'a'", atomic=False)
    def pay():
        reporter.beat()
        return rows()[0].site

    assert pay().endswith("in test_a_decorated_function_is_the_place.<locals>.pay")


def test_a_decorated_coroutine_is_the_place(reporter):
    """The same goes for an async function, also where it is all that its task runs."""

    @distributed_lock(key="'a'")
    async def pay():
        await asyncio.to_thread(reporter.beat)
        return (await asyncio.to_thread(rows))[0].site

    assert asyncio.run(pay()).endswith("in test_a_decorated_coroutine_is_the_place.<locals>.pay")


def test_a_task_tells_its_name(reporter):
    """An asyncio task is named, and its own line is the place."""

    async def work():
        async with get_lock("a"):
            await asyncio.to_thread(reporter.beat)
            return (await asyncio.to_thread(rows))[0]

    async def main():
        return await asyncio.create_task(work(), name="worker-7")

    row = asyncio.run(main())
    assert row.thread == "worker-7"
    assert row.site.endswith("work")


def test_what_a_request_is_about_is_reported_without_its_query(rf):
    """The path of the request in which a thread is at work, and nothing of its secrets."""
    from django.core.handlers.base import BaseHandler

    reported = []

    class Handler(BaseHandler):
        def resolve_request(self, request):
            thread = threading.current_thread()
            reported.append(elsewhere(lambda: activity_of(thread)))
            raise LookupError

    handler: Any = Handler()
    with pytest.raises(LookupError):
        handler._get_response(rf.get("/orders/42/", {"token": "s3cret"}))
    assert reported == ["GET /orders/42/"]


def test_a_thread_outside_any_request_is_about_nothing():
    """No request, no task: nothing is made up."""
    assert activity_of(threading.current_thread()) is None
    assert activity_of(object()) is None


def test_a_hold_that_ended_is_reported_no_more(reporter, each_backend):
    """The hold leaves the record at once, the record goes when the process has used no lock for a while."""
    with get_lock("a"):
        reporter.beat()
        assert published(each_backend)["holds"]
    reporter.beat()
    assert published(each_backend)["holds"] == {}
    reporter._used = {alias: moment - IDLE_AFTER for alias, moment in reporter._used.items()}
    reporter.beat()
    assert each_backend.heartbeats([PROCESS.client_id]) == {}


def test_a_sign_of_life_needs_no_new_record(reporter, each_backend):
    """What hasn't changed isn't sent again, and yet the silence ends."""
    with get_lock("a"):
        reporter.beat()
        before = each_backend.heartbeats([PROCESS.client_id])[PROCESS.client_id]
        if before.silent is not None:
            until(
                lambda: each_backend.heartbeats([PROCESS.client_id])[PROCESS.client_id].silent > 0.05,
                "some silence",
            )
        records = records_of(live_leases())
        assert records == reporter._published
        reporter.beat()
        after = each_backend.heartbeats([PROCESS.client_id])[PROCESS.client_id]
    assert after.text == before.text


@pytest.fixture
def still_young(monkeypatch):
    """A hold stays young, however long the machine takes."""
    monkeypatch.setattr("locking.inspection.heartbeat.HELD_LONG", 3600.0)


@pytest.mark.usefixtures("still_young")
@pytest.mark.parametrize("options", [{}, {"fenced": True}, {"min_hold": 0.01}], ids=str)
def test_a_young_hold_has_its_process_and_no_details(each_backend, options):
    """The holder is known from the first heartbeat on, its place in the code after a second."""
    with get_lock("a", **options):
        HeartbeatPublisher().beat()
        (row,) = rows()
    assert (row.host, row.pid, row.started) == (socket.gethostname(), os.getpid(), PROCESS.started)
    assert (row.thread, row.site, row.ttl, row.state) == (None, None, None, "held")


@pytest.mark.usefixtures("still_young")
def test_mutant_without_the_process_of_its_own_a_young_hold_is_a_bare_uuid(each_backend, monkeypatch):
    """Where only long holds are published the holder of a young one is unknown."""
    monkeypatch.setattr(HeartbeatPublisher, "_note_use", lambda self, aliases: None)
    with get_lock("a"):
        HeartbeatPublisher().beat()
        (row,) = rows()
    assert (row.host, row.holder) == (None, row.owner)


@pytest.mark.parametrize("each_backend", ["redis", "memory"], indirect=True)
def test_the_first_lock_publishes_its_process_in_the_background(each_backend):
    """No caller waits for it, no second goes by; further locks start nothing, an idle process restarts it."""
    with publishing():
        made: Any = heartbeat.reporter
        with get_lock("a"):
            until(lambda: rows()[0].pid, "the process is published")
            assert vars(made)["_idle"] is False
        made._used = {"default": now() - IDLE_AFTER}
        made._note_use([])
        assert vars(made)["_idle"] is True
        made.deregister()
    assert each_backend.heartbeats([PROCESS.client_id]) == {}


def test_a_process_that_leaves_publishes_no_more(reporter, each_backend):
    """Its thread may be about to: after deregistering there is nothing left to publish."""
    reporter.running = True
    with get_lock("a"):
        reporter.beat()
        reporter.deregister()
        reporter.publish()
        assert each_backend.heartbeats([PROCESS.client_id]) == {}


def published(backend):
    """Return the record of this process."""
    return json.loads(backend.heartbeats([PROCESS.client_id])[PROCESS.client_id].text)


@pytest.mark.parametrize("each_backend", ["redis"], indirect=True)
def test_a_record_that_the_server_lost_is_reported_again_within_a_minute(reporter, each_backend, monkeypatch):
    """After FLUSHALL the holders were unknown until the record changed."""
    with get_lock("a", ttl=20):
        reporter.beat()
        each_backend.publish_heartbeats({}, forget=[PROCESS.client_id])
        reporter.beat()
        assert each_backend.heartbeats([PROCESS.client_id]) == {}
        monkeypatch.setattr(heartbeat, "now", lambda: now() + heartbeat.TIDY_EVERY)
        reporter.beat()
        assert (
            json.loads(each_backend.heartbeats([PROCESS.client_id])[PROCESS.client_id].text)["pid"]
            == os.getpid()
        )


def test_an_outage_is_survived_and_reported_again(reporter, each_backend, monkeypatch):
    """A backend that doesn't answer costs the record nothing: the next beat tells it whole."""
    with get_lock("a"):
        with monkeypatch.context() as patch:
            patch.setattr(type(each_backend), "publish_heartbeats", broken)
            reporter.beat()
        reporter.beat()
        assert json.loads(each_backend.heartbeats([PROCESS.client_id])[PROCESS.client_id].text)["holds"]


def broken(self, *_, **__):
    """Fail as an outage does."""
    raise LockLost("no answer")


def test_a_beat_builds_no_backend(settings):
    """Counts from before a test changed LOCKING are dropped: the thread imports and asks nothing."""
    settings.LOCKING = {"default": {"BACKEND": MEMORY}}
    reporter = HeartbeatPublisher()
    with get_lock("a"):
        reporter.beat()
    settings.LOCKING = {"default": {"BACKEND": "nowhere.Backend"}}
    reporter.beat()
    assert locks.all(initialized_only=True) == []


def test_the_thread_starts_with_the_first_lock_and_can_be_forbidden():
    """`enabled` = False keeps a process silent."""
    made = HeartbeatPublisher()
    made.enabled = False
    made.start()
    assert not made.running


@only_lines
def test_an_age_is_counted_from_the_grant(reporter):
    """Where the engine only knows who came first, the holder tells since when it has the lock."""
    with counted_waiters(locks["default"]) as waiters, get_lock("a", ttl=60):
        waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
        until(waiters.number, "a waiter")
        released = time.time()
    lease = waiter.result(timeout=60)
    reporter.beat()
    (row,) = rows()
    assert row.since > released - 0.01  # it is given in milliseconds
    assert row.held_for >= 0
    lease.release()


@only_lines
def test_the_old_are_found_whatever_their_place_in_line(reporter, monkeypatch):
    """A lock that was waited for came first and was granted last: asking for the old leaves out only it."""
    with counted_waiters(locks["default"]) as waiters, get_lock("waited-for", ttl=60):
        waiter = begin(get_lock("waited-for", ttl=60, wait=60).acquire)
        until(waiters.number, "a waiter")
        older = get_lock("older", ttl=60).acquire()
    younger = waiter.result(timeout=60)
    reporter.beat()
    first, second = rows()
    monkeypatch.setattr("locking.inspection.held.time", SimpleNamespace(time=lambda: first.since + 100.0))
    assert [row.name for row in held_locks("default", older_than=0.0).rows] == ["waited-for", "older"]
    age = 100.0 + (first.since - second.since) / 2
    assert [row.name for row in held_locks("default", older_than=age).rows] == ["older"]
    older.release()
    younger.release()


@pytest.mark.parametrize("each_backend", ["zookeeper"], indirect=True)
def test_a_record_follows_its_process_into_a_new_session(reporter, each_backend):
    """ZooKeeper's record ends with its session; the next sign of life brings it back, whole."""
    each_backend.publish_heartbeats({"me": '{"pid": 7}'})
    each_backend.publish_heartbeats({"me": None})
    each_backend._session.stop()
    assert each_backend.heartbeats(["me"]) == {}
    each_backend.publish_heartbeats({"me": None})
    assert each_backend.heartbeats(["me"])["me"].text == '{"pid": 7}'
    each_backend.publish_heartbeats({}, forget=["me"])
    assert each_backend.heartbeats(["me"]) == {}


@pytest.mark.parametrize("each_backend", TABLES, indirect=True)
def test_records_of_long_ago_are_swept(each_backend):
    """A process that fell silent an hour ago leaves no row; others stay."""
    each_backend.publish_heartbeats({"gone": "{}", "here": "{}"})

    def age(cursor, _):
        cursor.execute("UPDATE locking_process SET seen = seen - 3601000000 WHERE id = 'shop:gone'")

    each_backend._pool.run(age)
    assert each_backend.heartbeats(["gone"])["gone"].silent > 3600
    each_backend.tidy()
    assert set(each_backend.heartbeats(["gone", "here"])) == {"here"}
    each_backend.publish_heartbeats({}, forget=["here"])


@pytest.mark.parametrize("each_backend", ["redis", "memory"], indirect=True)
def test_figures_of_the_last_hour(reporter, each_backend):
    """Acquired, refused and lost are counted, minute by minute."""
    for _ in range(20):
        with get_lock("a"):
            pass
    with get_lock("a"):
        with pytest.raises(LockNotAcquired):
            elsewhere(lambda: get_lock("a").acquire(wait=0))
        reporter.beat()
    lost = get_lock("b").acquire()
    lost.leases[0].lose()
    reporter.beat()
    minutes = last_hour(each_backend)
    sums = {what: sum(each.get(what, 0) for each in minutes) for what in ("acquired", "refused", "lost")}
    assert sums == {"acquired": 22, "refused": 1, "lost": 1}
    assert len(minutes) == 60
    assert sum(each.get("acquired", 0) for each in minutes[-3:]) == 22


def test_statistics_are_taken_away_once():
    """What one process adds up in the backend isn't added again."""
    SAMPLES.extend(("hundred", "acquired") for _ in range(100))
    assert take_counters()["hundred"] == {"acquired": 100}
    assert "hundred" not in take_counters()


def test_a_process_can_be_left_out_of_the_statistics(monkeypatch):
    """A lesson's locks would hide the project's own."""
    monkeypatch.setattr(heartbeat.reporter, "counts", False)
    take_counters()
    with get_lock("a"):
        pass
    assert "default" not in take_counters()


def test_what_is_reported_has_no_secrets(reporter, each_backend, monkeypatch):
    """Of the command line only the program's name is published."""
    monkeypatch.setattr("sys.argv", ["/srv/app/manage.py", "run", "--password", "s3cret"])
    with get_lock("a"):
        reporter.beat()
        text = each_backend.heartbeats([PROCESS.client_id])[PROCESS.client_id].text
    assert json.loads(text)["program"] == "manage.py"
    assert "s3cret" not in text
