import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from locking import get_lock, get_read_lock, get_semaphore, get_write_lock
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.core.waits import WAITS
from locking.inspection.admin_actions import extend_held, force_release
from locking.inspection.heartbeat import reporter
from locking.inspection.held import HeldLock, find_hold, held_locks, holds_of
from locking.models import Fence, LockEvent
from tests.backends import BACKENDS
from tests.locking.support.helpers import publishing

pytestmark = pytest.mark.django_db(transaction=True)

KINDS: dict[str, Any] = {
    "lock": get_lock,
    "read": get_read_lock,
    "write": get_write_lock,
    "fair": get_fair_lock,
    "semaphore": lambda name: get_semaphore(name, 2),
}


@pytest.fixture(params=list(BACKENDS))
def each_backend(request, settings):
    """One backend of the table after the other, if it can list."""
    settings.LOCKING = {"default": {**BACKENDS[request.param].reached(request), "KEY_PREFIX": "shop:"}}
    if not locks["default"].supports_listing:
        pytest.skip("this backend can't list")
    return locks["default"]


@pytest.mark.parametrize(
    ("length", "left", "state"),
    [
        (30.0, 5.1, "held"),
        (30.0, 3.0, "expiring"),
        (None, 3.0, "expiring"),
        (3.0, 2.0, "held"),
        (3.0, 1.5, "expiring"),
    ],
)
def test_a_lease_expires_in_its_last_seconds_or_in_the_half_of_a_short_one(length, left, state):
    """A lease of 3 s that is renewed in time never has less than 2: nobody is to be alarmed by it."""
    assert (
        HeldLock(backend="x", name="a", key="a", kind="lock", owner="me", remaining=left, ttl=length).state
        == state
    )


def test_every_kind_is_listed_by_name_oldest_first(each_backend):
    """A hold of each kind that the backend has is a row, in the order in which they were taken."""
    kinds = {kind: make for kind, make in KINDS.items() if kind == "lock" or kind in each_backend.kinds}
    held = [make(f"a-{kind}").acquire() for kind, make in kinds.items()]
    page: Any = held_locks()
    assert [row.name for row in page.rows] == [f"a-{kind}" for kind in kinds]
    assert [row.owner for row in page.rows] == [lease.owner for lease in held]
    assert page.total == len(kinds)
    # A session of ZooKeeper or etcd has neither an end nor a beginning that its servers tell.
    assert all(row.remaining is None or 0 < row.remaining <= 30 for row in page.rows)
    assert all(row.held_for is None or row.held_for >= 0 for row in page.rows)
    for lease in held:
        lease.release()
    assert held_locks().rows == []


def test_force_release_is_audited_and_advances_the_fence(each_backend):
    """The lock is free, the reason kept, and the old holder's token is refused by the database."""
    lease = get_lock("a", fenced=True).acquire()
    (hold,) = holds_of("a")
    result = force_release(hold, reason="worker 7 was killed", actor="ada")
    assert result.done
    assert held_locks().rows == []
    event = LockEvent.objects.get()
    assert (event.name, event.owner, event.reason, event.actor) == (
        "a",
        lease.owner,
        "worker 7 was killed",
        "ada",
    )
    assert Fence.objects.get(name="shop:a").token == lease.fencing_token


def test_a_newer_holder_is_not_hit(each_backend):
    """A hold that has ended since it was shown is told so, and its successor keeps the lock."""
    with get_lock("a"):
        (shown,) = holds_of("a")
    with get_lock("a") as newer:
        result = force_release(shown, reason="too late")
        assert not result.done
        assert not LockEvent.objects.get().done
        newer.confirm()
        assert find_hold("default", "shop:a", newer.owner) is not None


def test_extending_keeps_others_out_for_longer(each_backend):
    """The lease ends later, and a shorter one is refused."""
    with get_lock("a", ttl=20):
        (hold,) = holds_of("a")
        assert extend_held(hold, 100).done
        longer: Any = holds_of("a")[0]
        assert longer.remaining > 90
        with pytest.raises(ValueError, match="wouldn't extend"):
            extend_held(holds_of("a")[0], 5)


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_contended_locks_come_first_whatever_their_age(settings, redis_database, kind):
    """A page of one row has the contended lock in addition, once; filters count here, too."""
    settings.LOCKING = {"default": {**BACKENDS["redis"].settings, "KEY_PREFIX": "shop:"}}
    wanted = get_lock("b") if kind == "lock" else get_semaphore("b", 1)
    with publishing(), ThreadPoolExecutor(1) as pool, get_lock("a"), wanted:
        waiting = pool.submit(wait_in_vain, kind)
        while not WAITS:
            time.sleep(0.005)
        next(iter(WAITS.values())).begun -= 1  # long enough to be published
        reporter.beat()
        first = held_locks(order="contention", limit=1)
        narrowed = held_locks(order="contention", prefix="a")
        everything = held_locks(order="contention")
    assert waiting.result() is None
    assert [row.name for row in first.rows] == ["b", "a"]
    assert [row.waiter_count for row in first.rows] == [1, 0]
    assert [row.name for row in narrowed.rows] == ["a"]
    assert [row.name for row in everything.rows] == ["b", "a"]


def wait_in_vain(kind):
    """Wait for b until the test is over."""
    (get_lock("b", wait=20) if kind == "lock" else get_semaphore("b", 1, wait=20)).acquire().release()
