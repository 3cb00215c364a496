import asyncio
import os
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from locking import (
    LockDeadlock,
    LockNotAcquired,
    get_lock,
    get_read_lock,
    get_semaphore,
    get_write_lock,
    signals,
)
from locking.backends.memory import STORES
from locking.backends.redis import RedisBackend
from locking.core.handler import locks
from locking.exceptions import LockLost
from locking.inspection import audit, deadlocks, heartbeat
from locking.inspection.heartbeat import PUBLISH_AFTER, WAITS, Wait
from locking.inspection.held import Waiter, waiters, waiters_of
from locking.models import LockEvent
from locking.testing.contract.processes import child
from locking.utils.clock import now
from locking.utils.ownership import PROCESS, current_context, new_owner
from tests.backends import BACKENDS, any_engine
from tests.locking.support.helpers import look_for_deadlocks_soon, publishing, take_from
from tests.support.processes import until

PATIENCE = 30.0
ENGINES = ("redis", "database-postgresql", "zookeeper", "etcd")
HAS_LISTS = (*ENGINES, "memory", "redlock", "database-mariadb", "database-sqlite")


@pytest.fixture(autouse=True)
def reporting(monkeypatch):
    """Have this process publish; no thread waits any more at the end.

    On a busy machine a heartbeat may be late; it is believed all the same, so that the same thing happens.
    """
    monkeypatch.setattr(deadlocks, "FRESH", PATIENCE)
    before = set(WAITS)  # a thread that another test gave up on may still wait
    with publishing():
        yield
    assert set(WAITS) <= before


@pytest.fixture
def quick_looks(monkeypatch):
    """Have waiters look sooner; return what counts the looks.

    The intervals are those of `test_further_looks_come_every_three_seconds`; here only their order matters.
    """
    look_for_deadlocks_soon(monkeypatch)
    looks = Counted(deadlocks.find_circle)
    monkeypatch.setattr(deadlocks, "find_circle", looks)
    return looks


@pytest.fixture
def engine(request, settings, django_db_blocker, quick_looks):
    """One backend, reached by this process and its children."""
    row = BACKENDS[getattr(request, "param", "memory")]
    settings.LOCKING = {"default": {**row.reached(request), "KEY_PREFIX": "shop:"}}
    STORES.clear()
    with django_db_blocker.unblock():
        backend = any_engine()
        yield backend
        for claim in backend.held(
            prefix="shop:deadlock:"
        ):  # it lasts a minute, and other tests list what is held
            backend.force_release(claim.key, claim.owner)


def crossing(mine, other, both_hold, *, wait=PATIENCE, take=get_lock):
    """Acquire `mine`, meet the other waiters, then acquire `other`; return the error and its delay."""
    with take(mine, ttl=60):
        both_hold()
        begun = time.monotonic()
        try:
            with take(other, ttl=60, wait=wait):
                return None, time.monotonic() - begun
        except LockNotAcquired as error:
            return error, time.monotonic() - begun


def circle_of_threads(names, **options):
    """Have each thread hold one name and wait for the next; return what came of each."""
    meeting = threading.Barrier(len(names), timeout=PATIENCE)
    with ThreadPoolExecutor(len(names)) as pool:
        pairs = zip(names, names[1:] + names[:1], strict=True)
        runs = [pool.submit(crossing, mine, other, meeting.wait, **options) for mine, other in pairs]
        return [run.result(PATIENCE) for run in runs]


def victims(outcomes):
    """Return the errors of those that gave up."""
    return [error for error, _ in outcomes if error is not None]


@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]])
def test_one_waiter_of_a_circle_gives_up(engine, names):
    """Of two, three or four threads one gets LockDeadlock, and the rest their lock."""
    outcomes = circle_of_threads(names)
    (error,) = victims(outcomes)
    assert isinstance(error, LockDeadlock)
    assert len(error.circle) == len(names)
    assert {each.waits_for for each in error.circle} == set(names)
    assert all(f"holds {name!r}" in str(error) for name in names)


def crossing_process(mine, other):
    """Return the work of a child: hold `mine`, wait for `other` on request, and report what came of it."""

    def work(pipe: Connection) -> None:
        with get_lock(mine, ttl=60):
            pipe.send("held")
            pipe.recv()
            begun = time.monotonic()
            try:
                with get_lock(other, ttl=60, wait=PATIENCE):
                    outcome = None
            except LockNotAcquired as error:
                outcome = error
            delay = time.monotonic() - begun
        pipe.send((outcome, delay))

    return work


def circle_of_processes(names):
    """`circle_of_threads`, each in a process of its own."""
    with ExitStack() as stack:
        pairs = zip(names, names[1:] + names[:1], strict=True)
        children = [stack.enter_context(child(crossing_process(*pair))) for pair in pairs]
        for each in children:
            assert each.report() == "held"
        for each in children[:-1]:
            each.pipe.send("cross")
        until(lambda: {wait.name for wait in waiters()} >= set(names[1:]))  # for the last one to see
        children[-1].pipe.send("cross")
        return [each.report() for each in children]


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
@pytest.mark.parametrize("names", [["a", "b"], ["a", "b", "c"]])
def test_a_circle_of_processes_is_found(engine, names):
    """Across two and three processes, on each engine, one gives up and names all."""
    outcomes = circle_of_processes(names)
    (error,) = victims(outcomes)
    print(f"found after {error.waited:.2f} s")
    assert isinstance(error, LockDeadlock)
    assert sorted(each.waits_for for each in error.circle) == names
    assert len({each.who for each in error.circle}) == len(names)


@pytest.mark.parametrize("engine", [name for name in HAS_LISTS if name not in ENGINES], indirect=True)
def test_a_circle_of_threads_is_found(engine):
    """The same on the other engines whose processes publish their holds."""
    (error,) = victims(circle_of_threads(["a", "b"]))
    assert isinstance(error, LockDeadlock)


# --- who gives up, and with what error --------------------------------------------------------------------


@pytest.fixture
def start():
    """Run a step in a thread of its own and return its future; every one must have ended well."""
    futures = []
    with ThreadPoolExecutor(8) as pool:

        def submit(step, *arguments):
            futures.append(pool.submit(step, *arguments))
            return futures[-1]

        yield submit
        for future in futures:
            future.result(PATIENCE)


def waits_for(name):
    """Whether a thread of this process waits for the lock."""
    return any(wait.name == name for wait in WAITS.values())


def nothing():
    """Meet no other thread."""


def test_the_waiter_that_closed_the_circle_gives_up(engine, start):
    """The last to wait gets the error, and the one before it gets its lock."""
    with get_lock("b", ttl=60):
        earlier = start(crossing, "a", "b", nothing)
        until(lambda: waits_for("b"))
        with pytest.raises(LockDeadlock) as caught:
            get_lock("a", ttl=60, wait=PATIENCE).acquire()
    assert earlier.result(PATIENCE)[0] is None
    first, second = caught.value.circle
    assert (first.holds, first.waits_for, second.holds, second.waits_for) == (("b",), "a", ("a",), "b")
    assert first.since >= second.since


def test_the_error_is_a_refusal_that_survives_pickling(engine):
    """It names who holds what and waits for what, in its text too, and it can be sent between processes."""
    error: Any
    (error,) = victims(circle_of_threads(["a", "b"]))
    copy: Any = pickle.loads(pickle.dumps(error))  # noqa: S301 our own
    assert isinstance(copy, LockDeadlock)
    assert isinstance(error, LockDeadlock)
    assert issubclass(LockDeadlock, LockNotAcquired)
    assert (str(copy), copy.circle) == (str(error), error.circle)
    assert "holds 'a' and waits for 'b'" in str(error)
    assert copy.holder


def test_the_victim_is_reported_to_observers_receivers_and_the_log(engine, caplog):
    """One event with the outcome `deadlock`: once to observers, to both signals, and as a warning."""
    heard = Heard()
    events: list[Any] = []
    signals.observe(heard)
    receivers = {signal: Collector(events) for signal in (signals.lock_deadlocked, signals.lock_refused)}
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    try:
        (error,) = victims(circle_of_threads(["a", "b"]))
        assert signals.flush()
    finally:
        signals.stop_observing(heard)
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
    assert [event.outcome for event in events] == ["deadlock", "deadlock"]
    assert heard.outcomes.count("deadlock") == 1
    assert events[0].reason == error.reason
    (record,) = [each for each in caplog.records if getattr(each, "lock_outcome", "") == "deadlock"]
    assert record.levelname == "WARNING"
    assert "holds 'a' and waits for 'b'" in record.getMessage()


@pytest.mark.django_db(transaction=True)
def test_a_deadlock_is_written_to_the_audit(settings, redis_database, quick_looks):
    """One row with the circle in words, written aside; and it is counted in the last hour's figures."""
    settings.LOCKING = {"default": {**BACKENDS["redis"].settings, "KEY_PREFIX": "shop:"}}
    heartbeat.take_counters()  # what other tests have counted is theirs
    audit.listen()
    try:
        (error,) = victims(circle_of_threads(["a", "b"]))
        assert signals.flush()
    finally:
        signals.lock_deadlocked.disconnect(dispatch_uid="locking.audit")
    row = LockEvent.objects.get()
    assert (row.action, row.name, row.kind, row.done) == ("deadlock", error.name, "lock", True)
    assert row.reason == error.reason
    heartbeat.reporter.beat()
    until(deadlocks_reported)  # the reporter's own thread may have counted it, and be about to tell
    assert deadlocks_reported() == 1


def deadlocks_reported():
    """How many deadlocks the last hour's figures have."""
    return sum(minute.get("deadlock", 0) for minute in heartbeat.last_hour(locks["default"]))


def test_a_deadlock_without_a_database_is_in_the_log(engine, monkeypatch, caplog):
    """The waiter gets its error all the same."""

    def fail(*arguments, **options):
        raise OperationalError("gone")

    monkeypatch.setattr(LockEvent, "save", fail)
    event = signals.LockEvent(outcome="deadlock", name="a", key="shop:a", backend="default/fair", owner="o:1")
    audit.write_event(None, event)
    assert "has no audit row: gone" in caplog.text


class Heard(signals.Observer):
    """What an observer heard."""

    def __init__(self):
        self.outcomes = []

    def happened(self, event):
        """Keep its outcome."""
        self.outcomes.append(event.outcome)


class Collector:
    """A receiver that keeps the events."""

    def __init__(self, events):
        self.events = events

    def __call__(self, sender, event, **kwargs):
        """Keep it."""
        self.events.append(event)


def test_tasks_close_circles_too(engine):
    """Two tasks of one event loop: one gets the error, and the loop goes on meanwhile."""

    async def cross(mine, other, barrier):
        async with get_lock(mine, ttl=60):
            await barrier.wait()
            try:
                async with get_lock(other, ttl=60, wait=PATIENCE):
                    return None
            except LockDeadlock as error:
                return error

    async def main():
        barrier = asyncio.Barrier(2)
        return await asyncio.gather(cross("a", "b", barrier), cross("b", "a", barrier))

    (error,) = [error for error in asyncio.run(main()) if error is not None]
    assert len(error.circle) == 2


def test_a_circle_over_two_backends_is_found(settings, redis_database, quick_looks):
    """One lock in Redis, one in memory: each record is where the contended hold is."""
    settings.LOCKING = {
        "default": {**BACKENDS["redis"].settings, "KEY_PREFIX": "shop:"},
        "other": {**BACKENDS["memory"].settings, "KEY_PREFIX": "shop:"},
    }
    STORES.clear()

    def take(name, **options):
        return get_lock(name, backend="default" if name == "a" else "other", **options)

    (error,) = victims(circle_of_threads(["a", "b"], take=take))
    assert isinstance(error, LockDeadlock)


def blocked(number, since):
    """Return a wait as another process published it."""
    return Waiter(
        id=f"p:{number}", backend="default", kind="lock", key="shop:a", name="a", since=since, waited=1.0
    )


@pytest.mark.parametrize("since_of_last", [-10.0, +3600.0], ids=["right clock", "an hour ahead"])
def test_the_first_that_sees_it_again_gives_up_for_the_last(since_of_last):
    """Where the chosen waiter doesn't give up, because of a wrong clock perhaps, another one does, later."""
    mine, last = blocked(1, time.time() - 20), blocked(2, time.time() + since_of_last)
    watch: Any = object.__new__(deadlocks.DeadlockWatch)
    watch._wait, watch._seen = mine, frozenset()
    assert [watch._should_give_up((mine, last)) for _ in range(2)] == [False, True]
    assert watch._should_give_up((mine,))


@pytest.mark.parametrize("engine", ["memory", "redis"], indirect=True)
def test_two_that_would_give_up_agree_on_one(engine):
    """The one that closed the circle stalls before its verdict, and another gives up for it meanwhile."""
    circle = [replace(blocked(age, time.time() - age), id=new_owner()) for age in (20, 19)]
    verdicts = []
    for mine in circle:
        watch: Any = object.__new__(deadlocks.DeadlockWatch)
        watch._wait = mine
        verdicts.append(watch._claims(tuple(circle)))
    assert verdicts == [True, False]


def stalled_until_another_gives_up(monkeypatch):
    """Have the one that closed the circle stall between look and verdict, and the other look twice."""
    found, gave_up, error_of = threading.Event(), threading.Event(), deadlocks.DeadlockWatch._error
    should_give_up = deadlocks.DeadlockWatch._should_give_up

    def stalling(watch, circle):
        if should_give_up(watch, circle):
            found.set()
            assert gave_up.wait(PATIENCE)
        else:  # its second look, without the pause before it
            assert found.wait(PATIENCE)
        return True

    def error(watch, *args):
        gave_up.set()
        return error_of(watch, *args)

    monkeypatch.setattr(deadlocks.DeadlockWatch, "_should_give_up", stalling)
    monkeypatch.setattr(deadlocks.DeadlockWatch, "_error", error)
    return victims(circle_of_threads(["a", "b"], wait=5.0))


def test_a_stalled_verdict_finds_the_circle_broken(engine, monkeypatch):
    """One of the two gives up, whatever the other has seen before."""
    assert [type(error) for error in stalled_until_another_gives_up(monkeypatch)] == [LockDeadlock]


@pytest.mark.whole
def test_without_a_claim_a_stalled_verdict_has_a_second_victim(engine, monkeypatch):
    """The mutant."""
    monkeypatch.setattr(deadlocks.DeadlockWatch, "_claims", lambda watch, circle: True)
    assert len(stalled_until_another_gives_up(monkeypatch)) == 2


def test_how_long_a_client_waits_is_no_matter_of_clocks(engine, start, monkeypatch):
    """A process whose clock is an hour off publishes the seconds that it measured."""
    monkeypatch.setattr(PROCESS, "started", PROCESS.started - 3600)
    monkeypatch.setattr(heartbeat, "PUBLISH_AFTER", 0.0)
    done, earlier = threading.Event(), set(WAITS)
    start(hold_until, get_lock("a", ttl=60), done)
    until(lambda: engine.holder("shop:a"))
    start(hold_until, get_lock("a", ttl=60, wait=PATIENCE), done)
    until(lambda: waits_for("a"))
    heartbeat.reporter.beat()
    mine = [each for each in waiters() if each.id in WAITS.keys() - earlier]
    done.set()
    assert [each.waited < PATIENCE for each in mine] == [True]


def test_a_record_of_another_version_is_no_error():
    """What can't be read as a wait is left out, and the rest is read."""
    good = {
        "alias": "default",
        "kind": "lock",
        "key": "shop:a",
        "name": "a",
        "since": 1.0,
        "waited": 1.0,
        "holds": [],
    }
    reported = {
        "host": "h",
        "pid": 7,
        "waits": {"p:1": {}, "p:2": None, "p:3": good, "p:4": {**good, "holds": 3}},
    }
    assert [(each.id, each.who) for each in waiters_of(reported)] == [("p:3", "h:7")]


# --- several holders --------------------------------------------------------------------------------------

KINDS_ON = pytest.mark.parametrize("engine", ["memory", "redis", "zookeeper", "etcd"], indirect=True)


def hold_until(lock, event):
    """Hold a lock until the event is set."""
    with lock:
        assert event.wait(PATIENCE)


def hold_then_wait(lock, other, holding):
    """Hold a lock, say so, and wait for another."""
    with lock:
        holding.set()
        with get_lock(other, ttl=60, wait=PATIENCE):
            return


@KINDS_ON
def test_a_writer_waits_for_each_of_several_readers(engine, start):
    """A circle through one of two readers is certain: the writer cannot begin before both have ended."""
    done, reading = threading.Event(), threading.Event()
    with get_lock("a", ttl=60):
        start(hold_until, get_read_lock("r", ttl=60), done)
        start(hold_then_wait, get_read_lock("r", ttl=60), "a", reading)
        assert reading.wait(PATIENCE)
        until(lambda: waits_for("a"))
        with pytest.raises(LockDeadlock):
            get_write_lock("r", ttl=60, wait=PATIENCE).acquire()
        done.set()


@KINDS_ON
def test_a_semaphore_is_a_circle_only_when_all_its_holders_are_in_it(engine, start, quick_looks):
    """With one of two permits held outside the circle the waiter goes on waiting, and gets that one."""
    done, holding = threading.Event(), threading.Event()
    with get_lock("a", ttl=60):
        start(hold_until, get_semaphore("s", 2, ttl=60), done)
        start(hold_then_wait, get_semaphore("s", 2, ttl=60), "a", holding)
        assert holding.wait(PATIENCE)
        until(lambda: waits_for("a") and len(permits_out(engine)) == 2)
        start(set_after_looks, quick_looks, done)
        get_semaphore("s", 2, ttl=60, wait=PATIENCE).acquire().release()


@KINDS_ON
def test_a_semaphore_whose_holders_all_wait_is_found(engine, start):
    """With every permit held by those who wait for the waiter, no thread can go on."""
    with get_lock("a", ttl=60):
        for _ in range(2):
            start(hold_then_wait, get_semaphore("s", 2, ttl=60), "a", holding := threading.Event())
            assert holding.wait(PATIENCE)
        until(lambda: [wait.name for wait in list(WAITS.values())] == ["a", "a"])
        with pytest.raises(LockDeadlock) as caught:
            get_semaphore("s", 2, ttl=60, wait=PATIENCE).acquire()
    assert len(caught.value.circle) == 3


@KINDS_ON
def test_a_free_permit_ends_every_circle_of_its_semaphore(engine, start):
    """A look between a release and its grant sees a permit out that waits for it, and one free."""
    with get_lock("a", ttl=60):
        start(hold_then_wait, get_semaphore("s", 2, ttl=60), "a", threading.Event())
        until(lambda: any(wait.name == "a" for wait in waiters()))
        semaphore: Any = get_semaphore("s", 2)
        wait = Wait(semaphore.terms, current_context(), now())
        assert len(permits_out(engine)) == 1
        assert deadlocks.find_circle(wait) is None


def java_permit(redis_database, monkeypatch):
    """Have a client of another language take a permit that isn't in the list yet."""
    redis_database.zadd("{shop:s}:timeout", {b"0123456789abcdef": (time.time() + 600) * 1000})
    redis_database.decr("shop:s")
    held_as = RedisBackend.held_as
    monkeypatch.setattr(
        RedisBackend, "held_as", lambda self, key: [hold for hold in held_as(self, key) if "-" in hold.owner]
    )


def semaphore_beside_java(start, redis_database, monkeypatch):
    """Wait for a semaphore of which all holders that are listed wait for us, and one that isn't doesn't."""
    with get_lock("a", ttl=60):
        start(hold_then_wait, get_semaphore("s", 2, ttl=60), "a", holding := threading.Event())
        assert holding.wait(PATIENCE)
        java_permit(redis_database, monkeypatch)
        until(lambda: [wait.name for wait in list(WAITS.values())] == ["a"])
        get_semaphore("s", 2, ttl=60, wait=2.0).acquire()


@pytest.mark.whole
@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_permit_that_is_not_listed_is_no_deadlock(engine, start, redis_database, monkeypatch):
    """Its holder may return it at any moment: the waiter waits, as long as it may."""
    with pytest.raises(LockNotAcquired) as caught:
        semaphore_beside_java(start, redis_database, monkeypatch)
    assert not isinstance(caught.value, LockDeadlock)


@pytest.mark.parametrize("engine", ["redis"], indirect=True)
def test_a_list_that_is_taken_for_complete_is_a_false_alarm(engine, start, redis_database, monkeypatch):
    """The mutant, which follows the holders that are listed."""
    monkeypatch.setattr(
        deadlocks, "holders_of", lambda wait: [hold.owner for hold in any_engine().held_as(wait.key)]
    )
    with pytest.raises(LockDeadlock):
        semaphore_beside_java(start, redis_database, monkeypatch)


def set_after_looks(looks, event, number=2):
    """Set the event once as many more looks have ended: of two, one has begun since."""
    wanted = looks.calls + number
    until(lambda: looks.calls >= wanted or event.is_set())
    event.set()


def permits_out(engine):
    """Return the holds of the semaphore."""
    return engine.held(prefix="shop:s")


# --- never a false alarm ----------------------------------------------------------------------------------


def check_a_circle_that_dissolves(engine, start, monkeypatch, looks):
    """Nothing is raised for a circle that has gone when it is read again: here its other hold is broken."""
    confirm = deadlocks.is_confirmed

    def break_then_confirm(circle, mine):
        if mine.name == "a":  # the one that would give up
            assert take_from("a", owner=engine.holder("shop:a").owner)
        return confirm(circle, mine)

    monkeypatch.setattr(deadlocks, "is_confirmed", break_then_confirm)
    with get_lock("b", ttl=60):
        start(loses_a)
        until(lambda: waits_for("b"))
        get_lock("a", ttl=60, wait=PATIENCE).acquire().release()


def loses_a():
    """Hold a, lose it while waiting for b."""
    with pytest.raises(LockLost), get_lock("a", ttl=60), get_lock("b", ttl=60, wait=PATIENCE):
        pass


def check_a_wait_that_is_over(engine, start, monkeypatch, looks):
    """A wait that was published and has ended is no edge any more, whatever the last heartbeat said.

    One thread holds a, waits for b, gets it and releases it. Then b is taken again, by one who waits for a.
    """
    has_b, release_b, release_a = threading.Event(), threading.Event(), threading.Event()
    start(hold_until, get_lock("b", ttl=60), release_b)
    until(lambda: engine.holder("shop:b"))
    start(a_around_b, has_b, release_a)
    until(lambda: any(wait.published for wait in list(WAITS.values())))
    heartbeat.reporter.running = False  # no further heartbeat tells that the wait is over
    monkeypatch.setattr(heartbeat.HeartbeatPublisher, "start", lambda _: None)
    monkeypatch.setattr(heartbeat.HeartbeatPublisher, "publish_by", lambda *_: None)
    release_b.set()
    assert has_b.wait(PATIENCE)
    with get_lock("b", ttl=60, wait=PATIENCE):
        start(set_after_looks, looks, release_a, 1)  # no other wait could be looking now
        try:
            get_lock("a", ttl=60, wait=PATIENCE).acquire().release()
        finally:
            release_a.set()


def a_around_b(has_b, release_a):
    """Hold a; within it, take b for a moment."""
    with get_lock("a", ttl=60):
        with get_lock("b", ttl=60, wait=PATIENCE):
            has_b.set()
        assert release_a.wait(PATIENCE)


CHECKS = [check_a_circle_that_dissolves, check_a_wait_that_is_over]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("engine", ["memory", "redis"], indirect=True)
def test_no_false_alarm(engine, start, monkeypatch, quick_looks, check):
    """What was a circle, or looks like one, raises nothing."""
    check(engine, start, monkeypatch, quick_looks)


@pytest.mark.parametrize("engine", ["memory", "redis"], indirect=True)
def test_without_a_second_reading_there_are_false_alarms(engine, start, monkeypatch):
    """The mutant that believes its first reading gives up although the circle has gone."""

    def believes(circle, mine):
        if mine.name == "a":
            assert take_from("a", owner=engine.holder("shop:a").owner)
        return True

    with monkeypatch.context() as patch, pytest.raises(LockDeadlock):
        patch.setattr(deadlocks, "is_confirmed", believes)
        with get_lock("b", ttl=60):
            start(loses_a)
            until(lambda: waits_for("b"))
            get_lock("a", ttl=60, wait=PATIENCE).acquire()


@pytest.mark.parametrize("engine", ["memory", "redis"], indirect=True)
def test_without_withdrawing_there_are_false_alarms(engine, start, monkeypatch, quick_looks):
    """The mutant that leaves a wait published when it ends has another one give up for it."""
    monkeypatch.setattr(deadlocks.DeadlockWatch, "end", lambda watch: WAITS.pop(watch._wait.id) and None)
    with pytest.raises(LockDeadlock):
        check_a_wait_that_is_over(engine, start, monkeypatch, quick_looks)


def test_without_a_look_no_waiter_gives_up(engine, monkeypatch):
    """The mutant that never looks leaves both to wait until their time is over."""
    monkeypatch.setattr(deadlocks.DeadlockWatch, "look", lambda watch, busy: setattr(watch, "_looks", 9))
    outcomes = circle_of_threads(["a", "b"], wait=0.3)
    assert [type(error) for error in victims(outcomes)] != [LockDeadlock]
    assert all(delay >= 0.3 for error, delay in outcomes if error is not None)


ACQUISITIONS = int(os.environ.get("HOLDFAST_ACQUISITIONS", "300"))
"""How many contended acquisitions raise no false alarm; the guide's figure is for 10,000."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["memory", "redis"], indirect=True)
def test_contention_without_a_circle_raises_nothing(engine, monkeypatch, quick_looks):
    """Eight threads nest locks in sorted order, and look at them every few milliseconds."""
    monkeypatch.setattr(deadlocks, "FIRST_LOOK", 0.002)
    monkeypatch.setattr(deadlocks, "LOOK_EVERY", 0.004)
    for module in (deadlocks, heartbeat):
        monkeypatch.setattr(module, "PUBLISH_AFTER", 0.001)
    contended = Counts()
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(nests, seed, contended, quick_looks) for seed in range(8)]
        for run in runs:
            run.result(240)


class Counts:
    """Counts what several threads do."""

    def __init__(self):
        self.count = 0
        self._mutex = threading.Lock()

    def add(self):
        """Count one more."""
        with self._mutex:
            self.count += 1


class Counted:
    """Counts the calls of a function that have ended; one call at a time."""

    def __init__(self, function):
        self.function, self.calls = function, 0
        self.one_at_a_time = threading.Lock()

    def __call__(self, *arguments):
        """Call and count."""
        with self.one_at_a_time:
            try:
                return self.function(*arguments)
            finally:
                self.calls += 1


def nests(seed, contended, looks):
    """Take locks within locks, always in sorted order, until enough were waited for and looked at."""
    choose = random.Random(seed)
    while contended.count < ACQUISITIONS or looks.calls <= ACQUISITIONS / 100:
        outer, *inner = sorted(choose.sample("abcd", 3))
        holding = acquire_counted(outer, contended)
        for name in inner:  # one after the other, so that a wait which is over was followed by another
            lease = acquire_counted(name, contended)
            time.sleep(0.002)  # the work, during which others come to wait
            lease.release()
        holding.release()


def acquire_counted(name, contended):
    """Acquire a lock; count it if it had to be waited for."""
    lease = get_lock(name, ttl=60).try_acquire()
    if lease is None:
        contended.add()
        lease = get_lock(name, ttl=60, wait=PATIENCE).acquire()
    return lease


# --- what it costs ----------------------------------------------------------------------------------------


def test_a_waiter_that_holds_nothing_asks_no_other(engine, start, quick_looks):
    """It publishes nothing by itself and never looks, however long it waits."""
    done = threading.Event()
    start(hold_until, get_lock("a", ttl=60), done)
    until(lambda: engine.holder("shop:a"))
    with pytest.raises(LockNotAcquired):
        get_lock("a", ttl=60, wait=0.2).acquire()
    done.set()
    assert quick_looks.calls == 0


class Asked:
    """Notes what this process asks an engine for its waiters."""

    VERBS = ("publish_heartbeats", "heartbeats", "holder", "held", "find_held")

    def __init__(self, monkeypatch, engine, waiter):
        self.requests = []
        for verb in self.VERBS:
            monkeypatch.setattr(engine, verb, self._noted(verb, getattr(engine, verb)))
        monkeypatch.setattr(waiter, "try_acquire", self._noted("try_acquire", waiter.try_acquire))

    def _noted(self, verb, function):
        def noted(*arguments, **options):
            self.requests.append(verb)
            return function(*arguments, **options)

        return noted


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_a_waiter_that_holds_something_asks_once_a_second(engine, start, monkeypatch):
    """Without a circle: publish, ask and read once, and nothing else before the second look."""
    monkeypatch.setattr(deadlocks, "LOOK_EVERY", PATIENCE)
    waiter = type(engine.waiter("shop:b", "w:1", 60.0))
    done = threading.Event()
    start(hold_until, get_lock("b", ttl=60), done)
    until(lambda: engine.holder("shop:b"))
    monkeypatch.setattr(heartbeat.HeartbeatPublisher, "beat", lambda publisher: None)  # not for the waiter
    asked = Asked(monkeypatch, engine, waiter)
    waits_in_vain()
    tries = asked.requests.count("try_acquire")
    with get_lock("a", ttl=60):
        asked.requests.clear()
        waits_in_vain()
    done.set()
    others = [verb for verb in asked.requests if verb not in ("try_acquire", "publish_heartbeats")]
    assert others == ["heartbeats"]
    assert asked.requests.count("publish_heartbeats") <= 3  # the process's heartbeat may be due, too
    assert asked.requests.count("try_acquire") <= tries + 1  # one more than one that holds nothing


def waits_in_vain():
    """Wait for b, longer than until the first look and not until the second."""
    with pytest.raises(LockNotAcquired):
        get_lock("b", ttl=60, wait=0.4).acquire()


def test_a_long_chain_is_looked_at_less_often(monkeypatch):
    """Each waiter of it costs two requests; the next look comes that many seconds later."""
    chain = [replace(blocked(n, 1.0), holds=(("default", f"o:{n}", "x"),)) for n in range(5)]
    monkeypatch.setattr(deadlocks, "holders_of", lambda wait: [f"o:{int(wait.id[2:]) + 1}"])
    found = {hold: wait for wait in chain for hold in wait.owners}
    monkeypatch.setattr(deadlocks, "waiter_with", found.get)
    monkeypatch.setattr(deadlocks, "now", lambda: 0.0)
    search = deadlocks.Search(chain[0])
    assert search.circle() is None
    assert search.asked == 2 * len(chain)
    watch: Any = object.__new__(deadlocks.DeadlockWatch)
    watch._looks, watch._wait, watch.active = 1, SimpleNamespace(begun=0.0, asked=search.asked), True
    assert watch.due() == deadlocks.FIRST_LOOK + search.asked + 1


def test_further_looks_come_every_three_seconds(monkeypatch):
    """Each asks for the lock, too: less than once a second."""
    times = []
    monkeypatch.setattr(deadlocks, "now", lambda: 0.0)
    watch: Any = object.__new__(deadlocks.DeadlockWatch)
    watch.active = True
    for watch._looks in range(4):
        watch._wait = SimpleNamespace(begun=0.0, asked=watch._looks)
        times.append(watch.due())
    assert times == pytest.approx([1.25, 4.25, 7.25, 10.25])
    assert times[0] > PUBLISH_AFTER
