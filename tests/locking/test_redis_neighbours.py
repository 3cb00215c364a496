"""Other clients of the protocol on the same name: what Redisson writes, reads, publishes and hears."""

import asyncio
import uuid

import pytest
import redis

from locking import BackendError, LockLost, LockNotAcquired, get_lock
from locking.backends.redis.index import Index
from locking.backends.redis.scripts import derived, keys_of, pack
from locking.handler import locks
from locking.testing.contract.asyncio_ import auntil
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until

CHANNEL = "redisson_lock__channel:{a}"
QUEUE = "holdfast_lock_queue:{a}"
PATIENCE = 30.0


@pytest.fixture
def server(own_redis, locks_on):
    """The server's plain client; locks are on it."""
    locks_on(own_redis.url)
    return own_redis.client


@pytest.fixture
def java():
    """An owner as a Java client writes it: a UUID of version 4 and a thread's number."""
    return f"{uuid.uuid4()}:42"


def _hold(server, owner, count=1, ttl_ms=60_000):
    server.hset("a", owner, count)
    server.pexpire("a", ttl_ms)


def _release(server):
    server.delete("a")
    server.publish(CHANNEL, "0")


def test_a_lock_is_written_as_redisson_reads_it(server):
    """A hash of one field, `uuid:integer`, with hold count and ttl; beside it the token and our index."""
    with get_lock("a", ttl=30) as lease:
        assert server.hgetall("a") == {lease.owner.encode(): b"1"}
        identity, number = lease.owner.rsplit(":", 1)
        assert uuid.UUID(identity).version == 8
        assert int(number) > 0
        assert 29_000 < server.pttl("a") <= 30_000
        assert set(server.keys()) == {b"a", b"redisson_lock_token:{a}", b"holdfast_held:"}
    assert server.keys() == [b"redisson_lock_token:{a}"]


@pytest.mark.parametrize(
    ("name", "key"), [("a", b"p:{a}"), ("{a}:b", b"p:{a}:b"), ("x{a}", b"p:x{a}"), ("é", "p:{é}".encode())]
)
def test_derived_keys_live_in_the_slot_of_the_lock(name, key):
    """`prefix:{name}`, or `prefix:name` where the name has braces already: Redisson's rule."""
    from redis.crc import key_slot

    assert derived(b"p", name.encode()) == key
    assert key_slot(key) == key_slot(name.encode())


def test_a_java_holder_excludes_and_is_named(server, java):
    """A hold that Redisson wrote is busy for us, whatever its count."""
    _hold(server, java, count=2)
    with pytest.raises(LockNotAcquired) as caught:
        get_lock("a").acquire(wait=0)
    assert caught.value.holder == java
    assert get_lock("a").locked()


def test_a_java_holder_without_an_end_is_waited_for(server, java):
    """A hash without a ttl has no end that a waiter could count on; the release wakes it."""
    server.hset("a", java, 1)
    with counted_waiters(locks["default"]) as waiters:
        waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
        until(waiters.number, PATIENCE)
        _release(server)
        waiter.result(timeout=PATIENCE).release()


def test_a_java_release_wakes_the_first_in_line(server, java):
    """Redisson publishes `0` on the lock's channel; two waiters hear it, and the first has the lock first."""
    _hold(server, java)
    turns = []

    def stand(number):
        with get_lock("a", ttl=60, wait=60):
            turns.append(number)

    with counted_waiters(locks["default"]) as waiters:
        first = begin(lambda: stand(1))
        until(lambda: waiters.number() == 1, PATIENCE)
        second = begin(lambda: stand(2))
        until(lambda: waiters.number() == 2, PATIENCE)
        assert dict(server.pubsub_numsub(CHANNEL)) == {CHANNEL.encode(): 2}  # one may die
        _release(server)
        first.result(timeout=PATIENCE)
        second.result(timeout=PATIENCE)
    assert turns == [1, 2]
    assert not server.exists("a", QUEUE)


def test_a_java_release_wakes_a_task(server, java):
    """The same for asyncio."""

    async def scenario():
        with counted_waiters(locks["default"]) as waiters:
            task = asyncio.create_task(get_lock("a", ttl=60, wait=60).aacquire())
            await auntil(waiters.number, PATIENCE)
            _release(server)
            async with asyncio.timeout(PATIENCE):
                await (await task).arelease()

    _hold(server, java)
    asyncio.run(scenario())


def test_the_next_in_line_takes_over_listening_when_the_first_gives_up(server, java):
    """Someone always hears a Java release: when the listening head leaves, the next one listens."""
    _hold(server, java)
    with counted_waiters(locks["default"]) as waiters:
        head = begin(get_lock("a", wait=3).acquire)
        until(lambda: waiters.number() == 1, PATIENCE)
        second = begin(get_lock("a", ttl=60, wait=60).acquire)
        until(lambda: waiters.number() == 2, PATIENCE)
        assert isinstance(head.exception(timeout=PATIENCE), LockNotAcquired)
        until(lambda: server.llen(QUEUE) == 1 and server.pubsub_numsub(CHANNEL)[0][1] == 1, PATIENCE)
        _release(server)
        second.result(timeout=PATIENCE).release()


def test_a_java_waiter_finds_the_lock_free(server, java):
    """If someone listens on the lock's channel, a release leaves the lock free and says `0`."""
    with redis.Redis(unix_socket_path=server.connection_pool.connection_kwargs["path"]) as client:
        listener = client.pubsub()
        listener.subscribe(CHANNEL)
        assert listener.get_message(timeout=PATIENCE)["type"] == "subscribe"
        with get_lock("a", ttl=60):
            pass
        message = listener.get_message(timeout=PATIENCE)
        assert message["data"] == b"0"
        assert not server.exists("a")
        _hold(server, java)
        assert elsewhere(get_lock("a").try_acquire) is None
        listener.close()


def test_a_java_waiter_and_ours_are_both_told(server):
    """With a Java waiter beside our own the lock is left free, and our first in line is told to try, too."""
    with redis.Redis(unix_socket_path=server.connection_pool.connection_kwargs["path"]) as client:
        listener = client.pubsub()
        listener.subscribe(CHANNEL)
        assert listener.get_message(timeout=PATIENCE)["type"] == "subscribe"
        with counted_waiters(locks["default"]) as waiters:
            with get_lock("a", ttl=60):
                waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
                until(waiters.number, PATIENCE)
            waiter.result(timeout=PATIENCE).release()
        assert listener.get_message(timeout=PATIENCE)["data"] == b"0"
        listener.close()


def test_a_lock_that_java_forced_open_is_lost(server, java):
    """Redisson's force release deletes the key: our lease is lost, the Java hold that follows is not."""
    with pytest.raises(LockLost), get_lock("a", ttl=60):
        _release(server)
        _hold(server, java)
    assert server.hkeys("a") == [java.encode()]


def test_a_counter_that_redisson_made_goes_on(server):
    """Redisson counts from 1, without a ttl: our token is higher, and the counter is still kept."""
    server.set("redisson_lock_token:{a}", 7)
    with get_lock("a", ttl=5) as lease:
        assert lease.fencing_token > 7
    assert server.ttl("redisson_lock_token:{a}") == -1
    assert int(server.incr("redisson_lock_token:{a}")) == lease.fencing_token + 1


def test_redissons_latch_is_left_alone(server):
    """The key by which Redisson repeats a release survives ours."""
    server.set("redisson_unlock_latch:{a}:1", 1)
    with get_lock("a", ttl=5):
        pass
    assert server.exists("redisson_unlock_latch:{a}:1")


def test_a_key_that_is_no_lock_is_an_error_with_a_way_out(server):
    """A string under the lock's name is neither busy nor an outage: BackendError names the remedy."""
    server.set("a", "a cached value")
    with pytest.raises(BackendError, match="KEY_PREFIX"):
        get_lock("a").acquire()
    assert server.get("a") == b"a cached value"


def test_a_prefix_keeps_locks_apart(own_redis):
    """`KEY_PREFIX` stands before every name."""
    from django.test.utils import override_settings

    from tests.backends import REDIS

    entry = {"BACKEND": REDIS, "LOCATION": own_redis.url, "KEY_PREFIX": "shop:"}
    with override_settings(LOCKING={"default": entry}), get_lock("a", ttl=5):
        assert own_redis.client.exists("shop:a")
        assert not own_redis.client.exists("a")


@pytest.mark.parametrize("key", ["order:1", "{shop}:order:1", "订单:1", "a b"])
def test_the_packed_keys_follow_redissons_suffix_rule(key):
    """What is packed at once for speed is what the rule says, with and without braces in the name."""
    lock = key.encode()
    token, queue = derived(b"redisson_lock_token", lock), derived(b"holdfast_lock_queue", lock)
    keys = keys_of(key, Index("{shop}:"))
    assert keys.packed == pack(b"4", lock, token, queue, b"holdfast_held:{shop}:")
    assert keys.channel == pack(derived(b"redisson_lock__channel", lock))
