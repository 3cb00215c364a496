"""The memory backend beyond the contract: queue, wake-ups and clean-up."""

import asyncio
from functools import partial

import pytest

from locking import LockNotAcquired, get_lock
from locking.backends.base import Busy, Grant
from locking.backends.memory import STORES, MemoryWaiter, Store
from locking.core.handler import locks
from locking.testing.contract.base import elsewhere

pytestmark = pytest.mark.usefixtures("memory_locks")


class QueuedWaiter(MemoryWaiter):
    """A waiter that calls a function where it would wake its thread."""

    def __init__(self, owner, ttl, wake, kind="lock", permits=1):
        super().__init__(Store(), "", owner, ttl, kind, permits)
        self.wake = wake  # type: ignore[method-assign]


def test_a_release_wakes_one_waiter_alone():
    """The first in the queue is handed the lock; no other waiter is disturbed."""
    store, woken = Store(), list[int]()
    waiters = [QueuedWaiter(f"w:{number}", 60.0, partial(woken.append, number)) for number in range(3)]
    assert isinstance(store.take("a", "holder", 60.0), Grant)
    for waiter in waiters:
        assert isinstance(store.take("a", waiter.owner, 60.0, waiter), Busy)
        assert isinstance(store.take("a", waiter.owner, 60.0, waiter), Busy)  # asks twice, is queued once
    assert store.release("a", "holder")
    assert woken == [0]
    assert waiters[0].grant is not None
    assert store._holds["a"][0].owner == "w:0"
    store.leave("a", waiters[1])
    assert store.release("a", "w:0")
    assert woken == [0, 2]


def test_readers_join_readers_whatever_waits_between_them():
    """A writer's release lets in every reader of the queue, and the writer among them when they are gone."""
    locked, woken = Store().read_write, list[int]()
    kinds = ((1, "read"), (2, "write"), (3, "read"))
    waiters = [
        QueuedWaiter(f"w:{number}", 60.0, partial(woken.append, number), kind) for number, kind in kinds
    ]
    assert isinstance(locked.take("a", "w:0", 60.0, kind="write"), Grant)
    for waiter in waiters:
        assert isinstance(locked.take("a", waiter.owner, 60.0, waiter, kind=waiter.kind), Busy)
    assert locked.release("a", "w:0", "write")
    assert woken == [1, 3]
    assert locked.release("a", "w:1", "read")
    assert locked.release("a", "w:3", "read")
    assert woken == [1, 3, 2]


def test_permits_go_to_those_who_wait_in_their_order():
    """A newcomer doesn't take a permit that came back while others wait for it."""
    permits, woken = Store().semaphores, list[int]()
    for number in range(2):
        assert isinstance(permits.take("a", f"h:{number}", 60.0, kind="semaphore", permits=2), Grant)
    for number in range(2):
        waiter = QueuedWaiter(f"w:{number}", 60.0, partial(woken.append, number), "semaphore", 2)
        assert isinstance(permits.take("a", waiter.owner, 60.0, waiter, kind="semaphore", permits=2), Busy)
    assert permits.release("a", "h:1", "semaphore")
    assert woken == [0]
    assert isinstance(permits.take("a", "newcomer", 60.0, kind="semaphore", permits=9), Busy)
    assert {hold.owner for hold in permits.holds("a")} == {"h:0", "w:0"}


def test_an_expired_lock_goes_to_the_first_in_the_queue():
    """A newcomer that finds the lease over doesn't overtake those who wait."""
    store, woken = Store(), []
    store.take("a", "dead", 0.001)
    store._holds["a"][0].deadline += 60
    waiter = QueuedWaiter("w:1", 60.0, lambda: woken.append(1))
    store.take("a", "w:1", 60.0, waiter)
    store._holds["a"][0].deadline -= 120
    busy = store.take("a", "newcomer", 60.0)
    assert isinstance(busy, Busy)
    assert busy.holder == "w:1"
    assert woken == [1]


def test_a_shortened_lease_is_reported_to_those_who_wait():
    """They ask again; a longer one wakes no waiter."""
    store, woken = Store(), []
    store.take("a", "holder", 60.0)
    store.take("a", "w:1", 60.0, QueuedWaiter("w:1", 60.0, lambda: woken.append(1)))
    assert store.extend("a", "holder", 90.0)
    assert woken == []
    assert store.extend("a", "holder", 1.0, exactly=True)
    assert woken == [1]


def test_a_handed_over_lock_that_no_client_takes_is_passed_on():
    """A waiter that gives up at the very moment of its turn leaves the lock to the next."""
    store = STORES.setdefault("default", Store())
    store.take("a", "holder", 60.0)
    place = locks["default"].waiter("a", "w:1", 60.0)
    assert isinstance(place.try_acquire(queue=True), Busy)
    store.release("a", "holder")
    assert store._holds["a"][0].owner == "w:1"
    place.leave()
    assert store.holds("a") == []


def test_nothing_is_left_in_the_store():
    """Names that are free again take no memory."""
    for number in range(10):
        with get_lock(f"a:{number}", ttl=5), pytest.raises(LockNotAcquired):
            elsewhere(partial(get_lock(f"a:{number}").acquire, wait=0.001))
    store = STORES["default"]
    assert store._holds == {}
    assert store._queues == {}


def test_a_waiter_whose_loop_is_closed_is_no_danger():
    """The releaser isn't hurt by a task whose event loop has gone."""

    async def abandoned():
        place = locks["default"].async_waiter("a", "w:1", 0.05)
        assert isinstance(await place.try_acquire(queue=True), Busy)
        return place

    with get_lock("a", ttl=60):
        place = asyncio.run(abandoned())
    assert place is not None
    get_lock("a", ttl=5).acquire(wait=5).release()
