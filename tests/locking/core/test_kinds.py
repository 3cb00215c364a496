"""Readers, writers and permits, on every backend: threads, tasks and processes."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from django.test.utils import override_settings

from locking import (
    Lease,
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotOwned,
    LockNotSupported,
    get_read_lock,
    get_semaphore,
    get_write_lock,
)
from locking.backends.base import Grant
from locking.backends.memory import STORES
from locking.contrib.redisson import get_fair_lock
from locking.core import kinds
from locking.core.lease import State
from locking.testing.contract.asyncio_ import auntil
from locking.testing.contract.base import at_leisure, begin, counted_waiters, elsewhere, until
from locking.testing.contract.processes import child
from locking.utils.clock import now
from locking.utils.ownership import new_owner
from tests.backends import BACKENDS, any_engine, with_kind

PATIENCE = 30.0
FAR = 60.0
BRIEF = 0.05
"""Seconds of a lease whose end a test waits for."""

GETTERS: dict[str, Callable[..., Lock]] = {
    "read": get_read_lock,
    "write": get_write_lock,
    "semaphore": partial(get_semaphore, permits=1),
    "fair": get_fair_lock,
}


@pytest.fixture(params=with_kind("fair"))
def on(request):
    """The backend under test, as the default one."""
    STORES.clear()
    with override_settings(LOCKING={"default": BACKENDS[request.param].reached(request)}):
        yield request.param


@pytest.fixture(params=with_kind("write"))
def shared_on(request, django_db_blocker):
    """A backend that has read and write locks, as the default one."""
    STORES.clear()
    entry = BACKENDS[request.param].reached(request)
    with django_db_blocker.unblock(), override_settings(LOCKING={"default": entry}):
        yield request.param


@pytest.fixture(params=list(GETTERS))
def get(request, on):
    """What makes a lock of one kind."""
    return GETTERS[request.param]


def variant(kind, **options):
    """The backend of a kind."""
    return any_engine().variant(kind, **options)


def tried(lock):
    """Whether another thread gets the lock at once; it is let go again."""

    def attempt():
        lease = lock.try_acquire()
        if lease:
            lease.release()
        return lease is not None

    return elsewhere(attempt)


# readers and writers


def test_many_readers_or_one_writer(shared_on):
    """Readers share the lock; a writer is refused until the last of them is gone, and then excludes all."""
    with get_read_lock("a", ttl=FAR):
        second = elsewhere(get_read_lock("a", ttl=FAR).acquire)
        assert not tried(get_write_lock("a"))
        second.release()
        assert not tried(get_write_lock("a"))
    with get_write_lock("a", ttl=FAR):
        assert not tried(get_write_lock("a"))
        assert not tried(get_read_lock("a"))
    assert tried(get_read_lock("a"))


def test_a_writer_waits_for_the_last_reader(shared_on):
    """One reader's end isn't enough; the last one's wakes the writer, long before a lease would end."""
    readers = [elsewhere(get_read_lock("a", ttl=FAR).acquire) for _ in range(3)]
    with counted_waiters(variant("write")) as waiters:
        writer = begin(get_write_lock("a", ttl=FAR, wait=FAR).acquire)
        until(waiters.number, PATIENCE)
    for reader in readers:
        assert not writer.done()
        reader.release()
    writer.result(timeout=PATIENCE).release()


def test_all_waiting_readers_enter_after_the_writer(shared_on):
    """The writer's end wakes every waiting reader, and they read at the same time."""
    together = threading.Barrier(3)

    def read():
        with get_read_lock("a", ttl=FAR, wait=FAR):
            together.wait(PATIENCE)

    with counted_waiters(variant("read")) as waiters:
        with get_write_lock("a", ttl=FAR):
            readers = [begin(read) for _ in range(3)]
            until(lambda: waiters.are(3), PATIENCE)
        for reader in readers:
            reader.result(timeout=PATIENCE)


def test_an_upgrade_is_refused(shared_on):
    """Upgrading a read lock would deadlock: LockNotSupported, and the reader keeps its lock."""
    with get_read_lock("a", ttl=FAR) as lease:
        with pytest.raises(LockNotSupported, match="release the read lock first"):
            get_write_lock("a", wait=FAR).acquire()
        lease.ensure_held()
    assert tried(get_write_lock("a"))


def test_an_upgrade_of_a_lost_read_lock_says_that_it_was_lost(shared_on):
    """The refusal of an upgrade must not hide that the reading is over already."""
    lease = get_read_lock("a", ttl=BRIEF).acquire()
    until(lambda: lease.state is State.LOST, PATIENCE)
    with pytest.raises(LockLost):
        get_write_lock("a").acquire()


def test_a_writer_may_read(shared_on):
    """Reading under its own write lock is re-entry: the lock stays exclusive until the outer block ends."""
    with get_write_lock("a", ttl=FAR) as writing:
        with get_read_lock("a") as reading:
            assert reading.fencing_token == writing.fencing_token
        writing.ensure_held()
        assert not tried(get_read_lock("a"))
    assert tried(get_read_lock("a"))


def test_another_threads_read_under_a_writer_is_no_reentry(shared_on):
    """The writer's own threads and tasks are others."""
    with get_write_lock("a", ttl=FAR):
        assert elsewhere(get_read_lock("a").try_acquire) is None


def test_a_reader_reads_again(shared_on):
    """A read lock taken twice in one thread is one hold, counted."""
    lock = get_read_lock("a", ttl=FAR)
    with lock as outer:
        with lock as inner:
            assert inner.fencing_token == outer.fencing_token
        assert not tried(get_write_lock("a"))
    assert tried(get_write_lock("a"))


@pytest.mark.parametrize("ttls", [(BRIEF / 2, BRIEF), (BRIEF, BRIEF / 2)], ids=["short first", "long first"])
def test_the_lock_lives_as_long_as_its_longest_reader(shared_on, ttls):
    """Of two readers that die the longer-lived keeps the writer out, and its end lets the writer in."""
    begun = now()
    for ttl in ttls:
        elsewhere(get_read_lock("a", ttl=ttl).acquire).leave_to_expire()
    with get_write_lock("a", ttl=FAR, wait=PATIENCE):
        assert BRIEF * 0.98 <= now() - begun < PATIENCE


def test_a_short_reader_that_ended_is_no_holder_any_more(shared_on):
    """While a longer reader goes on, the ended one can neither extend nor release, and isn't counted."""
    backend, long, readers = variant("read"), new_owner(), []
    backend.try_acquire("a", long, FAR)

    def join(ttl):
        readers.append(new_owner())
        backend.try_acquire("a", readers[-1], ttl)
        if backend.holder("a").count != 2:
            raise LockLost("it had ended before it was counted")

    at_leisure(join, BRIEF)
    short = readers[-1]
    until(lambda: backend.holder("a").count == 1, PATIENCE)
    assert backend.holder("a").owner == long
    assert not backend.extend("a", short, FAR)
    assert not backend.release("a", short)
    assert backend.release("a", long)
    assert backend.holder("a") is None


def test_the_end_of_the_longest_reader_shortens_the_lock(shared_on):
    """When the longest reader lets go, a writer waits only for the rest."""
    longest = elsewhere(get_read_lock("a", ttl=FAR).acquire)
    begun = now()
    elsewhere(get_read_lock("a", ttl=BRIEF).acquire).leave_to_expire()
    longest.release()
    with get_write_lock("a", ttl=FAR, wait=PATIENCE):
        assert now() - begun >= BRIEF * 0.98


def test_a_shortened_reader_does_not_keep_a_writer_longer(shared_on):
    """A writer that knew of a long reader learns that it has been cut short."""
    reader = elsewhere(get_read_lock("a", ttl=FAR).acquire)
    with counted_waiters(variant("write")) as waiters:
        writer = begin(get_write_lock("a", ttl=FAR, wait=FAR).acquire)
        until(waiters.number, PATIENCE)
    assert variant("read").shorten("a", reader.owner, BRIEF)
    writer.result(timeout=PATIENCE).release()


def test_readers_and_writers_never_overlap(shared_on):
    """Threads that read see a pair that only whole writes change."""
    pair = [0, 0]

    def write():
        for _ in range(10):
            with get_write_lock("a", ttl=FAR, wait=FAR):
                pair[0] += 1
                time.sleep(0.0005)  # between the two halves: room for an intruder
                pair[1] += 1

    def read():
        for _ in range(10):
            with get_read_lock("a", ttl=FAR, wait=FAR):
                before = tuple(pair)
                time.sleep(0.0005)  # room for a writer that intrudes
                assert before == tuple(pair)
                assert pair[0] == pair[1]

    for worker in [begin(step) for step in (write, read, read, write)]:
        worker.result(timeout=60)
    assert pair == [20, 20]


# semaphores


@pytest.mark.parametrize("permits", [0, -1, 1.0, True, "3", None, 1_000_001])
def test_permits_out_of_range_are_refused(on, permits):
    """Before any I/O, with the value and what may be."""
    with pytest.raises(ValueError, match=r"from 1 to 1,000,000, not"):
        get_semaphore("a", permits)


def test_another_number_of_permits_is_reported_once(on, caplog, monkeypatch):
    """The first decides, so the second caller waits for what it takes to be free."""
    monkeypatch.setattr(kinds, "FIRST_PERMITS", {})
    with caplog.at_level("WARNING", "locking.core.kinds"):
        for permits in (2, 5, 2, 5):
            get_semaphore("mail", permits)
    (record,) = caplog.records
    assert "the semaphore 'mail' has 2 permits for some callers and 5 for others" in record.getMessage()


def test_each_acquisition_is_another_permit_also_in_one_thread(on):
    """A semaphore isn't re-entrant: the n-th acquisition takes the n-th permit."""
    lock = get_semaphore("a", 2, ttl=FAR)
    first, second = lock.acquire(), lock.acquire()
    assert first.fencing_token != second.fencing_token
    assert lock.try_acquire() is None
    lock.release()
    assert (second.state, first.state) == (State.RELEASED, State.HELD)
    assert lock.try_acquire()


def test_locked_says_whether_all_permits_are_out(on):
    """As asyncio's semaphore has it; `owned` and `remaining` are the caller's own."""
    lock = get_semaphore("a", 2, ttl=FAR)
    lock.acquire()
    assert (lock.locked(), lock.owned()) == (False, True)
    lock.acquire()
    assert lock.locked()
    assert elsewhere(lambda: (lock.owned(), lock.remaining())) == (False, 0.0)


def test_at_most_as_many_at_once_as_there_are_permits(on):
    """A crowd of threads goes through three at a time, and three there are."""
    inside, most, guard, full = [0], [0], threading.Lock(), threading.Event()

    def visit():
        for _ in range(5):
            with get_semaphore("a", 3, ttl=FAR, wait=FAR):
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                    if inside[0] == 3:
                        full.set()
                assert full.wait(PATIENCE), "three were never in at once"
                time.sleep(0.002)  # the work, during which others may come in
                with guard:
                    inside[0] -= 1

    for worker in [begin(visit) for _ in range(8)]:
        worker.result(timeout=60)
    assert most[0] == 3
    assert not get_semaphore("a", 3).locked()


def test_a_permit_comes_back_when_its_lease_ends(on):
    """A waiter has the permit of a holder that never gives it back, and the holder knows that it lost it."""
    stale = elsewhere(get_semaphore("a", 1, ttl=BRIEF).acquire)
    begun = stale.leases[0].taken_at
    lease = get_semaphore("a", 1, ttl=FAR, wait=PATIENCE).acquire()
    assert now() - begun >= BRIEF * 0.98
    with pytest.raises(LockLost):
        stale.release()
    assert not tried(get_semaphore("a", 1))
    lease.release()
    assert tried(get_semaphore("a", 1))


def test_an_ended_permit_comes_back_once(on):
    """Its late release doesn't put another permit in circulation."""
    backend = variant("semaphore", permits=1)
    stale, successor = new_owner(), new_owner()
    backend.try_acquire("a", stale, BRIEF)
    until(lambda: isinstance(backend.try_acquire("a", successor, FAR), Grant), PATIENCE)
    assert not backend.release("a", stale)
    assert not backend.extend("a", stale, FAR)
    assert not isinstance(backend.try_acquire("a", new_owner(), FAR), Grant)


def test_an_ended_permit_that_no_client_took_is_not_released(on):
    """Its holder learns that the permit had ended before, though no other has taken it since."""
    backend, stale = variant("semaphore", permits=1), new_owner()
    backend.try_acquire("a", stale, BRIEF)
    until(lambda: backend.holder("a") is None, PATIENCE)
    assert not backend.release("a", stale)
    assert tried(get_semaphore("a", 1))


def test_a_shortened_permit_does_not_keep_waiters_longer(on):
    """A waiter that knew of a long lease learns that it has been cut short."""
    lease = get_semaphore("a", 1, ttl=FAR).acquire()
    with counted_waiters(variant("semaphore", permits=1)) as waiters:
        waiter = begin(get_semaphore("a", 1, ttl=FAR, wait=FAR).acquire)
        until(waiters.number, PATIENCE)
        assert variant("semaphore", permits=1).shorten("a", lease.owner, BRIEF)
        waiter.result(timeout=PATIENCE).release()


def test_the_first_decides_how_many_permits_there_are(on):
    """A later call with another number of permits gets the first one's."""
    assert get_semaphore("a", 1, ttl=FAR).acquire()
    assert get_semaphore("a", 5, ttl=FAR).try_acquire() is None


def test_min_hold_limits_how_often_a_permit_is_used(on):
    """Released at once, a permit with `min_hold` comes back only when that time is over."""
    begun = now()
    for _ in range(3):
        with get_semaphore("a", 1, ttl=FAR, wait=PATIENCE, min_hold=BRIEF):
            pass
    assert now() - begun >= 2 * BRIEF * 0.98


# every kind


def test_a_double_release_is_refused(get):
    """The second release of a lease raises LockNotOwned and frees no other lease."""
    lease = get("a", ttl=FAR).acquire()
    lease.release()
    with get("a", ttl=FAR):
        with pytest.raises(LockNotOwned):
            lease.release()
        assert get("a").locked()


def test_state_of_every_kind(get):
    """`locked`, `owned` and `remaining` tell the truth before, while and after."""
    lock = get("a", ttl=FAR)
    assert (lock.locked(), lock.owned(), lock.remaining()) == (False, False, 0.0)
    with lock:
        assert (lock.locked(), lock.owned()) == (True, True)
        assert FAR / 2 < lock.remaining() <= FAR
    assert (lock.locked(), lock.owned(), lock.remaining()) == (False, False, 0.0)


async def test_every_kind_in_tasks(get):
    """`async with`, `alocked` and the tasks' own identity."""
    lock = get("a", ttl=FAR)
    async with lock as lease:
        assert lock.owned()
        assert await lock.alocked()
        await lease.aextend(FAR * 2)
        assert lease.remaining() > FAR
    assert not await lock.alocked()


@pytest.mark.parametrize(
    ("holder", "waiter"),
    [("write", "read"), ("read", "write"), ("write", "write"), ("semaphore", "semaphore"), ("fair", "fair")],
)
async def test_a_release_wakes_a_waiting_task(on, holder, waiter):
    """A waiting task has the lock when another lets go, long before the lease would end."""
    options = {"permits": 1} if waiter == "semaphore" else {}
    with counted_waiters(variant(waiter, **options)) as waiters:
        async with GETTERS[holder]("a", ttl=FAR):
            task = asyncio.create_task(GETTERS[waiter]("a", ttl=FAR, wait=FAR).aacquire())
            await auntil(waiters.number, PATIENCE)
            assert not task.done()
        lease = await asyncio.wait_for(task, PATIENCE)
    await lease.arelease()


@pytest.mark.parametrize("steps", range(0, 14, 2))
async def test_a_cancelled_task_leaves_nothing(get, steps):
    """Whenever an acquisition is cancelled the lock ends free, or was had."""
    task = asyncio.create_task(get("a", ttl=FAR, wait=FAR).aacquire())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await task).arelease()
    deadline = now() + PATIENCE
    while await get("a").alocked():
        assert now() < deadline
        await asyncio.sleep(0.002)  # asks again until it is free


async def test_a_cancelled_waiter_is_not_served(get):
    """A cancelled waiter gets nothing; the next one does."""
    kind = next(kind for kind, getter in GETTERS.items() if getter is get)
    blocker = get_write_lock if kind == "read" else get
    options = {"permits": 1} if kind == "semaphore" else {}
    with counted_waiters(variant(kind, **options)) as waiters:
        async with blocker("a", ttl=FAR):
            doomed = asyncio.create_task(get("a", ttl=FAR, wait=FAR).aacquire())
            await auntil(lambda: waiters.are(1), PATIENCE)
            patient = asyncio.create_task(get("a", ttl=FAR, wait=FAR).aacquire())
            await auntil(lambda: waiters.are(2), PATIENCE)
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
        await (await asyncio.wait_for(patient, PATIENCE)).arelease()
    assert not await get("a").alocked()


def test_the_watchdog_keeps_every_kind(get, monkeypatch):
    """Without a ttl the lease is renewed beyond its length."""

    def outlive(length):
        monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", length)
        with get("a", ttl=None) as lease:
            first_end = lease.leases[0].taken_at + length
            until(lambda: now() > first_end, PATIENCE)
            is_locked = get("a").locked()
            lease.ensure_held()  # behind it: a lease that was lost meanwhile is another try's
            assert is_locked

    at_leisure(outlive, BRIEF)


def test_a_loss_of_every_kind_is_reported(get, monkeypatch):
    """The watchdog finds a forgotten hold lost, reports it to `on_lost`, and doesn't take it back."""
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", FAR)
    monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.02 / FAR)  # soon
    reported: list[Lease] = []
    with pytest.raises(LockLost), get("a", ttl=None, on_lost=reported.append) as lease:
        (single,) = lease.leases
        assert single.backend.force_release(single.key, single.owner)
        until(lambda: reported, PATIENCE)
        with pytest.raises(LockLost):
            lease.ensure_held()
    assert not get("a").locked()


def test_a_wait_that_runs_out_names_lock_and_backend(on):
    """The refusal of a kind says who, where and how long, as the ordinary lock's does."""
    with get_write_lock("a", ttl=FAR) as lease:
        with pytest.raises(LockNotAcquired) as caught:
            elsewhere(lambda: get_read_lock("a", wait=0.05).acquire())
        assert (caught.value.name, caught.value.backend) == ("a", "default")
        holder, retry_after = caught.value.holder, caught.value.retry_after
        assert holder is not None
        assert holder.startswith(lease.leases[0].owner)
        assert retry_after is not None
        assert FAR - 5 < retry_after <= FAR


@pytest.mark.parametrize("on", ["redis"], indirect=True)
def test_a_killed_holder_of_every_kind_frees_it_with_its_lease(get):
    """After `kill -9` of its process the hold lasts as long as its lease, and no longer."""

    def hold(pipe):
        pipe.send(get("a", ttl=BRIEF).acquire().leases[0].taken_at)
        pipe.recv()

    with child(hold) as holder:
        taken_at = holder.report()
        holder.kill()
    taker = get_write_lock if get is get_read_lock else get
    taker("a", ttl=FAR, wait=PATIENCE).acquire().release()
    assert now() - taken_at >= BRIEF * 0.98


@pytest.mark.parametrize("on", ["redis"], indirect=True)
def test_processes_share_the_permits(on, tmp_path):
    """Four processes, two permits: never more than two inside."""

    def visit(pipe):
        crowd = 0
        for turn in range(15):
            with get_semaphore("a", 2, ttl=FAR, wait=FAR):
                mine = tmp_path / f"{threading.get_native_id()}-{turn}"
                mine.touch()
                crowd = max(crowd, len(list(tmp_path.iterdir())))
                time.sleep(0.001)  # the work, during which others may come in
                mine.unlink()
        pipe.send(crowd)

    with child(visit) as one, child(visit) as two, child(visit) as three, child(visit) as four:
        crowds = [each.report(60) for each in (one, two, three, four)]
    assert max(crowds) <= 2


@pytest.mark.parametrize("on", ["redis"], indirect=True)
def test_processes_read_together_and_write_alone(on, tmp_path):
    """A counter that processes read and write back under the write lock loses no count."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def work(pipe):
        for _ in range(10):
            with get_write_lock("a", ttl=FAR, wait=FAR):
                seen = int(counter.read_text())
                time.sleep(0.0005)  # between reading and writing: room for an intruder
                counter.write_text(str(seen + 1))
            with get_read_lock("a", ttl=FAR, wait=FAR):
                assert counter.read_text()
        pipe.send("done")

    with child(work) as one, child(work) as two, child(work) as three:
        assert [each.report(60) for each in (one, two, three)] == ["done"] * 3
    assert counter.read_text() == "30"


def test_an_engine_without_a_kind_names_those_that_have_it():
    """Rows of a database make no read-write lock; the error says where there is one."""
    rows = {"default": {"BACKEND": "locking.backends.database.DatabaseBackend"}}
    with override_settings(LOCKING=rows), pytest.raises(LockNotSupported, match="use Redis, etcd or ZooK"):
        get_read_lock("a").try_acquire()
