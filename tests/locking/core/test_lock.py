"""`Lock` beyond the contract: several names, sharing, assertions, and what is cleaned up when."""

import asyncio
from datetime import timedelta
from unittest import mock

import pytest

from locking import (
    BackendError,
    BackendUnavailable,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    assert_locked,
    get_lock,
)
from locking.backends.memory import STORES, MemoryWaiter, Store
from locking.core.handler import locks
from locking.core.lease import HOLDS
from locking.core.lock import SingleLock
from locking.core.pending_release import release_retrier
from locking.testing import held_locks, simulate_contention, simulate_loss
from locking.testing.contract.asyncio_ import auntil
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until
from locking.utils.ownership import new_owner

pytestmark = pytest.mark.usefixtures("memory_locks")
PATIENCE = 30.0


def test_names_share_one_wait():
    """The wait is for all names together, not for each."""
    with simulate_contention("b"), pytest.raises(LockNotAcquired) as caught:
        get_lock("a", "b", wait=0.1).acquire()
    assert caught.value.name == "b"
    assert held_locks() == []
    assert not get_lock("a").locked()


def test_names_are_taken_in_sorted_order():
    """Whatever order the caller used, the first name that is asked for is the least."""
    with simulate_contention("a", waits=True), counted_waiters(locks["default"]) as waiters:
        waiter = begin(get_lock("c", "a", "b", wait=60).acquire)
        until(waiters.number, PATIENCE)
        assert not get_lock("b").locked()
        assert not get_lock("c").locked()
    waiter.result(timeout=PATIENCE).release()


def test_an_error_rolls_back_the_names_taken_before():
    """Not only a busy name: any failure leaves none of them taken."""
    place = locks["default"].waiter

    def failing(key, *args, **kwargs):
        if key == "b":
            raise BackendUnavailable("no answer")
        return place(key, *args, **kwargs)

    with mock.patch.object(locks["default"], "waiter", failing), pytest.raises(BackendUnavailable):
        get_lock("a", "b").acquire()
    assert held_locks() == []
    assert not get_lock("a").locked()


def test_a_failing_roll_back_does_not_mask_the_reason():
    """The caller learns why the names weren't got, even if letting go of one failed as well."""
    down = mock.Mock(side_effect=BackendUnavailable("down"))
    with (
        simulate_contention("b"),
        mock.patch.object(locks["default"], "release", down),
        pytest.raises(LockNotAcquired),
    ):
        get_lock("a", "b").acquire(wait=0)
    assert down.called


def test_a_cancelled_task_rolls_back_its_names():
    """A task that is cancelled while it waits for its last name keeps none."""

    async def scenario():
        with simulate_contention("b", waits=True), counted_waiters(locks["default"]) as waiters:
            task = asyncio.create_task(get_lock("a", "b", wait=60).aacquire())
            await auntil(waiters.number, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not await get_lock("a", "b").alocked()

    asyncio.run(scenario())


def test_every_name_is_released_even_if_one_fails():
    """The first error is raised after all were tried."""
    lease = get_lock("a", "b", "c").acquire()
    simulate_loss(lease.leases[1])
    with pytest.raises(LockLost, match="'b'"):
        lease.release()
    assert not get_lock("a", "c").locked()


@pytest.mark.parametrize("lost", [0, 1])
def test_of_several_names_one_is_lost_and_the_others_release_is_retried(lost, monkeypatch):
    """The loss is raised at the end of the block; the other name, kept locked by an outage, is released."""
    scheduled = mock.Mock()
    monkeypatch.setattr(release_retrier, "schedule", scheduled)
    release = locks["default"].release

    def down(key, owner):
        if key == lease.leases[lost].key:
            return release(key, owner)
        raise BackendUnavailable("down")

    with (
        pytest.raises(LockLost),
        mock.patch.object(locks["default"], "release", down),
        get_lock("a", "b", ttl=60) as lease,
    ):
        simulate_loss(lease.leases[lost])
    assert [call.args[1] for call in scheduled.call_args_list] == [lease.leases[1 - lost].key]


def test_part_of_several_names_may_be_held_already():
    """Re-entry works name by name."""
    with get_lock("b"):
        with get_lock("a", "b", "c"):
            assert held_locks() == ["a", "b", "c"]
        assert held_locks() == ["b"]


def test_a_hold_is_owned_by_its_name_as_re_entry_counts():
    """Whatever acquired it: another object, the decorator; one name that isn't held is enough for no."""
    with get_lock("a", ttl=60):
        assert get_lock("a").owned()
        assert 50 < get_lock("a").remaining() <= 60
        assert not get_lock("a", "b").owned()
        assert not elsewhere(get_lock("a").owned)
        with get_lock("b"):
            assert get_lock("a", "b").owned()
    assert not get_lock("a").owned()


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_lease_is_extended_by_a_timedelta(names):
    """A length of time is taken wherever seconds are."""
    lock = get_lock(*names, ttl=timedelta(seconds=10), wait=timedelta(0), min_hold=timedelta(0))
    with lock as lease:
        lock.extend(timedelta(minutes=2))
        lease.extend(timedelta(minutes=1))
        assert 110 < lease.remaining() <= 120
    assert lock.acquire(wait=timedelta(seconds=1)).remaining() <= 10
    with lock.attempt(timedelta(0)) as again:
        assert again
    lock.release()


def test_one_lock_serves_many_threads():
    """A shared Lock keeps each thread's lease apart."""
    lock, seen = get_lock("a", wait=60), []

    def use():
        with lock as lease:
            seen.append(lease.owner)
            assert lock.owned()

    for user in [begin(use) for _ in range(4)]:
        user.result(timeout=PATIENCE)
    assert len(set(seen)) == 4
    assert not lock._entered


def test_a_thread_cannot_release_anothers_hold():
    """`release` is for what this thread acquired; the lease itself may be passed on."""
    lock = get_lock("a")
    lease = lock.acquire()
    with pytest.raises(LockNotOwned, match="isn't held by this thread or task"):
        elsewhere(lock.release)
    elsewhere(lease.release)
    assert not lock.locked()


def test_assert_locked():
    """Code that needs its caller's lock says so, for the right thread and while the lease lasts."""
    with pytest.raises(LockNotOwned, match="needs the lock 'a'"):
        assert_locked("a")
    with get_lock("a", "b"):
        assert_locked("a")
        assert_locked("a", "b")
        with pytest.raises(LockNotOwned, match="'c'"):
            assert_locked("a", "c")
        with pytest.raises(LockNotOwned):
            elsewhere(lambda: assert_locked("a"))
    with pytest.raises(LockLost), get_lock("a") as lease:
        simulate_loss(lease)
        assert_locked("a")


def test_a_refusal_is_no_reason_for_a_pending_releases(monkeypatch):
    """Busy is a known outcome: nothing is sent after it."""
    schedule = mock.Mock()
    monkeypatch.setattr(release_retrier, "schedule", schedule)
    with simulate_contention("a"), pytest.raises(LockNotAcquired):
        get_lock("a").acquire(wait=0)
    assert not schedule.called


def the_store() -> Store:
    """What the memory backend under test keeps."""
    return STORES.setdefault("default", Store())


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, BackendError("odd"), BackendUnavailable("gone")]
)
def test_an_unknown_outcome_is_a_reason_for_a_pending_releases(error):
    """Whatever interrupted the attempt, its owner is sought and released."""
    take = the_store().take

    def interrupted(*asked, **options):
        take(*asked, **options)
        raise error

    lock = get_lock("a", ttl=60)
    kind = error if isinstance(error, type) else type(error)
    with mock.patch.object(the_store(), "take", interrupted), pytest.raises(kind) as caught:
        lock.acquire()
    assert caught.type is kind
    until(lambda: not lock.locked(), PATIENCE)
    assert len(HOLDS) == 0


def acting_as_interrupted(monkeypatch, error):
    """Take over an owner's hold, whose answer is lost; return what the backend says of the lock after it."""
    backend, owner = locks["default"], new_owner()
    backend.try_acquire("a", owner, 60.0)
    lock = get_lock("a", ttl=60)
    assert isinstance(lock, SingleLock)
    lock.act_as(owner)
    take = the_store().take

    def interrupted(*asked, **options):
        take(*asked, **options)
        raise error

    monkeypatch.setattr(release_retrier, "schedule", lambda backend, *who: backend.release(*who[:2]))
    with mock.patch.object(the_store(), "take", interrupted), pytest.raises(type(error)):
        lock.acquire(wait=0)
    return backend.holder("a"), owner


@pytest.mark.parametrize("error", [BackendUnavailable("the answer was lost"), KeyboardInterrupt()])
def test_acting_as_an_owner_never_releases_what_it_held_before(monkeypatch, error):
    """An attempt of unknown outcome leaves the hold that the owner had already, such as a queued task's."""
    holder, owner = acting_as_interrupted(monkeypatch, error)
    assert holder is not None
    assert holder.owner == owner


def test_without_the_rule_acting_as_an_owner_releases_its_hold(monkeypatch):
    """The mutant of the test above: the place of a queued task is free while the task is still queued."""
    monkeypatch.setattr(SingleLock, "_may_undo", lambda lock, first: True)
    holder, _ = acting_as_interrupted(monkeypatch, BackendUnavailable("the answer was lost"))
    assert holder is None


def test_acting_as_an_owner_that_held_nothing_leaves_nothing(monkeypatch):
    """Once the owner is known to hold nothing, an interrupted wait leaves the queue as any other does."""
    lock, left = get_lock("a", ttl=60, wait=5), []
    assert isinstance(lock, SingleLock)
    lock.act_as(new_owner())
    monkeypatch.setattr(MemoryWaiter, "wait", mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(MemoryWaiter, "leave", lambda place: left.append(place))
    with simulate_contention("a", waits=True), pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert len(left) == 1


def test_an_outage_in_release_keeps_what_proves_the_hold():
    """`lock.release()` that failed may be called again."""
    lock = get_lock("a", ttl=60)
    lock.acquire()
    with mock.patch.object(locks["default"], "release", side_effect=BackendUnavailable("down")):
        for _ in range(2):
            with pytest.raises(BackendUnavailable):
                lock.release()
    lock.release()
    assert not lock.locked()


def test_a_lock_says_what_it_is():
    """For log lines."""
    assert repr(get_lock("a")) == "<Lock 'a' on 'default'>"
    assert repr(get_lock("b", "a")) == "<Lock of a, b>"
    assert get_lock("b", "a").name == "a, b"


class TestCancelledTwice:
    """A task that is cancelled again while it gives its locks back, as anyio's scopes do at each await."""

    @staticmethod
    async def cancelled_twice(lock, until_then):
        """Cancel a task in `lock`'s acquisition once `until_then` is over, and again in each release."""
        release = locks["default"].arelease

        async def cancelled_again(key, owner):
            task.cancel()
            await asyncio.sleep(0)
            return await release(key, owner)

        with mock.patch.object(locks["default"], "arelease", cancelled_again):
            task = asyncio.create_task(lock.aacquire())
            await until_then()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for other in asyncio.all_tasks() - {asyncio.current_task()}:
                await other

    def test_it_gives_every_name_back(self):
        """Of several names the first is not the only one."""

        async def scenario():
            with simulate_contention("c", waits=True), counted_waiters(locks["default"]) as waiters:
                lock = get_lock("a", "b", "c", wait=60)
                await self.cancelled_twice(lock, lambda: auntil(waiters.number, PATIENCE))
            assert not await get_lock("a", "b", "c").alocked()

        asyncio.run(scenario())

    def test_a_release_that_fails_behind_it_is_retried(self, monkeypatch):
        """The release goes on without its task, and an outage is noted all the same."""
        scheduled = mock.Mock()
        monkeypatch.setattr(release_retrier, "schedule", scheduled)
        asked, answer = asyncio.Event(), asyncio.Event()

        async def down(key, owner):
            asked.set()
            await answer.wait()
            raise BackendUnavailable("down")

        async def work():
            async with get_lock("a", ttl=60):
                pass

        async def scenario():
            with mock.patch.object(locks["default"], "arelease", down):
                task = asyncio.create_task(work())
                await asked.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                answer.set()
                for other in asyncio.all_tasks() - {asyncio.current_task()}:
                    await other

        asyncio.run(scenario())
        assert scheduled.call_args.args[1] == locks["default"].key("a")
