"""Pending releases are released, by a thread that delays no renewal."""

import asyncio
import threading
from functools import partial
from unittest import mock

import pytest

from locking import (
    BackendUnavailable,
    LockNotAcquired,
    LockNotOwned,
    assert_locked,
    get_lock,
    get_read_lock,
    get_write_lock,
)
from locking.core.handler import locks
from locking.core.lease import HOLDS, SingleLease, State
from locking.core.pending_release import PendingRelease, ReleaseQueue, release_retrier
from locking.testing.contract.base import until
from locking.utils.clock import now
from locking.utils.ownership import client_of_work, new_owner

PATIENCE = 30.0

pytestmark = pytest.mark.usefixtures("memory_locks")


def fail(*args):
    """What a server says that isn't there."""
    raise BackendUnavailable("no server")


def retrier_threads():
    """The release_retrier's threads in this process."""
    return [thread for thread in threading.enumerate() if thread.name == "locking-tidy"]


@pytest.fixture
def hung(monkeypatch):
    """Releases hang until the event is set; a second event tells that one does."""
    let_go, begun = threading.Event(), threading.Event()

    def hang(*args):
        begun.set()
        assert let_go.wait(PATIENCE)
        return False

    monkeypatch.setattr(locks["default"], "release", hang)
    yield begun
    let_go.set()
    until(lambda: not retrier_threads(), PATIENCE)


def test_a_pending_release_is_released_only_after_a_second_answer():
    """A server that answers again may still have the late acquisition before it: one look isn't enough."""
    backend, owner = locks["default"], new_owner()
    pending = PendingRelease(backend, "a", owner, until=now() + 60)
    queue = ReleaseQueue()
    queue.releases.append(pending)
    queue.record(pending, answered=pending.attempt())
    assert list(queue.releases) == [pending]
    backend.try_acquire("a", owner, 60.0)  # the pending appears after the first look
    queue.record(pending, answered=pending.attempt())
    assert not queue.releases
    assert backend.holder("a") is None


def test_a_pending_release_is_sought_until_its_lease_would_be_over(monkeypatch):
    """While no server answers the release is tried again, and given up once the lease must be over."""
    queue = ReleaseQueue()
    queue.releases.extend(
        PendingRelease(locks["default"], "a", new_owner(), until=now() + far) for far in (60, 0, 60)
    )
    first, _, last = queue.releases
    queue.record(first, answered=False)
    assert list(queue.releases) == [last, first]


def test_an_outage_is_asked_about_once_for_all_pending_release(monkeypatch):
    """Many failed acquisitions don't keep a core busy during an outage; all are released after it."""
    backend, asked, answering = locks["default"], [], threading.Event()
    release = backend.release

    def silent(key, owner):
        asked.append(key)
        if not answering.is_set():
            raise BackendUnavailable("no server")
        return release(key, owner)

    monkeypatch.setattr(backend, "release", silent)
    monkeypatch.setattr("locking.core.pending_release.RETRY_PAUSE", 0.05)
    monkeypatch.setattr("locking.core.pending_release.CONFIRM_PAUSE", 0.0)
    owners = [(f"a{number}", new_owner()) for number in range(500)]
    for key, owner in owners:
        backend.try_acquire(key, owner, 60.0)
        release_retrier.schedule(backend, key, owner, 60.0)
    until(lambda: len(asked) >= 4, PATIENCE)
    begun, before = now(), len(asked)
    until(lambda: len(asked) >= before + 4, PATIENCE)
    assert now() - begun > 3 * 0.05, "four attempts are three pauses apart"
    assert len(set(asked[before : before + 4])) == 4, "each time another"
    answering.set()
    until(lambda: not retrier_threads(), PATIENCE)
    assert not any(backend.holder(key) for key, _ in owners)


def test_a_pending_releases_spares_the_holder():
    """Only the pending's own hold is released."""
    with get_lock("a", ttl=60) as lease:
        pending = PendingRelease(locks["default"], "a", new_owner(), until=now() + 60)
        pending.attempt()
        pending.attempt()
        holder = locks["default"].holder("a")
        assert holder is not None
        assert holder.owner == lease.owner


def test_a_server_that_hangs_at_a_pending_releases_delays_no_renewal(hung, monkeypatch):
    """While the release_retrier waits for an answer, the watchdog renews other leases again and again."""
    monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.1 / 30)
    lease = get_lock("a").acquire()
    release_retrier.schedule(locks["default"], "b", new_owner(), 60.0)
    assert hung.wait(PATIENCE)
    before = lease.leases[0].renewals
    until(lambda: lease.leases[0].renewals >= before + 3, PATIENCE)
    assert retrier_threads()


def test_the_thread_lasts_as_long_as_there_is_a_pending_release(monkeypatch):
    """It ends with the last pending release, and the next pending starts another."""
    monkeypatch.setattr("locking.core.pending_release.CONFIRM_PAUSE", 0.01)
    for _ in range(2):
        release_retrier.schedule(locks["default"], "a", new_owner(), 60.0)
        until(lambda: not retrier_threads(), PATIENCE)


def test_cleared_releases_are_not_retried(monkeypatch):
    """Nothing is asked of a server any more, and the thread ends."""
    monkeypatch.setattr(locks["default"], "release", fail)
    release_retrier.schedule(locks["default"], "a", new_owner(), 60.0)
    release_retrier.reset()
    until(lambda: not retrier_threads(), PATIENCE)


def test_a_surprise_ends_neither_the_thread_nor_the_other_pending_releases(monkeypatch, caplog):
    """An error that no backend should raise is logged; the pending beside it is released all the same."""
    monkeypatch.setattr("locking.core.pending_release.CONFIRM_PAUSE", 0.01)
    monkeypatch.setattr("locking.core.pending_release.RETRY_PAUSE", 0.02)
    backend, owner = locks["default"], new_owner()
    release = backend.release
    monkeypatch.setattr(backend, "release", lambda key, owner: 1 / 0 if key == "odd" else release(key, owner))
    backend.try_acquire("a", owner, 60.0)
    release_retrier.schedule(backend, "odd", new_owner(), 60.0)
    release_retrier.schedule(backend, "a", owner, 60.0)
    until(lambda: backend.holder("a") is None, PATIENCE)
    assert "division by zero" in caplog.text


@pytest.fixture
def unheard(memory_locks, monkeypatch):
    """The server lets locks go, and its answers are lost."""
    backend = locks["default"]
    release = backend.release

    def released_unheard(key, owner):
        release(key, owner)
        raise BackendUnavailable("the answer was lost")

    monkeypatch.setattr(backend, "release", released_unheard)


def half_released(name):
    """A lock, and its lease, whose release was begun and not answered."""
    lock = get_lock(name, ttl=60)
    lease = lock.acquire()
    with pytest.raises(BackendUnavailable):
        lock.release()
    return lock, lease


@pytest.mark.usefixtures("unheard")
def test_a_hold_whose_release_got_no_reply_is_not_entered_again():
    """It may be free on the server, and another's: a second request gets a hold of its own, or waits."""
    _, first = half_released("a")
    assert get_lock("a", ttl=60).acquire().leases[0].owner != first.leases[0].owner


@pytest.mark.usefixtures("unheard")
def test_without_the_rule_it_would_be_entered_again(monkeypatch):
    """The mutant of the test above: it re-enters a hold that may be another's."""
    monkeypatch.setattr(
        "locking.core.lock.held_by",
        lambda context, alias, key: HOLDS.get((alias, key, id(context)), lambda: None)(),
    )
    _, first = half_released("a")
    monkeypatch.setattr(SingleLease, "ensure_held", lambda lease: None)
    assert get_lock("a", ttl=60).acquire() is first


@pytest.mark.usefixtures("unheard")
def test_a_hold_whose_release_got_no_reply_proves_nothing():
    """Neither lock nor lease nor `assert_locked` call it held, and it can't be extended."""
    lock, lease = half_released("a")
    assert not lock.owned()
    assert (lease.state, lease.remaining()) == (State.UNKNOWN, 0.0)
    for claim in (lease.ensure_held, partial(lease.extend, 60), partial(assert_locked, "a")):
        with pytest.raises(LockNotOwned):
            claim()


def test_a_write_hold_whose_release_got_no_reply_lets_no_reader_in(monkeypatch):
    """Its former holder asks for the shared side as others do, and is refused while the server has it."""
    writing = get_write_lock("a", ttl=60).acquire()
    monkeypatch.setattr(writing.leases[0].backend, "release", fail)
    with pytest.raises(BackendUnavailable):
        writing.release()
    with pytest.raises(LockNotAcquired):
        get_read_lock("a", ttl=60).acquire(wait=0)


def release_unanswered(monkeypatch, act):
    """Leave a lock's block while its first release is not answered; return what was released later."""
    release, released, failures = locks["default"].release, [], [BackendUnavailable("down")]

    def once_down(key, owner):
        if failures:
            raise failures.pop()
        released.append(owner)
        return release(key, owner)

    monkeypatch.setattr(locks["default"], "release", once_down)
    lock = get_lock("a", ttl=600)
    act(lock)
    with lock as lease:
        pass
    return lease, released


def test_the_release_of_a_tasks_lock_is_retried(monkeypatch):
    """Its owner is of this one run, whatever other runs act for the task: no caller waits for the ttl."""
    lease, released = release_unanswered(monkeypatch, lambda lock: lock.act_for(client_of_work("task-7")))
    until(lambda: not get_lock("a").locked(), PATIENCE)
    assert set(released) == {lease.owner}


def test_the_release_of_a_given_owner_is_not_retried(monkeypatch):
    """It may be another process's by then, which goes on under the same owner."""
    schedule = mock.Mock()
    monkeypatch.setattr(release_retrier, "schedule", schedule)
    release_unanswered(monkeypatch, lambda lock: lock.act_as(new_owner()))
    schedule.assert_not_called()


async def cancel_during_release(monkeypatch):
    """Cancel a task whose release is under way, and is never answered there."""
    begun = asyncio.Event()

    async def hang(key, owner):
        begun.set()
        await asyncio.Event().wait()

    async def hold():
        async with get_lock("a", ttl=600):
            pass

    monkeypatch.setattr(locks["default"], "arelease", hang)
    task = asyncio.create_task(hold())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_release_that_is_cancelled_is_retried(monkeypatch):
    """A task that is cancelled while it releases leaves no lock taken for the rest of its lease."""
    await cancel_during_release(monkeypatch)
    await asyncio.to_thread(until, lambda: locks["default"].holder("a") is None, PATIENCE)


async def test_without_the_retry_a_cancelled_release_leaves_the_lock_taken(monkeypatch):
    """The mutant of the test above."""
    monkeypatch.setattr(release_retrier, "schedule", mock.Mock())
    await cancel_during_release(monkeypatch)
    assert locks["default"].holder("a") is not None
