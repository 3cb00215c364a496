"""Tasks that share a thread through `sync_to_async` do not share what it holds."""

import asyncio

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from locking import LockNotSupported, get_lock, get_read_lock, get_write_lock
from locking.core.lease import SingleLease
from locking.utils.ownership import current_sync_call, runs_in

pytestmark = pytest.mark.usefixtures("memory_locks")


async def enter_from_two_tasks():
    """Acquire one lock in two tasks, each through `sync_to_async`; return the two outcomes."""
    lock = get_lock("a", ttl=60)

    async def task():
        return await sync_to_async(lock.acquire)()

    outcomes = await asyncio.gather(task(), task(), return_exceptions=True)
    await sync_to_async(lock.release)()
    return outcomes


def test_a_second_task_does_not_enter_through_the_shared_thread():
    """The second task is refused with the reason and what to call instead; the first keeps the lock."""
    first, second = asyncio.run(enter_from_two_tasks())
    assert isinstance(first, SingleLease)
    assert isinstance(second, LockNotSupported)
    assert "await lock.aacquire()" in str(second)


def test_without_the_rule_two_tasks_hold_one_lock(monkeypatch):
    """The mutant of the test above: the thread re-enters, and both tasks believe that they hold the lock."""
    monkeypatch.setattr(SingleLease, "is_another_calls", lambda lease: False)
    first, second = asyncio.run(enter_from_two_tasks())
    assert first is second


def test_a_reader_does_not_enter_another_tasks_write_lock():
    """The shared side is refused in the same way where the thread holds the exclusive one."""

    async def scenario():
        writing = await sync_to_async(get_write_lock("a", ttl=60).acquire)()
        with pytest.raises(LockNotSupported):
            await sync_to_async(get_read_lock("a", ttl=60).acquire)()
        await sync_to_async(writing.release)()

    asyncio.run(scenario())


def test_one_synchronous_function_re_enters():
    """Within one call a function re-enters its lock, also after asynchronous code that it has called."""

    def view():
        with get_lock("a", ttl=60) as lease:
            async_to_sync(sync_to_async(nested))()
            with get_lock("a", ttl=60) as again:
                return again is lease

    def nested():
        with get_lock("a", ttl=60):
            pass

    async def scenario():
        return await sync_to_async(view)()

    assert asyncio.run(scenario())


def test_a_hold_of_synchronous_code_is_re_entered_below_it():
    """Code under `async_to_sync` re-enters the locks of its synchronous caller."""

    def nested():
        with get_lock("a", ttl=60) as again:
            return again

    with get_lock("a", ttl=60) as lease:
        assert async_to_sync(sync_to_async(nested))() is lease


def test_outside_of_such_a_call_there_is_none():
    """A thread that serves no task has no call, and none is under way."""
    assert current_sync_call() is None
    assert not runs_in(None)
