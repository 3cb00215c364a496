"""The same claims for asyncio: nothing blocks the loop, and a cancellation leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from locking.backends.base import BaseLockBackend
from locking.core.lease import State
from locking.core.lock import get_lock
from locking.exceptions import LockLost, LockNotAcquired
from locking.testing.contract.base import ContractBase, begin, counted_waiters, until
from locking.testing.contract.waiting import FAR
from locking.utils.clock import now
from locking.utils.ownership import new_owner


async def auntil(condition: Callable[[], object], within: float) -> None:
    """`until` for asyncio."""
    deadline = now() + within
    while not condition():
        assert now() < deadline, f"not so within {within:g} s"
        await asyncio.sleep(0.002)  # asks again until it is so


class AsyncContract(ContractBase):
    """Tasks that exclude, wait, time out and are cancelled."""

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run one scenario in an event loop of its own, bounded."""

        async def bounded() -> None:
            async with asyncio.timeout(60):
                await scenario()

        asyncio.run(bounded())

    def test_tasks_exclude_each_other(self, name: str) -> None:
        """A task's lock is free for it, busy for other tasks and threads, and free again afterwards."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=30)
            async with lock as lease:
                assert lease.state is State.HELD
                assert lock.owned()
                assert await lock.alocked()
                assert await asyncio.create_task(get_lock(name).atry_acquire()) is None
                assert await asyncio.to_thread(get_lock(name).try_acquire) is None
            assert not await lock.alocked()
            lease = await asyncio.create_task(get_lock(name, ttl=30).aacquire())
            await lease.arelease()

        self.run(scenario)

    def test_a_task_is_not_its_thread(self, name: str) -> None:
        """A task doesn't enter by a hold that the thread took before it ran the event loop."""

        async def scenario() -> None:
            assert await get_lock(name, ttl=30).atry_acquire() is None

        with get_lock(name, ttl=30):
            self.run(scenario)

    def test_a_wait_of_zero_never_blocks_a_task(self, backend: BaseLockBackend, name: str) -> None:
        """With `wait=0` no task is put to sleep."""

        async def scenario() -> None:
            with counted_waiters(backend) as waiters:
                async with get_lock(name, ttl=FAR):
                    assert await asyncio.create_task(get_lock(name).atry_acquire()) is None
                    with pytest.raises(LockNotAcquired):
                        await asyncio.create_task(get_lock(name).aacquire(wait=0))
                assert waiters.number() == 0

        self.run(scenario)

    def test_a_release_wakes_a_waiting_task(self, backend: BaseLockBackend, name: str) -> None:
        """A waiting task gets the lock when it is released, long before the lease would have ended."""

        async def scenario() -> None:
            with counted_waiters(backend) as waiters:
                async with get_lock(name, ttl=FAR):
                    waiter = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
                    await auntil(waiters.number, self.patience)
                    assert not waiter.done()
                lease = await asyncio.wait_for(waiter, self.patience)
            lease.ensure_held()
            await lease.arelease()

        self.run(scenario)

    def test_waiting_leaves_the_loop_free(self, backend: BaseLockBackend, name: str) -> None:
        """While a task waits, another task of the same loop goes on, even the holder that must release."""

        async def scenario() -> None:
            ticks = 0
            with counted_waiters(backend) as waiters:
                async with get_lock(name, ttl=FAR):
                    waiter = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
                    await auntil(waiters.number, self.patience)
                    for _ in range(100):
                        await asyncio.sleep(0)
                        ticks += 1
                await (await waiter).arelease()
            assert ticks == 100

        self.run(scenario)

    def test_a_waiting_task_times_out(self, backend: BaseLockBackend, name: str) -> None:
        """When the wait is over LockNotAcquired is raised and no pending release stays in the queue."""

        async def scenario() -> None:
            async with get_lock(name, ttl=FAR):
                with pytest.raises(LockNotAcquired) as caught:
                    await asyncio.create_task(get_lock(name, wait=0.1).aacquire())
            assert 0.1 <= caught.value.waited < 0.1 + self.patience
            assert await backend.aholder(backend.key(name)) is None

        self.run(scenario)

    def test_a_waiting_task_takes_over_when_the_lease_ends(self, name: str) -> None:
        """A task gets the lock of a holder that never releases it, once the lease has ended."""

        async def scenario() -> None:
            abandoned = await get_lock(name, ttl=self.shortest_ttl).aacquire()
            lease = await asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
            assert abandoned.remaining() == 0.0
            with pytest.raises(LockLost):
                await abandoned.arelease()
            lease.ensure_held()
            await lease.arelease()

        self.run(scenario)

    def test_a_cancelled_waiter_leaves_no_pending_release(self, backend: BaseLockBackend, name: str) -> None:
        """A task that is cancelled while it waits isn't given the lock later; the next in the queue is."""

        async def scenario() -> None:
            with counted_waiters(backend) as waiters:
                async with get_lock(name, ttl=FAR):
                    doomed = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
                    await auntil(lambda: waiters.number() == 1, self.patience)
                    patient = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
                    await auntil(lambda: waiters.number() == 2, self.patience)
                    doomed.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await doomed
                await (await asyncio.wait_for(patient, self.patience)).arelease()
            # A request that a thread was sending for the cancelled task is undone by that thread, soon after.
            await auntil_free(backend, name, self.patience)

        self.run(scenario)

    @pytest.mark.parametrize("steps", range(12))
    def test_a_cancellation_at_any_step_leaves_nothing(
        self, backend: BaseLockBackend, name: str, steps: int
    ) -> None:
        """Whenever an acquisition is cancelled, it ends cancelled and the lock is free, or it was done."""

        async def scenario() -> None:
            task = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
            for _ in range(steps):
                await asyncio.sleep(0)
            requested = task.cancel()
            try:
                lease = await task
            except asyncio.CancelledError:
                await auntil_free(backend, name, self.patience)
            else:
                assert not requested, "a cancellation was swallowed"
                await lease.arelease()

        self.run(scenario)

    @pytest.mark.parametrize("steps", range(12))
    def test_a_cancellation_at_the_handoff_leaves_nothing(
        self, backend: BaseLockBackend, name: str, steps: int
    ) -> None:
        """A waiter that is cancelled while the lock is handed to it gives it back, or has it."""

        async def scenario() -> None:
            with counted_waiters(backend) as waiters:
                holder = await get_lock(name, ttl=FAR).aacquire()
                task = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
                await auntil(waiters.number, self.patience)
                release = asyncio.create_task(holder.arelease())
                for _ in range(steps):
                    await asyncio.sleep(0)
                requested = task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    lease = await task
                    assert not requested, "a cancellation was swallowed"
                    await lease.arelease()
                await release
            await auntil_free(backend, name, self.patience)

        self.run(scenario)

    def test_a_time_out_around_the_acquisition_is_kept(self, backend: BaseLockBackend, name: str) -> None:
        """`asyncio.timeout` ends a wait without end, and the waiter is gone from the queue."""

        async def scenario() -> None:
            async with get_lock(name, ttl=FAR):
                with pytest.raises(TimeoutError):
                    await asyncio.create_task(self._wait_for_ever(name))
            await auntil_free(backend, name, self.patience)

        self.run(scenario)

    @staticmethod
    async def _wait_for_ever(name: str) -> None:
        async with asyncio.timeout(0.1):
            await get_lock(name, wait=None).aacquire()

    def test_a_cancelled_body_releases(self, backend: BaseLockBackend, name: str) -> None:
        """A task that is cancelled inside the block lets the lock go."""

        async def scenario() -> None:
            inside = asyncio.Event()

            async def body() -> None:
                async with get_lock(name, ttl=FAR):
                    inside.set()
                    await asyncio.sleep(FAR)  # holds it until it is cancelled

            task = asyncio.create_task(body())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await auntil_free(backend, name, self.patience)

        self.run(scenario)

    def test_every_waiting_task_gets_its_turn(self, backend: BaseLockBackend, name: str) -> None:
        """All tasks are served; in the order they came where `supports_fairness` is on."""

        async def scenario() -> None:
            turns: list[int] = []

            async def enqueue(number: int) -> None:
                async with get_lock(name, ttl=FAR, wait=FAR):
                    turns.append(number)

            with counted_waiters(backend) as waiters:
                async with get_lock(name, ttl=FAR):
                    crowd = []
                    for number in range(5):
                        crowd.append(asyncio.create_task(enqueue(number)))
                        await auntil(partial(waiters.are, number + 1), self.patience)
                await asyncio.gather(*crowd)
            assert sorted(turns) == [0, 1, 2, 3, 4]
            if backend.supports_fairness:
                assert turns == [0, 1, 2, 3, 4]

        self.run(scenario)

    def test_hammer_of_tasks(self, name: str) -> None:
        """Tasks that read, sleep and write under the lock lose no count."""

        async def scenario() -> None:
            count = 0

            async def bump() -> None:
                nonlocal count
                for _ in range(10):
                    async with get_lock(name, ttl=FAR, wait=FAR):
                        seen = count
                        await asyncio.sleep(0.0005)  # between reading and writing: room for an intruder
                        count = seen + 1

            await asyncio.gather(*(bump() for _ in range(5)))
            assert count == 50

        self.run(scenario)

    def test_threads_and_tasks_wait_for_each_other(self, backend: BaseLockBackend, name: str) -> None:
        """A task is woken by a thread's release, and a thread by a task's."""
        entered = threading.Event()

        async def scenario() -> None:
            with counted_waiters(backend) as waiters:
                async with get_lock(name, ttl=FAR):
                    thread = begin(lambda: self._hold_until(name, lambda: waiters.number() == 2, entered))
                    await auntil(lambda: waiters.number() == 1, self.patience)
                await auntil(entered.is_set, self.patience)  # else the task might come first
                task = asyncio.create_task(get_lock(name, ttl=FAR, wait=FAR).aacquire())
                await (await asyncio.wait_for(task, self.patience)).arelease()
                thread.result(timeout=self.patience)

        self.run(scenario)

    def _hold_until(self, name: str, condition: Callable[[], object], entered: threading.Event) -> None:
        with get_lock(name, ttl=FAR, wait=FAR):
            entered.set()
            until(condition, self.patience)

    def test_a_task_extends_its_lease(self, backend: BaseLockBackend, name: str) -> None:
        """`aextend` gives a new length, refuses nonsense, and never revives."""

        async def scenario() -> None:
            lock = get_lock(name, ttl=5)
            async with lock as lease:
                asked = now()
                await lock.aextend(30)
                assert (asked + 30 - now()) * 0.98 < lease.remaining() <= 30
                with pytest.raises(ValueError, match="ttl must be"):
                    await lease.aextend(-1)
            key, owner = backend.key(name), new_owner()
            assert not await backend.aextend(key, owner, 30.0)
            assert not await backend.arelease(key, owner)
            assert await backend.aholder(key) is None

        self.run(scenario)


async def auntil_free(backend: BaseLockBackend, name: str, within: float) -> None:
    """Wait until the lock is free: a pending release is released in the background."""
    deadline = now() + within
    while (holder := await backend.aholder(backend.key(name))) is not None:
        assert now() < deadline, f"{holder} still has the lock"
        await asyncio.sleep(0.005)  # asks again until it is free
