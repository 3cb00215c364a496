"""What one client must survive: an interruption, a restarted server, a forbidden channel, one bad key."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any, cast

import pytest

from locking import (
    BackendError,
    BackendUnavailable,
    LockNotAcquired,
    get_lock,
    get_semaphore,
    get_write_lock,
)
from locking.backends.redis import RedisBackend
from locking.backends.redis.waiter import AnnouncedWaiter
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.core.pending_release import release_retrier
from locking.testing.contract.base import begin, elsewhere, until
from locking.utils.ownership import new_owner
from tests.backends import any_engine
from tests.locking.backends.redis.test_redis_faults import Interrupting, the_pool

PATIENCE = 30.0
PATIENT = {"socket_timeout": PATIENCE}
"""For a server that answers, however late on a busy machine."""
FAR = 60.0
JAVA = "11111111-2222-4333-8444-555555555555:7"


# a connection is used again only after a complete exchange


@pytest.mark.parametrize("step", range(1, 13))
def test_an_interruption_while_replicas_are_asked_leaves_no_answer_behind(
    own_redis, locks_on, monkeypatch, step
):
    """Ctrl-C at any step of ROLE leaves no answer that the next acquisition takes for its token."""
    locks_on(own_redis.url, wait_replicas="auto")
    _interrupt_at(monkeypatch, step, lambda: get_lock("a", ttl=FAR).acquire().release())
    with get_lock("b", ttl=FAR, fenced=True) as lease:
        assert own_redis.client.hkeys("b") == [lease.owner.encode()]
        assert lease.fencing_token == int(own_redis.client.get("redisson_lock_token:{b}"))


@pytest.mark.parametrize("step", range(1, 13))
def test_an_interruption_of_a_question_leaves_no_answer_behind(own_redis, locks_on, monkeypatch, step):
    """Ctrl-C at any step of an ordinary command leaves no answer that the next acquisition reads."""
    locks_on(own_redis.url)
    _interrupt_at(monkeypatch, step, lambda: get_lock("a").locked())
    with get_lock("b", ttl=FAR) as lease:
        assert own_redis.client.hkeys("b") == [lease.owner.encode()]


def _interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int, action: Any) -> None:
    monkeypatch.setattr(
        release_retrier, "schedule", lambda *args: None
    )  # its thread would read what is left behind
    pool = the_pool()
    interrupting = Interrupting(pool.connection_class, step)
    pool.connection_class = interrupting.connection_class
    with contextlib.suppress(KeyboardInterrupt):
        action()
    interrupting.left = None


@pytest.mark.parametrize("driver", ["thread", "task"])
def test_an_interruption_while_a_waiter_leaves_schedules_a_release(own_redis, locks_on, monkeypatch, driver):
    """Ctrl-C in the clean-up of a wait in vain schedules a release: the lock may have been handed over."""
    locks_on(own_redis.url)
    scheduled = []
    monkeypatch.setattr(release_retrier, "schedule", lambda backend, key, *rest: scheduled.append(key))
    monkeypatch.setattr(AnnouncedWaiter, "leave", _interrupted)
    own_redis.client.hset("a", new_owner(), 1)
    lock = get_lock("a", wait=0.01)
    with pytest.raises(Interruption):
        lock.acquire() if driver == "thread" else asyncio.run(lock.aacquire())
    assert scheduled == ["a"]


class Interruption(BaseException):
    """What a signal handler raises."""


async def _interrupted(self):
    self._close()
    await self._calls.sleep(0)
    raise Interruption


# idle subscriptions may be dead

KINDS = {
    "write": get_write_lock,
    "semaphore": partial(get_semaphore, permits=1),
    "fair": get_fair_lock,
    "lock": get_lock,
}


def _timed_out(get) -> None:
    """Wait until the timeout: the subscription is idle afterwards."""
    with contextlib.suppress(LockNotAcquired):
        get("a", wait=0.05).acquire()


@pytest.mark.parametrize("get", KINDS.values(), ids=KINDS)
def test_a_thread_waits_though_the_server_closed_its_idle_subscription(own_redis, locks_on, get):
    """A subscription that died while it was idle is replaced: the waiter hears the release."""
    locks_on(own_redis.url, **PATIENT)
    holder = elsewhere(get("a", ttl=FAR).acquire)
    _timed_out(get)
    own_redis.client.client_kill_filter(_type="pubsub")
    waiter = begin(get("a", ttl=FAR, wait=PATIENCE).acquire)
    until(lambda: own_redis.client.client_list(_type="pubsub"), PATIENCE)
    holder.release()
    waiter.result(timeout=PATIENCE).release()


@pytest.mark.parametrize("get", KINDS.values(), ids=KINDS)
def test_a_task_waits_though_the_server_closed_its_idle_subscription(own_redis, locks_on, get):
    """The same for asyncio, within its wait."""
    locks_on(own_redis.url, **PATIENT)
    holder = elsewhere(get("a", ttl=FAR).acquire)

    async def scenario() -> None:
        with contextlib.suppress(LockNotAcquired):
            await get("a", wait=0.05).aacquire()
        own_redis.client.client_kill_filter(_type="pubsub")
        waiter = asyncio.create_task(get("a", ttl=FAR, wait=PATIENCE).aacquire())
        async with asyncio.timeout(PATIENCE):
            while not (own_redis.client.client_list(_type="pubsub") or waiter.done()):
                await asyncio.sleep(0.01)  # asks Redis again until the task listens
        holder.release()
        await (await waiter).arelease()

    asyncio.run(scenario())


def _behind_java(server) -> None:
    server.hset("a", JAVA, 1)
    server.pexpire("a", 60_000)


def test_a_thread_behind_java_waits_though_its_idle_subscription_is_dead(own_redis, locks_on):
    """A waiter that has to hear Redisson's channel replaces a dead subscription."""
    locks_on(own_redis.url, **PATIENT)
    _behind_java(own_redis.client)
    _timed_out(get_lock)
    own_redis.client.client_kill_filter(_type="pubsub")
    waiter = begin(get_lock("a", ttl=FAR, wait=PATIENCE).acquire)
    until(lambda: own_redis.client.pubsub_numsub("redisson_lock__channel:{a}")[0][1], PATIENCE)
    own_redis.client.delete("a")
    own_redis.client.publish("redisson_lock__channel:{a}", "0")
    waiter.result(timeout=PATIENCE).release()


def test_a_task_behind_java_waits_though_its_idle_subscription_is_dead(own_redis, locks_on):
    """The same for asyncio: no AssertionError, no error at all."""
    locks_on(own_redis.url, **PATIENT)
    _behind_java(own_redis.client)

    async def scenario() -> None:
        with contextlib.suppress(LockNotAcquired):
            await get_lock("a", wait=0.05).aacquire()
        own_redis.client.client_kill_filter(_type="pubsub")
        waiter = asyncio.create_task(get_lock("a", ttl=FAR, wait=PATIENCE).aacquire())
        async with asyncio.timeout(PATIENCE):
            while not own_redis.client.pubsub_numsub("redisson_lock__channel:{a}")[0][1]:
                assert not waiter.done(), waiter.exception()
                await asyncio.sleep(0.01)  # asks Redis again until the task listens
        own_redis.client.delete("a")
        own_redis.client.publish("redisson_lock__channel:{a}", "0")
        await (await waiter).arelease()

    asyncio.run(scenario())


def test_a_message_that_no_client_can_read_ends_no_wait(own_redis, locks_on):
    """A message that the loop's reader fails on has the task subscribe again, and hear the release."""
    locks_on(own_redis.url, **PATIENT)
    holder = elsewhere(get_lock("a", ttl=FAR).acquire)

    async def scenario() -> None:
        waiter = asyncio.create_task(get_lock("a", ttl=FAR, wait=PATIENCE).aacquire())
        channel = await _channel_other_than(own_redis.client, b"")
        own_redis.client.publish(channel, b"\xff")
        await _channel_other_than(own_redis.client, channel)
        holder.release()
        await (await waiter).arelease()

    asyncio.run(scenario())


async def _channel_other_than(server, before):
    """Wait until the event loop listens to a channel, and not to the one before."""
    async with asyncio.timeout(PATIENCE):
        while (found := server.pubsub_channels("holdfast_lock_wake:*")) in ([], [before]):
            await asyncio.sleep(0.01)  # asks Redis again until it listens once more
    return found[0]


# a channel that may not be heard


@pytest.fixture
def without_channels(own_redis, locks_on):
    """Locks of a user who may not listen to Redisson's channels, behind a Java holder."""
    own_redis.client.execute_command(
        "ACL", "SETUSER", "deaf", "on", ">secret", "~*", "+@all", "resetchannels", "&holdfast_lock_wake:*"
    )
    locks_on(f"unix://deaf:secret@{own_redis.path}?db=0")
    _behind_java(own_redis.client)
    yield
    own_redis.client.execute_command("ACL", "DELUSER", "deaf")


@pytest.mark.usefixtures("without_channels")
def test_a_refused_subscription_is_reported_to_the_thread():
    """SUBSCRIBE that is refused isn't asked for again and again: the error names the permission."""
    with pytest.raises(BackendError, match=r"lacks commands, keys or channels") as refused:
        get_lock("a", wait=1).acquire()
    assert not isinstance(refused.value, BackendUnavailable)


@pytest.mark.usefixtures("without_channels")
def test_a_refused_subscription_is_reported_to_the_task():
    """The same for asyncio, at once instead of after five seconds."""
    with pytest.raises(BackendError, match=r"lacks commands, keys or channels") as refused:
        asyncio.run(get_lock("a", wait=1).aacquire())
    assert not isinstance(refused.value, BackendUnavailable)


# one answer per lease


def test_one_key_that_is_no_lock_costs_no_other_lease(own_redis, locks_on):
    """Of 250 leases the one whose key another program overwrote is lost; the others are extended."""
    locks_on(own_redis.url)
    backend = cast(RedisBackend, locks["default"])
    leases = [(f"k{i}", new_owner(), FAR) for i in range(250)]
    for lease in leases:
        backend.try_acquire(*lease)
    own_redis.client.set("k107", "no lock")
    assert [i for i, held in enumerate(backend.extend_many(leases)) if held is not True] == [107]
    assert backend.extend_many(leases)[107] is False


def test_one_permit_that_is_none_costs_no_other_permit(own_redis, locks_on):
    """The same for a kind, whose renewals are one script per lease."""
    locks_on(own_redis.url)
    backend = any_engine().variant("fair")
    leases = [(f"k{i}", new_owner(), FAR) for i in range(5)]
    for lease in leases:
        backend.try_acquire(*lease)
    own_redis.client.set("k3", "no lock")
    assert backend.extend_many(leases) == [True, True, True, False, True]


def test_a_server_that_is_away_leaves_nothing_to_tell(locks_on):
    """Only when nothing could be asked the whole renewal fails."""
    locks_on("unix:///nowhere/redis.sock")
    with pytest.raises(BackendUnavailable):
        locks["default"].extend_many([("a", new_owner(), FAR), ("b", new_owner(), FAR)])
