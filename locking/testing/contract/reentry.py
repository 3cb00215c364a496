"""Re-entry: for the thread or task that holds the lock, and for none of its children."""

from __future__ import annotations

import asyncio

from locking.core.lock import Lock, get_lock
from locking.testing.contract.base import ContractBase, elsewhere


class ReentryContract(ContractBase):
    """Holds are counted."""

    def test_the_holder_enters_again(self, name: str) -> None:
        """A thread takes again what it holds, by any Lock of that name; the last release frees it."""
        lock = get_lock(name, ttl=30)
        with lock as outer, lock as middle, get_lock(name, ttl=30) as inner:
            assert outer.fencing_token == middle.fencing_token == inner.fencing_token
            assert elsewhere(get_lock(name).try_acquire) is None
        assert not lock.locked()

    def test_an_inner_release_keeps_the_lock(self, name: str) -> None:
        """Leaving the inner block leaves the lock taken."""
        lock = get_lock(name, ttl=30)
        with lock:
            with lock:
                pass
            assert lock.owned()
            assert elsewhere(get_lock(name).try_acquire) is None
        assert elsewhere(lambda: _free(get_lock(name, ttl=30)))

    def test_another_thread_does_not_enter(self, name: str) -> None:
        """Re-entry isn't inherited by threads, not even through a shared Lock object."""
        lock = get_lock(name, ttl=30)
        with lock:
            assert elsewhere(lock.try_acquire) is None

    def test_a_task_enters_again(self, name: str) -> None:
        """An asyncio task takes again what it holds."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=30)
            async with lock:
                async with lock, get_lock(name):
                    pass
                assert await asyncio.to_thread(get_lock(name).try_acquire) is None
            assert not await lock.alocked()

        asyncio.run(scenario())

    def test_a_child_task_does_not_enter(self, name: str) -> None:
        """A task started under the lock is someone else: context variables would have leaked the hold."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=30)
            async with lock:
                assert await asyncio.create_task(lock.atry_acquire()) is None

        asyncio.run(scenario())

    def test_to_thread_does_not_enter(self, name: str) -> None:
        """A thread of `asyncio.to_thread` isn't the task that called it."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=30)
            async with lock:
                assert await asyncio.to_thread(lock.try_acquire) is None

        asyncio.run(scenario())


def _free(lock: Lock) -> bool:
    if lock.try_acquire() is None:
        return False
    lock.release()
    return True
