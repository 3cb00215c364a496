"""Redis when something is lost, late, paused, flushed or cut: what SAFETY asks of the client."""

import asyncio
import contextlib
import threading
from typing import Any, cast
from unittest import mock

import pytest
from redis.connection import ConnectionPool

from locking import BackendUnavailable, Lease, LockLost, LockNotAcquired, get_lock
from locking.backends.redis import RedisBackend, scripts, transport
from locking.core.handler import locks
from locking.core.lease import State
from locking.core.pending_release import release_retrier
from locking.testing.contract.asyncio_ import auntil
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until
from locking.testing.contract.processes import child
from locking.utils.clock import now

ACQUIRE = scripts.ACQUIRE.by_digest
RELEASE = scripts.RELEASE.by_digest
EXTEND = scripts.EXTEND.by_digest
PATIENCE = 30.0


@pytest.fixture
def through_proxy(proxy, locks_on):
    """Locks whose traffic goes through the proxy; the server knows the scripts by their digests."""
    locks_on(f"redis://127.0.0.1:{proxy.port}/0")
    with get_lock("warm-up") as lease:
        lease.extend(5)
    asyncio.run(_once("warm-up"))
    return proxy


@pytest.fixture
def holding_proxy(through_proxy, locks_on):
    """The same for a client that gives up after a second what the proxy holds back."""
    locks_on(f"redis://127.0.0.1:{through_proxy.port}/0", socket_timeout=1.0)
    return through_proxy


async def _once(name):
    async with get_lock(name) as lease:
        await lease.aextend(5)


# replies lost


def test_an_acquisition_whose_reply_was_lost_is_acquired(through_proxy, own_redis):
    """The repeated request finds its own hold and says so; the hold counts once."""
    through_proxy.lose_reply_to(ACQUIRE)
    with get_lock("a", ttl=30) as lease:
        assert own_redis.client.hgetall("a") == {lease.owner.encode(): b"1"}
        assert own_redis.client.zscore("holdfast_held:", "La") == lease.fencing_token
    assert not own_redis.client.exists("a")
    assert through_proxy._lose == []


def test_a_release_whose_reply_was_lost_is_a_release(through_proxy, own_redis):
    """The repeated request finds nothing to release, which is no loss: no error, no `on_lost`."""
    lost: list[Lease] = []
    lease = get_lock("a", ttl=30, on_lost=lost.append).acquire()
    through_proxy.lose_reply_to(RELEASE)
    lease.release()
    assert lease.state is State.RELEASED
    assert through_proxy._lose == []
    assert not own_redis.client.exists("a")
    assert lost == []


def test_a_release_that_finds_another_holder_at_once_is_still_a_loss(through_proxy, own_redis):
    """Only a repeated request is given the benefit of the doubt."""
    lease = get_lock("a", ttl=30).acquire()
    own_redis.client.delete("a")
    with pytest.raises(LockLost):
        lease.release()


def test_lost_replies_do_no_harm_to_tasks(through_proxy, own_redis):
    """Asyncio's requests are repeated in the same way."""

    async def scenario():
        through_proxy.lose_reply_to(ACQUIRE)
        through_proxy.lose_reply_to(EXTEND)
        through_proxy.lose_reply_to(RELEASE)
        async with get_lock("a", ttl=30) as lease:
            await lease.aextend(60)
            assert own_redis.client.hlen("a") == 1
        assert lease.state is State.RELEASED

    asyncio.run(scenario())
    assert through_proxy._lose == []
    assert not own_redis.client.exists("a")


def test_an_extension_whose_reply_was_lost_holds(through_proxy):
    """Extending twice is extending once."""
    with get_lock("a", ttl=5) as lease:
        through_proxy.lose_reply_to(EXTEND)
        lease.extend(3000)
        assert lease.remaining() > 2900
    assert through_proxy._lose == []


# no replies at all: unavailable, and the pending release is released


def test_an_acquisition_without_any_reply_is_not_acquired_and_its_pending_release_is_released(
    through_proxy, own_redis
):
    """The server has granted the lock, the answer is lost: BackendUnavailable, and the hold is undone."""
    through_proxy.lose_reply_to(ACQUIRE, times=2)
    with pytest.raises(BackendUnavailable):
        get_lock("a", ttl=60).acquire()
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


@pytest.mark.whole
def test_a_request_that_arrives_after_its_sender_gave_up_leaves_no_lock(holding_proxy, own_redis):
    """A late acquisition takes effect for no caller: its pending release is found and released."""
    holding_proxy.hold(ACQUIRE, times=2)
    with pytest.raises(BackendUnavailable):
        get_lock("a", ttl=60, fenced=True).acquire()
    assert holding_proxy.let_go() == 2
    until(lambda: own_redis.client.exists("redisson_lock_token:{a}"), PATIENCE)
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


def test_without_pending_releases_the_pending_release_would_stay(through_proxy, own_redis, monkeypatch):
    """The mutant of the two tests above: with the rule patched out, the lock stays without a holder."""
    monkeypatch.setattr(release_retrier, "schedule", lambda *args: None)
    through_proxy.lose_reply_to(ACQUIRE, times=2)
    with pytest.raises(BackendUnavailable):
        get_lock("a", ttl=60).acquire()
    with pytest.raises(AssertionError, match="not so within"):
        until(lambda: not own_redis.client.exists("a"), 0.5)


@pytest.mark.parametrize("url", ["unix:///nowhere/redis.sock", "redis://127.0.0.1:1/0"])
def test_what_never_left_the_process_needs_no_pending_releases(locks_on, monkeypatch, url):
    """Where no connection came about no lock can be taken later: threads and tasks leave nothing to seek."""
    locks_on(url)
    schedule = mock.Mock()
    monkeypatch.setattr(release_retrier, "schedule", schedule)
    with pytest.raises(BackendUnavailable) as alone:
        get_lock("a", ttl=60).acquire()
    with pytest.raises(BackendUnavailable) as as_task:
        asyncio.run(get_lock("a", ttl=60).aacquire())
    assert not alone.value.sent
    assert not as_task.value.sent
    assert not schedule.called


def test_a_connection_that_broke_leaves_it_open_whether_the_request_arrived(through_proxy, monkeypatch):
    """A request whose reply is lost may have been served, although the second try finds no server at all."""
    schedule = mock.Mock()
    monkeypatch.setattr(release_retrier, "schedule", schedule)
    assert not get_lock("a").locked()
    through_proxy.lose_reply_to(ACQUIRE, times=1)
    refused = mock.Mock(side_effect=ConnectionRefusedError)
    monkeypatch.setattr(transport.ThreadConnection, "connect", refused)
    with pytest.raises(BackendUnavailable) as unknown:
        get_lock("a", ttl=60).acquire()
    assert unknown.value.sent
    assert schedule.called


def test_a_task_without_any_reply_is_not_acquired_and_its_pending_release_is_released(
    through_proxy, own_redis
):
    """The same for asyncio."""
    through_proxy.lose_reply_to(ACQUIRE, times=2)

    async def scenario():
        with pytest.raises(BackendUnavailable):
            await get_lock("a", ttl=60).aacquire()

    asyncio.run(scenario())
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


@pytest.mark.whole
def test_a_release_without_any_reply_may_be_tried_again(holding_proxy, own_redis):
    """An outage doesn't lose what proves the hold: the second `release` succeeds."""
    lock = get_lock("a", ttl=60)
    lock.acquire()
    holding_proxy.hold(RELEASE, times=2)
    with pytest.raises(BackendUnavailable):
        lock.release()
    assert own_redis.client.exists("a")
    lock.release()
    assert not own_redis.client.exists("a")


# a paused server


def test_a_paused_server_bounds_the_acquisition_and_keeps_no_pending_release(own_redis, locks_on):
    """While the server is stopped no caller waits without end; later the late acquisition is taken back."""
    locks_on(own_redis.url, socket_timeout=0.5)
    with get_lock("warm-up"):
        pass
    own_redis.pause()
    begun = now()
    with pytest.raises(BackendUnavailable):
        get_lock("a", ttl=60, fenced=True).acquire()
    assert now() - begun < 30
    own_redis.resume()
    until(lambda: own_redis.client.exists("redisson_lock_token:{a}"), PATIENCE)
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


@pytest.mark.whole
def test_a_paused_server_bounds_a_task_and_leaves_the_loop_free(own_redis, locks_on):
    """The event loop goes on while a task's request is not answered."""
    locks_on(own_redis.url, socket_timeout=1.0)

    async def scenario():
        await _once("warm-up")
        own_redis.pause()
        attempt = asyncio.create_task(get_lock("a", ttl=60).aacquire())
        ticks = 0
        while not attempt.done():
            await asyncio.sleep(0.01)  # a tick: the loop must go on meanwhile
            ticks += 1
        with pytest.raises(BackendUnavailable):
            attempt.result()
        assert ticks > 5
        own_redis.resume()

    asyncio.run(scenario())
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


@pytest.mark.whole
def test_a_pause_makes_a_lease_unknown_and_then_held_again(own_redis, locks_on, monkeypatch):
    """Not lost, for no other caller can have it yet: unknown, until the server answers."""
    _fast_watchdog(monkeypatch, lease=60.0)
    monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.2 / 60)
    locks_on(own_redis.url, socket_timeout=1.0)
    with get_lock("a") as lease:
        own_redis.pause()
        until(lambda: lease.state is State.UNKNOWN, PATIENCE)
        lease.ensure_held()
        own_redis.resume()
        until(lambda: lease.state is State.HELD, PATIENCE)


@pytest.mark.whole
def test_a_pause_beyond_the_lease_is_a_loss(own_redis, locks_on, monkeypatch):
    """At its local deadline an unknown lease is lost, whatever the server will say."""
    _fast_watchdog(monkeypatch, lease=2.0)
    locks_on(own_redis.url, socket_timeout=1.0)
    reported = threading.Event()
    lease = get_lock("a", on_lost=lambda _: reported.set()).acquire()
    own_redis.pause()
    assert reported.wait(PATIENCE)
    assert lease.state is State.LOST
    own_redis.resume()
    with pytest.raises(LockLost):
        lease.ensure_held()
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


def _fast_watchdog(monkeypatch, lease):
    monkeypatch.setattr("locking.core.options.DEFAULT_LEASE", lease)
    monkeypatch.setattr("locking.core.renewal.RETRY_PAUSE", 0.05)


# flushed, cut


def test_a_flushed_script_cache_is_transparent(own_redis, locks_on):
    """The scripts are sent whole when the server has forgotten them."""
    locks_on(own_redis.url)
    for _ in range(2):
        own_redis.client.script_flush()
        lease = get_lock("a", ttl=5).acquire()
        own_redis.client.script_flush()
        lease.extend(30)
        own_redis.client.script_flush()
        lease.extend(10)
        own_redis.client.script_flush()
        lease.release()


def test_a_flushed_script_cache_is_transparent_to_tasks(own_redis, locks_on):
    """The same for asyncio."""
    locks_on(own_redis.url)

    async def scenario():
        own_redis.client.script_flush()
        async with get_lock("a", ttl=5) as lease:
            own_redis.client.script_flush()
            await lease.aextend(30)
            own_redis.client.script_flush()

    asyncio.run(scenario())


def test_a_flushed_server_loses_leases_and_the_watchdog_notices(own_redis, locks_on, monkeypatch):
    """After FLUSHALL the lock is lost, reported once, and not brought back by a renewal."""
    _fast_watchdog(monkeypatch, lease=60.0)
    monkeypatch.setattr("locking.core.lease.RENEW_AFTER", 0.02 / 60)
    locks_on(own_redis.url)
    reported: list[Lease] = []
    with pytest.raises(LockLost, match="lost"), get_lock("a", on_lost=reported.append) as lease:
        own_redis.client.flushall()
        until(lambda: reported, PATIENCE)
        with pytest.raises(LockLost):
            lease.ensure_held()
    assert reported == [lease]
    assert not own_redis.client.exists("a")


def test_tokens_rise_after_a_flush(own_redis, locks_on):
    """The counter is gone, and the next token is higher all the same: it comes from the server's clock."""
    locks_on(own_redis.url)
    before = _token()
    own_redis.client.flushall()
    assert _token() > before


def test_tokens_rise_when_the_counter_is_ahead_of_the_clock(own_redis, locks_on):
    """A clock that went back doesn't send the tokens back; every digit counts."""
    locks_on(own_redis.url)
    ahead = 9_007_199_254_740_000
    own_redis.client.set("redisson_lock_token:{a}", ahead)
    assert [_token(), _token()] == [ahead + 1, ahead + 2]


def test_a_token_that_the_database_checks_is_kept_for_ever(own_redis, locks_on):
    """With `fenced` the counter has no ttl; without, there is none."""
    locks_on(own_redis.url)
    _token()
    assert own_redis.client.ttl("redisson_lock_token:{a}") == -1
    with get_lock("b", ttl=5):
        assert not own_redis.client.exists("redisson_lock_token:{b}")


def _token():
    with get_lock("a", ttl=5, fenced=True) as lease:
        return lease.fencing_token


def test_killed_connections_cost_a_waiter_nothing_but_its_place(own_redis, locks_on):
    """With every connection killed by the server, waiter and holder go on over new ones."""
    locks_on(own_redis.url)
    with counted_waiters(locks["default"]) as waiters:
        with get_lock("a", ttl=60):
            waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
            until(waiters.number, PATIENCE)
            own_redis.client.client_kill_filter(_type="normal", skipme=True)
            own_redis.client.client_kill_filter(_type="pubsub")
            until(lambda: own_redis.client.llen("holdfast_lock_queue:{a}") == 1, PATIENCE)
        waiter.result(timeout=PATIENCE).release()
    assert not own_redis.client.exists("a")


def test_killed_connections_cost_waiting_tasks_nothing_but_their_places(own_redis, locks_on):
    """The same for asyncio, where several tasks share the subscription that is killed."""
    locks_on(own_redis.url)

    async def scenario():
        with counted_waiters(locks["default"]) as waiters:
            async with get_lock("a", ttl=60):
                crowd = [asyncio.create_task(_once_waiting("a")) for _ in range(3)]
                await auntil(lambda: waiters.are(3), PATIENCE)
                own_redis.client.client_kill_filter(_type="normal", skipme=True)
                own_redis.client.client_kill_filter(_type="pubsub")
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*crowd)

    asyncio.run(scenario())
    assert not own_redis.client.exists("a")


async def _once_waiting(name):
    async with get_lock(name, ttl=60, wait=60):
        pass


def test_a_task_that_cannot_leave_does_not_deafen_the_others(through_proxy, own_redis):
    """When one task's withdrawal fails, the tasks beside it still get the lock."""

    async def scenario():
        with counted_waiters(locks["default"]) as waiters:
            async with get_lock("a", ttl=60):
                doomed = asyncio.create_task(_once_waiting("a"))
                patient = asyncio.create_task(_once_waiting("a"))
                await auntil(lambda: waiters.are(2), PATIENCE)
                through_proxy.lose_reply_to(RELEASE, times=2)
                doomed.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await doomed
                assert through_proxy._lose == []
            async with asyncio.timeout(PATIENCE):
                await patient

    asyncio.run(scenario())


def test_cut_connections_are_replaced(through_proxy):
    """A socket that broke while it was idle is replaced without an error."""
    for _ in range(3):
        through_proxy.cut()
        with get_lock("a", ttl=5):
            through_proxy.cut()


def test_the_pool_of_a_shared_cache_is_not_used_up(own_redis, locks_on):
    """Sockets that broke and were replaced don't count against the pool's limit, nor do waiting threads."""
    locks_on(own_redis.url, max_connections=2)
    for _ in range(5):
        with counted_waiters(locks["default"]) as waiters:
            with get_lock("a", ttl=60):
                waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
                until(waiters.number, PATIENCE)
                own_redis.client.client_kill_filter(_type="pubsub")
            waiter.result(timeout=PATIENCE).release()


# waiters that died or gave up


def test_a_waiter_that_timed_out_is_gone_from_the_queue(own_redis, locks_on):
    """LockNotAcquired leaves no place behind."""
    locks_on(own_redis.url)
    with get_lock("a", ttl=60):
        with pytest.raises(LockNotAcquired) as caught:
            elsewhere(lambda: get_lock("a", wait=0.05).acquire())
        assert own_redis.client.llen("holdfast_lock_queue:{a}") == 0
        assert caught.value.holder == own_redis.client.hkeys("a")[0].decode()
        assert 50 < (caught.value.retry_after or 0) <= 60


def test_a_queue_does_not_outlive_its_waiters(own_redis, locks_on):
    """The queue has a ttl, renewed by those who stand in it."""
    locks_on(own_redis.url)
    with get_lock("a", ttl=60), counted_waiters(locks["default"]) as waiters:
        waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
        until(waiters.number, PATIENCE)
        assert 0 < own_redis.client.pttl("holdfast_lock_queue:{a}") <= 90_000
    waiter.result(timeout=PATIENCE).release()


def test_a_killed_waiter_is_passed_over_at_once(own_redis, locks_on):
    """After `kill -9` of the first in the queue the second gets the lock by the same release."""
    locks_on(own_redis.url)

    def wait_for_ever(pipe):
        with counted_waiters(locks["default"]) as waiters:
            begin(get_lock("a", ttl=60, wait=60).acquire)
            until(waiters.number, PATIENCE)
            pipe.send("waits")
            pipe.recv()

    with counted_waiters(locks["default"]) as waiters:
        with get_lock("a", ttl=60), child(wait_for_ever) as doomed:
            assert doomed.report() == "waits"
            second = begin(get_lock("a", ttl=60, wait=60).acquire)
            until(waiters.number, PATIENCE)
            assert own_redis.client.llen("holdfast_lock_queue:{a}") == 2
            doomed.kill()
            until(lambda: len(own_redis.client.client_list(_type="pubsub")) == 1, PATIENCE)
        second.result(timeout=PATIENCE).release()
    assert not own_redis.client.exists("a")


# interruptions


def the_pool() -> ConnectionPool:
    """Where the backend under test gets its connections from."""
    (used,) = cast(RedisBackend, locks["default"]).calls.opened()
    return cast(ConnectionPool, cast(Any, used).make.args[0])


class Interrupting:
    """Raises KeyboardInterrupt at the n-th step of a conversation with the server, as Ctrl-C could."""

    def __init__(self, connection_class, steps):
        self.left = steps
        outer = self

        class Connection(connection_class):  # type: ignore[misc, valid-type]
            def send_packed_command(self, *args, **kwargs):
                outer.step()
                super().send_packed_command(*args, **kwargs)
                outer.step()

            def read_response(self, *args, **kwargs):
                outer.step()
                reply = super().read_response(*args, **kwargs)
                outer.step()
                return reply

        self.connection_class = Connection

    def step(self):
        """Count down."""
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.left = None
                raise KeyboardInterrupt


@pytest.mark.parametrize("step", range(1, 9))
def test_an_interruption_at_any_step_of_an_acquisition_leaves_nothing(own_redis, locks_on, step):
    """Ctrl-C between a request and its reply leaves no lock, and no reply for the next request to read."""
    locks_on(own_redis.url)
    pool = the_pool()
    interrupting = Interrupting(pool.connection_class, step)
    pool.connection_class = interrupting.connection_class
    with contextlib.suppress(KeyboardInterrupt):
        get_lock("a", ttl=60).acquire().release()
    interrupting.left = None
    until(lambda: not own_redis.client.exists("a"), PATIENCE)
    with get_lock("b", ttl=60) as lease:
        assert own_redis.client.hkeys("b") == [lease.owner.encode()]
        assert get_lock("b").locked()
        assert not get_lock("a").locked()


@pytest.mark.parametrize("step", range(1, 13))
def test_an_interruption_at_any_step_of_a_wait_leaves_nothing(own_redis, locks_on, step):
    """Ctrl-C while waiting in the queue leaves the line, and the lock to the holder."""
    locks_on(own_redis.url)
    with get_lock("a", ttl=60):
        pool = the_pool()
        interrupting = Interrupting(pool.connection_class, step)
        pool.connection_class = interrupting.connection_class
        locks["default"].close()

        def wait():
            try:
                get_lock("a", ttl=60, wait=0.2).acquire()
            except (KeyboardInterrupt, LockNotAcquired) as error:
                return type(error)

        assert elsewhere(wait) in (KeyboardInterrupt, LockNotAcquired)
        interrupting.left = None
        until(lambda: own_redis.client.llen("holdfast_lock_queue:{a}") == 0, PATIENCE)
    until(lambda: not own_redis.client.exists("a"), PATIENCE)
