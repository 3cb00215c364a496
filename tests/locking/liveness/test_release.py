"""Dead-process release: what a killed process leaves is released by another one, and never too early."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connection

from locking import BackendUnavailable, get_lock, liveness, locked_transaction
from locking.backends.capabilities import Listing
from locking.core.handler import locks
from locking.core.kinds import get_fair_lock, get_read_lock, get_semaphore, get_write_lock
from locking.core.waits import waiters
from locking.liveness import ENOUGH, Record, mark, registration, watcher
from locking.models import LockEvent
from locking.signals import Observer, flush, lock_orphaned, observe, stop_observing
from locking.testing.contract.base import begin
from locking.testing.contract.processes import child
from locking.utils.clock import now
from locking.utils.logs import TROUBLES
from locking.utils.ownership import PROCESS, client_of_work, is_guarded, process_of
from tests.backends import BACKENDS, any_engine
from tests.locking.backends.redis.topologies.servers import until
from tests.locking.support.liveness_fixtures import dead_in, own_path, put

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("watching")]

LEASE = 300.0
"""Seconds of the dead ones' leases: anyone who waits for that fails."""

WAIT = 20.0
"""Seconds within which a lock must have been released, on a machine that is busy."""

ENGINES = [
    "redis",
    "redlock",
    "database-postgresql",
    "database-mariadb",
    "database-sqlite",
    "zookeeper",
    "etcd",
]
MAKERS: list[Any] = [
    get_lock,
    get_fair_lock,
    get_read_lock,
    get_write_lock,
    lambda name, **more: get_semaphore(name, 1, **more),
]


def guarded(name="a", make=get_lock):
    """Return what makes a lock that is released as soon as its process is dead."""
    return lambda: make(name, ttl=LEASE, guarded=True)


@pytest.fixture(params=ENGINES)
def engine(request, settings, django_db_blocker):
    """Each engine whose holders are listed, one after the other."""
    settings.LOCKING = {"default": {**BACKENDS[request.param].reached(request), "KEY_PREFIX": "dead:"}}
    with django_db_blocker.unblock():
        yield locks["default"]


def holding(*made):
    """Return what a child does that takes these locks and is killed."""

    def work(pipe):
        leases = [make().acquire() for make in made]
        pipe.send([lease.owner for lease in leases])
        pipe.recv()

    return work


@contextmanager
def killed(*made):
    """Take locks in a process that is dead when the block is entered; yields their owners."""
    with child(holding(*made)) as holder:
        owners = holder.report()
        holder.kill()
        yield owners


def test_a_waiter_gets_what_a_killed_process_held(engine):
    """On every engine: it has queued up while the holder was alive, and doesn't wait for the lease."""
    with child(holding(guarded())) as holder:
        holder.report()
        waiter = begin(get_lock("a", ttl=60, wait=WAIT).acquire)
        until(lambda: waiters.total, "the waiter has been refused once")
        holder.kill()
        waiter.result(timeout=2 * WAIT).release()


def test_who_comes_later_does_too(engine):
    """Without a waiter at the death of the holder the next caller notices it."""
    with killed(guarded()):
        get_lock("a", ttl=60, wait=WAIT).acquire().release()


@pytest.mark.parametrize("make", MAKERS, ids=["lock", "fair", "read", "write", "semaphore"])
@pytest.mark.parametrize("engine", ["redis", "etcd"], indirect=True)
def test_every_kind_is_released(engine, make):
    """Read-write locks, permits and fair locks as well as the ordinary one."""
    with killed(guarded("a", make)):
        rival = get_write_lock if make in (get_read_lock, get_write_lock) else make
        rival("a", ttl=60, wait=WAIT).acquire().release()


def wait_in_vain(pipe):
    """Wait for a lock until this process is killed."""
    registration.enter("default")
    backend = any_engine()
    place = backend.waiter(backend.key("a"), f"{PROCESS.client_id}:1", LEASE)
    place.try_acquire(queue=True)
    pipe.send("queued")
    pipe.recv()


@pytest.mark.parametrize("engine", ["redis", "zookeeper", "etcd"], indirect=True)
def test_a_killed_waiter_is_dequeued(engine):
    """It was first in the queue: the one behind it has its turn as soon as the lock is released."""
    lease = get_lock("a", ttl=LEASE).acquire()
    with child(wait_in_vain) as first:
        assert first.report() == "queued"
        third = begin(get_lock("a", ttl=60, wait=WAIT).acquire)
        until(lambda: waiters.total, "the waiter has been refused once")
        first.kill()
        until_all_waiters_live()
        lease.release()
        third.result(timeout=2 * WAIT).release()


def test_a_task_gets_what_a_killed_process_held(watching):
    """asyncio waits in the same way."""

    async def main():
        lease = await get_lock("a", ttl=60, wait=WAIT).aacquire()
        await lease.arelease()

    with killed(guarded()):
        asyncio.run(main())


def test_locks_of_the_living_stay(watching):
    """One process is killed; another one's lock, and our own, are where they were."""
    with child(holding(guarded("b"))) as living, get_lock("c", ttl=LEASE) as mine:
        (owner,) = living.report()
        with killed(guarded()):
            get_lock("a", ttl=60, wait=WAIT).acquire().release()
        until_all_waiters_live()
        assert owner_of("b") == owner
        mine.confirm()


def owner_of(name):
    """Return the holder of the lock."""
    holder = locks["default"].holder(name)
    assert holder is not None
    return holder.owner


def until_all_waiters_live():
    """Wait until the files of the dead are gone, and whatever was to be released is."""

    def done():
        watcher.look()
        return not dead_in(own_path().parent)

    until(done, "the dead are cleaned up behind")


class Kept:
    """A lock that is left to its lease as soon as it is taken."""

    def acquire(self):
        """Take it and keep it."""
        lease = get_lock("kept", ttl=LEASE, guarded=True).acquire()
        lease.leave_to_expire()
        return lease


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("kept", Kept),
        ("min_hold", lambda: get_lock("min_hold", ttl=LEASE, guarded=True, min_hold=60)),
    ],
    ids=["keep", "min_hold"],
)
def test_what_is_to_outlast_its_process_stays(watching, name, make):
    """A lease that was kept, and one with a min_hold, end by themselves."""
    registration.enter("default")
    with killed(make) as (owner,):
        until_all_waiters_live()
        assert owner_of(name) == owner


def test_a_release_that_knows_no_exception_would_end_what_was_kept(watching, monkeypatch):
    """The mutant: without the look at what was kept, a lease that was to stay is released with the others."""
    monkeypatch.setattr(Record, "leaves", lambda self, owner: self.made(owner) and is_guarded(owner))
    registration.enter("default")
    with killed(Kept):
        until_all_waiters_live()
        assert locks["default"].holder("kept") is None


def test_a_release_for_a_dead_process_is_reported(watching):
    """A signal, a metric's observer and a row of the audit, each once and with the dead process in it."""
    heard, seen = [], []

    class Seen(Observer):
        """Notes what happens."""

        def happened(self, event):
            """Note orphans."""
            if event.outcome == "orphaned":
                seen.append(event)

    def receiver(event, **_):
        heard.append(event)

    lock_orphaned.connect(receiver)
    observe(observer := Seen())
    try:
        with killed(guarded()) as (owner,):
            get_lock("a", ttl=60, wait=WAIT).acquire().release()
            until_all_waiters_live()
        flush()
    finally:
        stop_observing(observer)
        lock_orphaned.disconnect(receiver)
    assert [event.owner for event in heard] == [event.owner for event in seen] == [owner]
    (row,) = LockEvent.objects.all()
    assert (row.action, row.name, row.owner, row.actor) == ("dead_process", "a", owner, "process liveness")
    assert row.holder == heard[0].holder


# --- what may still be at work ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"fenced": True}, {"guarded": True, "min_hold": 60}], ids=str)
def test_an_unguarded_lock_ends_with_its_lease(watching, options):
    """A child, a command or a COMMIT of the dead one may go on; a token that was asked for orders nothing."""
    registration.enter("default")
    with killed(lambda: get_lock("a", ttl=LEASE, **options)) as (owner,):
        until_all_waiters_live()
        assert owner_of("a") == owner


def test_a_release_of_everything_would_let_two_in(watching, monkeypatch):
    """The mutant, which takes every owner for a guarded one."""
    monkeypatch.setattr(Record, "leaves", lambda self, owner: self.made(owner))
    registration.enter("default")
    with killed(lambda: get_lock("a", ttl=LEASE, fenced=True)):
        until_all_waiters_live()
        assert locks["default"].holder("a") is None


def test_a_living_process_that_is_taken_for_dead_keeps_what_is_not_guarded(watching):
    """Cloned guests have one identity: in a folder that both reach, one is misjudged.

    What ends early then is what the database guards.
    """
    registration.enter("default")
    with child(holding(lambda: get_lock("plain", ttl=LEASE, fenced=True), guarded())) as living:
        plain, _ = living.report()
        (path,) = own_path().parent.glob(f"{mark()}.*.{process_of(plain)}.default")
        path.unlink()
        put(path.parent, process_of(plain))
        until_all_waiters_live()
        assert locks["default"].holder("a") is None
        assert owner_of("plain") == plain


class OfWork:
    """A lock that a process takes in the name of a task."""

    def acquire(self):
        """Take it as a Celery task does."""
        lock = get_lock("task", ttl=LEASE, guarded=True)
        lock.act_for(client_of_work("task-7"))
        return lock.acquire()


def test_what_a_killed_task_held_ends_with_its_lease(watching):
    """Its owner is the task's and not the process's; the task's next run takes it over."""
    registration.enter("default")
    with killed(OfWork) as (owner,):
        until_all_waiters_live()
        assert owner_of("task") == owner


GATE = 77_031
"""The advisory lock that holds a COMMIT up."""

SLOW_COMMIT = f"""
CREATE FUNCTION pg_temp.wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON auth_group DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION pg_temp.wait_at_gate();
"""


@pytest.fixture
def gate():
    """Hold up every COMMIT that has inserted a group, until the function that this yields is called."""
    other = connection.copy()
    made = SLOW_COMMIT.replace("pg_temp.", "public.")
    with connection.cursor() as cursor:
        cursor.execute(made)
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [GATE])
    try:
        yield other.close
    finally:
        other.close()
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER gate ON auth_group; DROP FUNCTION public.wait_at_gate()")


def committing(options):
    """Return what a child does that is killed in its COMMIT, which goes on without it."""

    def work(pipe):
        def commit():
            with locked_transaction("a", ttl=LEASE, **options):
                Group.objects.create(name="the dead one's")
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_backend_pid()")
                    pipe.send(cursor.fetchone()[0])

        thread = threading.Thread(target=commit)
        thread.start()
        pipe.recv()

    return work


def is_waiting(pid):
    """Whether the COMMIT has come to the gate."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'advisory'", [pid])
        return cursor.fetchone() is not None


@contextmanager
def killed_in_commit(**options):
    """Kill a process whose COMMIT runs on."""
    with child(committing(options)) as holder:
        pid = holder.report()
        until(lambda: is_waiting(pid), "the COMMIT is running")
        holder.kill()
        yield


def names():
    """The groups that a new transaction sees."""
    return [group.name for group in Group.objects.all()]


def test_a_running_commit_keeps_the_lock(gate):
    """Its client is dead, and the lock stays taken until its lease ends: no overlap."""
    registration.enter("default")
    with killed_in_commit():
        until_all_waiters_live()
        assert get_lock("a").try_acquire() is None
        gate()


def test_a_fenced_lock_is_released_beside_a_running_commit(gate):
    """The fence's row makes the next holder's transaction wait instead, and it reads what was committed."""
    with killed_in_commit(fenced=True):
        lease = get_lock("a", ttl=60, wait=WAIT, fenced=True).acquire()
        assert names() == []
        lease.release()

        def read_behind_the_fence():
            with locked_transaction("a", ttl=60, wait=WAIT, fenced=True):
                seen = names()
            connection.close()
            return seen

        reader = begin(read_behind_the_fence)
        gate()
        assert reader.result(timeout=2 * WAIT) == ["the dead one's"]


# --- cleaning up ------------------------------------------------------------------------------------------


def dead(client, alias="default"):
    """Leave the file of a dead process, and return its path."""
    registration.enter("default")
    return put(own_path().parent, client, alias)


@pytest.fixture
def by_hand(runtime_dir, monkeypatch):
    """The watcher looks when the test says so."""
    monkeypatch.setattr(watcher, "enabled", True)
    monkeypatch.setattr(watcher._worker, "wake_by", lambda at: None)
    watcher.reset()
    yield watcher._step
    watcher.reset()


def test_what_comes_late_is_found_by_a_further_look(by_hand):
    """A request that the server had still to work off grants a lock to the dead: it is released as well."""
    owner = "00000000-0000-8000-b000-000000000000:1"
    path = dead(process_of(owner))
    by_hand()
    locks["default"].try_acquire("late", owner, LEASE)
    by_hand()
    assert locks["default"].holder("late") is None
    by_hand()
    assert path.exists()
    by_hand()
    assert not path.exists()
    assert by_hand() == math.inf, "there is nothing left to look for"


def test_a_single_look_would_leave_what_comes_late(by_hand, monkeypatch):
    """The mutant: the file is gone with the first look that finds nothing."""
    monkeypatch.setattr(liveness, "ENOUGH", 1)
    with pytest.raises(AssertionError):
        test_what_comes_late_is_found_by_a_further_look(by_hand)


def test_a_backend_that_does_not_answer_is_asked_again(by_hand, backend_down):
    """An outage keeps the file: the next look of any process finds all of it."""
    path = dead("c", backend_down)
    for _ in range(4):
        asked = now()
        assert by_hand() >= asked + liveness.AFTER_TROUBLE
    assert path.exists()


def test_a_release_that_takes_long_puts_off_no_look(by_hand, monkeypatch):
    """Only looking is paid for with pauses: the next process that dies is found as soon as the first."""
    dead("c")
    clock = [now()]

    def slow(record):
        clock[0] += 5.0
        return 1

    monkeypatch.setattr(liveness, "now", lambda: clock[0])
    monkeypatch.setattr(liveness, "clean", slow)
    assert by_hand() == clock[0] + liveness.LOOK_AGAIN


def test_a_release_that_fails_keeps_no_other_from_being_tried(by_hand, monkeypatch, caplog):
    """A backend that can't even be made is asked again later, as one that doesn't answer."""
    path = dead("c")

    def broken(*_):
        raise ImportError("no such package")

    monkeypatch.setattr(liveness, "_clean", broken)
    TROUBLES.clear()
    with caplog.at_level("ERROR", "locking.liveness"):
        by_hand()
        by_hand()
    assert path.exists()
    assert caplog.text.count("on 'default' has to wait: no such package") == 1, "once per minute"


def test_a_backend_that_fails_keeps_no_lock_on_another(by_hand, monkeypatch):
    """A database without the tables comes first by its name: what lies on Redis is released all the same."""
    owner, clean_one = "00000000-0000-8000-b000-000000000000:1", liveness._clean

    def cleaned(backend, record):
        if backend.alias == "database":
            raise BackendUnavailable("no such table")
        return clean_one(backend, record)

    monkeypatch.setattr(liveness, "_clean", cleaned)
    locks["default"].try_acquire("kept", owner, LEASE)
    failing = dead(process_of(owner), "database"), dead(process_of(owner), "default")
    by_hand()
    assert locks["default"].holder("kept") is None
    assert failing[0].exists()


def test_an_alias_that_there_is_no_more_keeps_no_file(by_hand):
    """What lies on a backend that the settings don't name ends with its lease."""
    path = dead("c", "gone")
    for _ in range(ENOUGH):
        by_hand()
    assert not path.exists()


def test_a_lock_that_stays_is_not_asked_for_again(by_hand, monkeypatch):
    """A clean-up ends with its second look, however long the leases are, and where the file can't go, too."""
    owner, looks = "00000000-0000-8000-a000-000000000000:1", []
    all_held = Listing.all_held

    def counted(backend, prefix):
        looks.append(prefix)
        return all_held(backend, prefix)

    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Listing, "all_held", counted)
    monkeypatch.setattr(Path, "unlink", refused)
    locks["default"].try_acquire("stays", owner, LEASE)
    dead(process_of(owner))
    for _ in range(5):
        by_hand()
    assert len(looks) == ENOUGH
    assert owner_of("stays") == owner


def test_looks_are_apart_however_many_begin_to_wait(watching, monkeypatch):
    """Each waiter asks for a look; each follows the last by a pause."""
    registration.enter("default")
    looks = []

    def no_peers(folder):
        looks.append(now())
        return {}

    def has_looked():
        watcher.look()
        return len(looks) > 3

    monkeypatch.setattr(liveness, "peers", no_peers)
    until(has_looked, "four looks")
    assert min(later - sooner for sooner, later in pairwise(looks)) >= 0.9 * liveness.LOOK_AGAIN


def test_a_thread_that_cannot_be_started_is_started_later(watching, monkeypatch):
    """A process at its limit of threads waits for the lease; the next waiter tries again."""

    def refused(*_, **__):
        raise RuntimeError("can't start new thread")

    watcher._worker.stop()
    registration.enter("default")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert not runs_while_a_caller_waits()
    assert runs_while_a_caller_waits()


def runs_while_a_caller_waits() -> bool:
    """Whether the thread runs that looks for dead processes."""
    waiters.enter("default", None)
    watcher.look()
    try:
        return watcher._worker.thread is not None
    finally:
        waiters.leave("default")
