"""Signals: one event for each thing that becomes of a lock, on every backend, and no harm from a receiver."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.dispatch import Signal
from django.test.utils import override_settings

from locking import BackendUnavailable, LockNotAcquired, get_lock, get_semaphore, locked_transaction, signals
from locking.core.handler import locks
from locking.signals import LockEvent
from locking.testing import simulate_contention, simulate_loss
from locking.utils.ownership import new_owner
from tests.backends import BACKENDS
from tests.locking.support.helpers import elsewhere, take_from

pytestmark = pytest.mark.django_db(transaction=True)

ALL = [
    signals.lock_acquired,
    signals.lock_refused,
    signals.lock_released,
    signals.lock_lost,
    signals.lock_force_released,
]

SHORTER_THAN_STUCK = 5.0  # seconds; a lease that would be lost if its section waited for the receiver


@pytest.fixture(params=["redis", "memory", "database-postgresql", "zookeeper"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """One backend of each sort, as the default alias: signals are made above all of them."""
    with override_settings(LOCKING={"default": BACKENDS[request.param].reached(request)}):
        yield "default"


@pytest.fixture
def connect() -> Iterator[Any]:
    """Connect receivers for the length of the test."""
    connected: list[tuple[Signal, Any]] = []

    def connect(signal: Signal, receiver: Any) -> None:
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield connect
    signals.flush()
    for signal, receiver in connected:
        signal.disconnect(receiver)


@pytest.fixture
def events(connect: Any) -> list[LockEvent]:
    """What the signals sent, in order; `reported()` waits for it."""
    heard: list[LockEvent] = []
    for signal in ALL:
        connect(signal, lambda event, **_: heard.append(event))
    return heard


def reported(events: list[LockEvent]) -> list[str]:
    """The outcomes so far, in order."""
    assert signals.flush()
    return [event.outcome for event in events]


def test_a_hold_is_reported_when_it_begins_and_ends(backend: str, events: list[LockEvent]) -> None:
    """Acquired and released carry the same owner and token, and seconds where they are known."""
    with get_lock("order:7", ttl=10) as lease:
        pass
    assert reported(events) == ["acquired", "released"]
    acquired, released = events
    assert (acquired.name, acquired.backend, acquired.ttl) == ("order:7", "default", 10)
    assert acquired.owner == released.owner == lease.owner
    assert acquired.token == released.token == lease.fencing_token
    assert (acquired.token > 0) is locks[backend].supports_fencing
    assert acquired.waited is not None
    assert acquired.held is None
    assert released.held is not None
    assert released.held >= 0
    assert acquired.thread == threading.current_thread().name
    with pytest.raises(AttributeError):
        acquired.name = "another"  # type: ignore[misc]


async def test_asyncio_tells_the_same(backend: str, events: list[LockEvent]) -> None:
    """The asynchronous verbs send the same signals."""
    async with get_lock("order:7", ttl=10):
        pass
    engine, rival = locks[backend], new_owner()
    await engine.atry_acquire(engine.key("order:8"), rival, 30.0)
    assert await get_lock("order:8").atry_acquire() is None
    await engine.arelease(engine.key("order:8"), rival)
    assert reported(events) == ["acquired", "released", "contended"]


def test_a_re_entry_is_no_event(backend: str, events: list[LockEvent]) -> None:
    """Only the outermost hold begins and ends."""
    with get_lock("order:7", ttl=10), get_lock("order:7", ttl=10):
        assert reported(events) == ["acquired"]
    assert reported(events) == ["acquired", "released"]


def test_several_names_are_several_events(backend: str, events: list[LockEvent]) -> None:
    """Each name tells its own; those taken before one was refused tell their release."""
    with simulate_contention("b"), pytest.raises(LockNotAcquired):
        get_lock("a", "b", ttl=10, wait=0).acquire()
    assert reported(events) == ["acquired", "contended", "released"]
    assert [event.name for event in events] == ["a", "b", "a"]


def test_a_refusal_names_the_holder(backend: str, events: list[LockEvent]) -> None:
    """A refusal tells how long was waited, and who has the lock."""
    with simulate_contention("order:7") as rival, pytest.raises(LockNotAcquired):
        get_lock("order:7", wait=0).acquire()
    assert reported(events) == ["contended"]
    assert events[0].holder == rival
    assert events[0].waited is not None


def test_an_outage_is_a_refusal_of_its_own_kind(backend_down: str, events: list[LockEvent]) -> None:
    """`unavailable` differs from `contended`."""
    with pytest.raises(BackendUnavailable):
        get_lock("order:7", backend=backend_down).acquire()
    assert reported(events) == ["unavailable"]


def test_a_lost_lock_is_reported_once(backend: str, events: list[LockEvent]) -> None:
    """Lost, however often it is asked for afterwards, and never released as well."""
    lease = get_lock("order:7").acquire()
    simulate_loss(lease)
    with suppress(Exception):
        lease.release()
    assert reported(events) == ["acquired", "lost"]


def test_a_lock_left_to_its_ttl_is_kept(backend: str, events: list[LockEvent]) -> None:
    """`keep()` and `min_hold` end the work, not yet the lock."""
    left, early = get_lock("form:7", ttl=60).acquire(), get_lock("form:8", min_hold=20).acquire()
    left.leave_to_expire()
    early.release()
    assert reported(events) == ["acquired"] * 2 + ["kept"] * 2
    for single in (*left.leases, *early.leases):  # other tests list what is held
        single.backend.release(single.key, single.owner)


def test_a_forced_release_is_reported(backend: str, events: list[LockEvent]) -> None:
    """Only a hold that was really broken is reported; a wrong owner breaks nothing."""
    with simulate_contention("order:7") as rival:
        assert not take_from("order:7", owner="another")
        assert take_from("order:7", owner=rival)
    assert reported(events) == ["force_released"]
    assert events[0].owner == rival


def test_other_kinds_tell_too(events: list[LockEvent]) -> None:
    """A semaphore's permits send the signals of any lock."""
    with get_semaphore("mail", permits=2):
        pass
    assert reported(events) == ["acquired", "released"]


@pytest.mark.parametrize("signal", [signals.lock_acquired, signals.lock_released])
def test_a_receiver_that_never_returns_holds_nothing_up(backend: str, connect: Any, signal: Signal) -> None:
    """While a receiver is stuck, locks are taken and let go as ever."""
    stuck, go_on = threading.Event(), threading.Event()

    def receiver(**_: Any) -> None:
        stuck.set()
        go_on.wait(30)

    connect(signal, receiver)
    try:
        with get_lock("order:7", ttl=SHORTER_THAN_STUCK):
            pass
        assert stuck.wait(25)
        with get_lock("order:7", ttl=SHORTER_THAN_STUCK) as lease:
            assert lease.remaining() > 0
        assert not elsewhere(get_lock("order:7").locked)
        assert not signals.flush(timeout=0.01)
    finally:
        go_on.set()


def test_a_receiver_that_raises_is_logged_and_hurts_no_other(
    backend: str, connect: Any, events: list[LockEvent], caplog: pytest.LogCaptureFixture
) -> None:
    """The other receivers are called, the body's result is kept, and the log has the error."""

    def receiver(**_: Any) -> None:
        raise RuntimeError("no harm")

    for signal in ALL:
        connect(signal, receiver)
    with get_lock("order:7"):
        pass
    assert reported(events) == ["acquired", "released"]
    assert "no harm" in caplog.text


def test_a_receiver_without_a_name_that_raises_hurts_no_other_either(
    connect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A partial has no `__qualname__`, which Django's log of a failure names; those behind it are called."""
    received: list[str] = []

    def receiver(to: str, **_: Any) -> None:
        raise RuntimeError("no harm")

    connect(signals.lock_acquired, partial(receiver, "ops"))
    connect(signals.lock_acquired, lambda event, **_: received.append(event.name))
    with get_lock("order:7"):
        pass
    assert signals.flush()
    assert received == ["order:7"]
    assert "no harm" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_released_lock_is_free_when_it_is_reported(connect: Any) -> None:
    """`released` comes after COMMIT and release: a receiver may take the lock."""
    seen: list[bool] = []
    connect(signals.lock_released, lambda event, **_: seen.append(get_lock(event.name).locked()))
    with locked_transaction("order:7"):
        pass
    assert signals.flush()
    assert seen == [False]


def test_a_full_queue_drops_and_says_so(
    events: list[LockEvent], connect: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Receivers that can't keep up lose events; they never fill the memory nor block a section."""
    monkeypatch.setattr(signals, "MOST_WAITING", 1)
    signals._dispatcher.reset()
    go_on, stuck = threading.Event(), threading.Event()

    def receiver(**_: Any) -> None:
        stuck.set()
        go_on.wait(30)

    connect(signals.lock_acquired, receiver)
    first = get_lock("first", ttl=5).acquire()
    assert stuck.wait(25)
    with caplog.at_level(logging.ERROR, "locking"), get_lock("second", ttl=5), get_lock("third", ttl=5):
        pass
    go_on.set()
    assert "dropped" in caplog.text
    first.release()
    monkeypatch.undo()
    signals.flush()
    signals._dispatcher.reset()


def test_a_forked_child_tells_its_own(events: list[LockEvent]) -> None:
    """The child has no thread of its parent's: it starts one for its own events."""
    with get_lock("parent", ttl=5):
        pass
    assert reported(events) == ["acquired", "released"]
    child = os.fork()
    if child == 0:
        events.clear()
        with suppress(BaseException), get_lock("child", ttl=5):
            pass
        signals.flush()
        os._exit(0 if [event.name for event in events] == ["child", "child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert reported(events) == ["acquired", "released"]


def test_without_receivers_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is made, nothing is queued, no thread runs."""
    monkeypatch.setattr(signals._dispatcher, "put", lambda *_: pytest.fail("an event without a listener"))
    with get_lock("order:7", ttl=5):
        pass
