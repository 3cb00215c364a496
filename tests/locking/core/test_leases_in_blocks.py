"""Leases in blocks: `with lock.attempt()`, `with lease`, and the lease of the function that runs."""

import asyncio
import threading
from contextlib import nullcontext
from unittest import mock

import pytest

from locking import (
    BackendUnavailable,
    LockLost,
    LockNotOwned,
    assert_locked,
    current_lease,
    distributed_lock,
    get_lock,
    get_semaphore,
)
from locking.core.handler import locks
from locking.core.pending_release import release_retrier
from locking.core.renewal import renew_due
from locking.inspection.held import holds_of
from locking.testing import (
    held_locks,
    override_locks,
    simulate_contention,
    simulate_loss,
    simulate_outage,
)
from locking.testing.contract.base import begin, elsewhere


@pytest.fixture(autouse=True)
def in_memory():
    """No server is needed here."""
    with override_locks():
        yield


def test_an_attempt_gives_a_lease_and_releases_it():
    """A free lock: the block has its lease, and gives it back."""
    lock = get_lock("a")
    with lock.attempt() as lease:
        assert lease
        assert_locked("a")
    assert held_locks() == []
    with pytest.raises(LockNotOwned):
        lock.release()  # nothing is left on the lock's own list


def test_an_attempt_gives_none_where_another_holds_the_lock():
    """The block runs, knows that it has nothing, and releases nothing of the other's."""
    with simulate_contention("a"):
        with get_lock("a").attempt() as lease:
            assert lease is None
        with get_lock("a").attempt(wait=60) as lease:
            assert lease is None
        assert get_lock("a").locked()


def test_an_attempt_does_not_hide_an_outage():
    """No answer is not the same as another holder."""
    with simulate_outage(), pytest.raises(BackendUnavailable), get_lock("a").attempt():
        pass


def test_one_attempt_may_be_entered_again():
    """Nested blocks of one attempt give back their own leases, innermost first."""
    attempt = get_lock("a").attempt()
    with attempt as outer, attempt as inner:
        assert outer is inner  # re-entered
    assert held_locks() == []


def test_one_attempt_may_be_shared_by_threads():
    """Each gives back what it was given: the thread that got none leaves the other's lease alone."""
    attempt, lease_seen, is_in, may_leave = get_lock("a").attempt(), [], threading.Event(), threading.Event()

    def refused():
        with attempt as lease:
            lease_seen.append(lease)
            is_in.set()
            may_leave.wait(30)

    with attempt as lease:
        other = begin(refused)
        assert is_in.wait(30)
    assert (bool(lease), lease_seen, held_locks()) == (True, [None], [])
    may_leave.set()
    other.result(timeout=30)


def test_an_attempt_on_an_event_loop():
    """The same with `async with`."""

    async def scenario():
        async with get_lock("a").attempt() as lease:
            assert lease
        with simulate_contention("a"):
            async with get_lock("a").attempt() as lease:
                assert lease is None
        async with await get_lock("b").aacquire():
            assert held_locks() == ["b"]
        assert held_locks() == []

    asyncio.run(scenario())


def test_a_lease_is_a_block():
    """`with lock.try_acquire() or nullcontext()` releases at its end."""
    with get_lock("a").try_acquire() or nullcontext() as lease:
        assert lease
        lease.ensure_held()
    assert held_locks() == []


def test_a_lease_released_inside_its_block_is_not_released_again():
    """An early release is no error."""
    with get_lock("a").acquire() as lease:
        lease.release()


def test_a_lost_lease_is_reported_at_the_end_of_its_block():
    """As at the end of `with lock`; an error of the body goes first."""
    with pytest.raises(LockLost), get_lock("a").acquire() as lease:
        simulate_loss(lease)
    with pytest.raises(ZeroDivisionError), get_lock("a").acquire() as lease:
        simulate_loss(lease)
        raise ZeroDivisionError


def test_an_outage_at_the_end_of_a_lease_block_spoils_nothing():
    """The release is retried in the background, as after `with lock`."""
    down = mock.patch.object(locks["default"], "release", side_effect=BackendUnavailable("down"))
    with down, get_lock("a", ttl=60).acquire():
        pass


def test_a_decorated_function_finds_its_lease():
    """The innermost by itself, any by its name; another thread has none."""

    @distributed_lock(key="'order:'+<order_id>", ttl=10, atomic=False)
    def pay(order_id):
        assert current_lease().names == (f"order:{order_id}",)
        with get_lock("stock"):
            assert current_lease().names == ("stock",)
            assert current_lease(f"order:{order_id}").ttl == 10
        current_lease().extend(60)
        with pytest.raises(LockNotOwned):
            elsewhere(current_lease)
        return current_lease().remaining()

    assert pay(42) > 50
    for call in (current_lease, lambda: current_lease("order:42")):
        with pytest.raises(LockNotOwned, match="thread or task holds no"):
            call()


def test_the_lease_of_several_names_is_one():
    """Inside a function that is locked on a whole basket, extending its lease extends every name."""

    @distributed_lock(key=["'sku:'+<first>", "'sku:'+<second>"], ttl=10, atomic=False)
    def place(first, second):
        with get_lock("sku:mug"):  # entered again, it stays one of the two
            assert current_lease().names == ("sku:mug", "sku:pen")
        with get_lock("stock"):
            assert current_lease().names == ("stock",)
        current_lease().extend(60)
        return [current_lease(f"sku:{sku}").remaining() for sku in (first, second)]

    assert min(place("mug", "pen")) > 50

    with get_lock("sku:mug", ttl=10), get_lock("sku:mug", "sku:pen", ttl=10) as both:
        assert current_lease() is both
        assert current_lease("sku:mug").names == ("sku:mug",)


def released_early(release):
    """Enter a lock's block, release in it as `release` does, and fail after that."""
    lock = get_lock("a")
    with lock as lease:
        release(lock, lease)
        raise ZeroDivisionError


async def areleased_early(release):
    """The same on an event loop, where the body is cancelled after that."""
    lock = get_lock("a")
    async with lock as lease:
        release(lock, lease)
        raise asyncio.CancelledError


EARLY = [lambda lock, lease: lock.release(), lambda lock, lease: lease.release()]


@pytest.mark.parametrize("release", EARLY, ids=["lock", "lease"])
def test_an_error_after_an_early_release_goes_first(release):
    """A body's error after it released the lock isn't replaced by `LockNotOwned`."""
    with pytest.raises(ZeroDivisionError):
        released_early(release)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(areleased_early(release))
    assert held_locks() == []


@pytest.mark.parametrize("block", [get_lock, lambda name: get_lock(name).attempt()], ids=["lock", "attempt"])
def test_a_generator_that_another_thread_closes_does_not_pass_for_an_early_release(block):
    """Its lock is the first thread's, and stays: the error says so instead of being silent."""

    def rows():
        with block("a"):
            yield 1

    generator = rows()
    next(generator)
    with pytest.raises(LockNotOwned):
        elsewhere(generator.close)


@pytest.mark.parametrize("release", EARLY, ids=["lock", "lease"])
def test_an_early_release_is_reported_at_the_end_of_a_locks_block(release):
    """Without an error of the body: what it did after the release ran without the lock."""
    lock = get_lock("a")
    with pytest.raises(LockNotOwned), lock as lease:
        release(lock, lease)


def test_an_inner_call_that_leaves_the_lock_to_its_ttl_does_not_end_the_outer_hold(turned_clock):
    """`release=False` within a hold of the same lock: the watchdog goes on renewing that one."""

    @distributed_lock(key="'a'", ttl=3, release=False, atomic=False)
    def submit():
        return current_lease()

    with get_lock("a") as lease:
        assert submit() is lease
        turned_clock.advance(lease.ttl * 2 / 3)
        renew_due("default")
        assert lease.remaining() > lease.ttl / 2
    assert held_locks() == []


def test_a_shared_lock_forgets_leases_that_were_released_by_themselves():
    """A lock of a module is used for years by one thread."""
    lock = get_lock("a")
    for _ in range(5):
        lease = lock.try_acquire()
        assert lease
        with lease:
            pass
        lock.acquire().release()
    assert [len(entries) for _, entries in lock._entered.values()] == [1]


def test_a_block_gives_back_its_own_lease_whatever_was_released_inside():
    """Each permit of a semaphore is a lease of its own, and the inner one is back already."""
    permits = get_semaphore("a", 2)
    with permits as outer:
        permits.acquire().release()
        assert outer.remaining()
    assert not holds_of("a")


def test_a_block_may_release_its_lock_and_acquire_it_again():
    """What is held at its end is released."""
    lock = get_lock("a")
    with lock:
        lock.release()
        lock.acquire()
    assert not lock.locked()


def test_a_block_may_release_its_lease_and_acquire_the_lock_again():
    """The same by the lease itself: what is held at the block's end is released."""
    lock = get_lock("a")
    with lock as lease:
        lease.release()
        lock.acquire()
        with lock:
            pass
        assert lock.locked()
    assert not lock.locked()


def test_a_task_may_release_its_lease_and_acquire_the_lock_again():
    """The same for asyncio."""
    lock = get_lock("a")

    async def scenario():
        async with lock as lease:
            await lease.arelease()
            await lock.aacquire()

    asyncio.run(scenario())
    assert not lock.locked()


def test_a_block_that_gave_back_a_lost_lease_releases_what_was_acquired_again():
    """The loss was raised where the lease was given back; what is held at the block's end is released."""
    lock = get_lock("a")
    with lock as lease:
        simulate_loss(lease)
        with pytest.raises(LockLost):
            lease.release()
        lock.acquire()
    assert not lock.locked()


def test_a_block_whose_release_got_no_answer_releases_what_was_acquired_again(monkeypatch):
    """The server had carried the release out, and its answer was lost."""
    lock, backend = get_lock("a"), locks["default"]
    release = backend.release

    def unanswered(key, owner):
        monkeypatch.setattr(backend, "release", release)
        release(key, owner)
        raise BackendUnavailable("no answer")

    with lock as lease:
        monkeypatch.setattr(backend, "release", unanswered)
        with pytest.raises(BackendUnavailable):
            lease.release()
        lock.acquire()
    assert not lock.locked()


def test_a_lost_permit_is_reported_whatever_else_was_acquired():
    """A lease without a release reports no loss."""
    permits = get_semaphore("a", 3)
    with pytest.raises(LockLost), permits as lease:
        other = permits.acquire()
        simulate_loss(lease)
    other.release()


def test_a_permit_that_was_given_back_hides_no_other():
    """The lock knows what this thread holds: the outer block's permit, all the time."""
    permits = get_semaphore("a", 3)
    with permits as outer:
        permits.acquire().release()
        assert permits.owned()
        with permits as inner:
            inner.release()
            permits.acquire()
        assert permits.owned()
        permits.extend(60)
        assert outer.ttl == 60
    assert not holds_of("a")


def test_a_block_whose_permit_was_released_takes_no_outer_blocks():
    """The last one on the list is another block's."""
    permits = get_semaphore("a", 3)
    with permits as outer:
        with pytest.raises(LockNotOwned), permits as inner:
            inner.release()
            permits.acquire()
            permits.release()
        assert outer.remaining()


def test_an_interruption_before_the_block_leaves_nothing_held(monkeypatch):
    """A limit strikes when the lock is granted and the block has not begun: it would never be left."""
    lock = get_lock("a")

    def interrupted(lease, context, of_block):
        raise KeyboardInterrupt

    monkeypatch.setattr(lock, "_remember", interrupted)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    assert not lock.locked()


INTERRUPTED = {"lock": get_lock, "lease": lambda *names: get_lock(*names).acquire()}


@pytest.mark.parametrize("block", INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupted_release_is_made_up_for(block, monkeypatch):
    """A limit strikes in the first of three releases: the others are made, and that one is made later."""
    backend, scheduled = locks["default"], []
    release = backend.release
    monkeypatch.setattr(release_retrier, "schedule", lambda _, key, owner, ttl: scheduled.append(key))

    def interrupted(key, owner):
        monkeypatch.setattr(backend, "release", release)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), block("a", "b", "c"):
        monkeypatch.setattr(backend, "release", interrupted)
    assert [name for name in "abc" if get_lock(name).locked()] == ["c"]
    assert scheduled == [backend.key("c")]


def test_an_interrupted_release_of_a_task_is_made_up_for(monkeypatch):
    """As where its event loop ends meanwhile."""
    backend, scheduled = locks["default"], []
    release = backend.arelease
    monkeypatch.setattr(release_retrier, "schedule", lambda _, key, owner, ttl: scheduled.append(key))

    async def interrupted(key, owner):
        monkeypatch.setattr(backend, "arelease", release)
        raise asyncio.CancelledError

    async def scenario():
        async with get_lock("a", "b", "c"):
            monkeypatch.setattr(backend, "arelease", interrupted)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scenario())
    assert [name for name in "abc" if get_lock(name).locked()] == ["c"]
    assert scheduled == [backend.key("c")]
