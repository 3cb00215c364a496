"""Locks in asyncio and the sockets of each event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from locking import get_lock
from locking.backends.base import Outcome
from locking.core.handler import locks
from locking.testing.contract.asyncio_ import auntil, auntil_free
from locking.testing.contract.base import counted_waiters, until
from locking.utils.ownership import new_owner
from tests.lock_fixtures import LocksOn
from tests.private_redis import PrivateRedis

PATIENCE = 30.0


def test_a_loop_leaves_no_socket_behind(own_redis: PrivateRedis, locks_on: LocksOn) -> None:
    """A loop's connections serve its later calls, and are closed when the loop shuts down."""
    locks_on(own_redis.url)
    counts: list[int] = []

    def connections() -> int:
        return len(own_redis.client.client_list())

    async def use() -> None:
        for _ in range(3):
            async with get_lock("a", ttl=60):
                gc.collect()
            counts.append(connections())

    gc.collect()  # sockets that an earlier test left to a collection are not this test's
    before = connections()
    asyncio.run(use())
    assert before < counts[0] == counts[1] == counts[2]
    until(lambda: connections() == before, PATIENCE)


def test_a_loop_that_has_ended_is_not_kept(own_redis: PrivateRedis, locks_on: LocksOn) -> None:
    """A process that runs one loop after the other, each with tasks that wait, doesn't grow by them."""
    locks_on(own_redis.url, socket_timeout=PATIENCE)
    ended: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def enter() -> None:
        async with get_lock("a", ttl=60, wait=PATIENCE):
            pass

    async def wait_together() -> None:
        ended.append(weakref.ref(asyncio.get_running_loop()))
        with counted_waiters(locks["default"]) as waiters:
            async with get_lock("a", ttl=60):
                tasks = [asyncio.create_task(enter()) for _ in range(2)]
                await auntil(lambda: waiters.are(2), PATIENCE)
            await asyncio.gather(*tasks)

    for _ in range(2):
        asyncio.run(wait_together())
    gc.collect()
    assert [loop() for loop in ended] == [None, None]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Python's, about a loop that is closed like this
def test_a_loop_that_was_closed_without_a_shutdown_is_not_kept(
    own_redis: PrivateRedis, locks_on: LocksOn
) -> None:
    """Its sockets go with it once another loop begins: they stayed open as long as the process."""
    locks_on(own_redis.url, socket_timeout=PATIENCE)

    async def enter() -> None:
        async with get_lock("a", ttl=60):
            pass

    gc.collect()  # as above
    before = len(own_redis.client.client_list())
    for _ in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(enter())
        loop.close()
    asyncio.run(enter())
    del loop
    gc.collect()
    until(lambda: len(own_redis.client.client_list()) == before, PATIENCE)


@pytest.mark.usefixtures("memory_locks")
def test_a_grant_that_comes_too_late_is_undone() -> None:
    """The thread that asked for a cancelled task lets go of what it is granted."""
    backend, owner = locks["default"], new_owner()
    asked, answered, granted = threading.Event(), threading.Event(), list[Outcome]()

    def ask() -> Outcome:
        asked.set()
        assert answered.wait(PATIENCE)
        granted.append(backend.try_acquire("a", owner, 60.0))
        return granted[0]

    async def scenario() -> None:
        task = asyncio.create_task(backend.asked_in_thread(ask, "a", owner))
        await auntil(asked.is_set, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answered.set()
        await auntil(lambda: granted, PATIENCE)
        await auntil_free(backend, "a", PATIENCE)

    asyncio.run(scenario())
