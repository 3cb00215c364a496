"""Other clients of the protocol on the same name: what Redisson writes, reads, publishes and hears."""

import asyncio
import uuid

import pytest
import redis

from locking import (
    BackendError,
    LockLost,
    LockNotAcquired,
    get_lock,
    get_read_lock,
    get_semaphore,
    get_write_lock,
)
from locking.backends.base import Busy
from locking.backends.redis import scripts
from locking.backends.redis.scripts import Index, Ordinary, derived, keys_of, pack
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.testing.contract.asyncio_ import auntil
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until
from locking.utils.ownership import new_owner
from tests.backends import any_engine
from tests.locking.support.helpers import parts_of

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
    """A hash of one field, `uuid:integer`, with hold count and ttl; beside it our index alone."""
    with get_lock("a", ttl=30) as lease:
        assert server.hgetall("a") == {lease.owner.encode(): b"1"}
        identity, number = lease.owner.rsplit(":", 1)
        assert uuid.UUID(identity).version == 8
        assert int(number) > 0
        assert 29_000 < server.pttl("a") <= 30_000
        assert set(server.keys()) == {b"a", b"holdfast_held:"}
    assert server.keys() == [b"holdfast_held:"]


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
    """Redisson publishes `0` on the lock's channel; the first waiter hears it, and has the lock first."""
    _hold(server, java)
    turns = []

    def enqueue(number):
        with get_lock("a", ttl=60, wait=60):
            turns.append(number)

    with counted_waiters(locks["default"]) as waiters:
        first = begin(lambda: enqueue(1))
        until(lambda: waiters.number() == 1, PATIENCE)
        second = begin(lambda: enqueue(2))
        until(lambda: waiters.number() == 2, PATIENCE)
        assert dict(server.pubsub_numsub(CHANNEL)) == {CHANNEL.encode(): 1}  # one of each process
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


@pytest.mark.whole
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


def test_a_java_waiter_and_ours_are_both_reported(server):
    """With a Java waiter beside ours the lock is left free, and our first waiter is notified, too."""
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


OTHER_USES = {
    "string": lambda server: server.set("a", "3"),
    "list": lambda server: server.rpush("a", "x"),
    "set": lambda server: server.sadd("a", "x"),
    "zset": lambda server: server.zadd("a", {"x": 1}),
    "stream": lambda server: server.xadd("a", {"x": "1"}),
    "hash": lambda server: server.hset("a", "name", "x"),
}
VERBS = {
    "acquire": lambda: get_lock("a").acquire(wait=0),
    "locked": lambda: get_lock("a").locked(),
    "read": lambda: get_read_lock("a").acquire(wait=0),
    "read, locked": lambda: get_read_lock("a").locked(),
    "write": lambda: get_write_lock("a").acquire(wait=0),
    "fair": lambda: get_fair_lock("a").acquire(wait=0),
    "semaphore": lambda: get_semaphore("a", 3).acquire(wait=0),
    "semaphore, locked": lambda: get_semaphore("a", 3).locked(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("use", OTHER_USES)
def test_a_key_of_another_use_is_an_error_with_a_way_out(server, use, verb):
    """Neither busy nor an outage, and never granted: the error names the key, its type and the fix."""
    OTHER_USES[use](server)
    before = server.dump("a")
    with pytest.raises(BackendError, match=rf"the key 'a' holds a {use} of another use.*KEY_PREFIX"):
        VERBS[verb]()
    assert server.dump("a") == before


def test_a_key_of_another_use_harms_no_other_lease(server):
    """One of a hundred leases renewed in one request finds its key overwritten: that one is lost."""
    leases = {f"a:{number}": new_owner() for number in range(100)}
    for name, owner in leases.items():
        locks["default"].try_acquire(name, owner, 60.0)
    server.set("a:50", "a cached value")
    answers = locks["default"].extend_many([(name, owner, 60.0) for name, owner in leases.items()])
    assert [name for name, held in zip(leases, answers, strict=True) if not held] == ["a:50"]


def test_a_key_of_another_use_hides_no_list(server):
    """The entry of a lock whose key was overwritten is taken out; the others are listed."""
    with get_lock("b", ttl=60):
        locks["default"].try_acquire("a", new_owner(), 60.0)
        server.set("a", "a cached value")
        assert [hold.key for hold in any_engine().held()] == ["b"]


# the queue behind a Java holder


def _dead_places(server, number, process=None):
    """Put waiters in the queue whose process was killed: their channels have no subscriber."""
    for each in range(number):
        process_ = process or uuid.uuid4()
        server.rpush(QUEUE, f"{process_}:{each} 60000 0 holdfast_lock_wake:{each:016x}")


@pytest.mark.parametrize("process", [None, uuid.uuid4()], ids=["each of its own process", "of one process"])
def test_dead_waiters_behind_a_java_holder_cost_nothing(server, java, process):
    """The waiter behind twenty dead ones hears Java's release itself and has the lock at once."""
    _hold(server, java)
    _dead_places(server, 20, process)
    waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
    until(lambda: _listeners(server) == 1, PATIENCE)
    _release(server)
    waiter.result(timeout=PATIENCE).release()


@pytest.mark.parametrize(
    ("instead", "listeners"),
    [(b"is_first_of_process(ARGV[4])", 1), (b"redis.call('LPOS', KEYS[3], ARGV[4]) < 3", 0)],
)
def test_if_the_first_three_listened_no_other_would(server, java, monkeypatch, instead, listeners):
    """The mutant of the test above, beside the rule itself: the first three listen, and are dead."""
    read, rule = scripts._read, b"is_first_of_process(ARGV[4])"
    assert rule in read("acquire")
    monkeypatch.setattr(scripts, "_read", lambda name: read(name).replace(rule, instead))
    monkeypatch.setattr(scripts, "ACQUIRE", scripts.Script(*scripts.ACQUIRE.names))
    _hold(server, java)
    _dead_places(server, 3)
    place = locks["default"].waiter("a", new_owner(), 60.0)
    assert isinstance(place.try_acquire(queue=True), Busy)
    assert _listeners(server) == listeners
    place.leave()


def _listeners(server):
    return server.pubsub_numsub(CHANNEL)[0][1]


class Crowd:
    """Waiters of three processes, the last of them dead, whose channels the test hears itself."""

    def __init__(self, server):
        self.server, self.near_listener = server, server.pubsub(ignore_subscribe_messages=True)
        one, two, dead = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
        waiters = [("1a", one), ("dead", dead), ("1b", one), ("2a", two), ("2b", two)]
        self.places = {
            name: f"{process}:{number} 60000 0 holdfast_lock_wake:{name}"
            for number, (name, process) in enumerate(waiters)
        }
        server.rpush(QUEUE, *self.places.values())
        self.hear(*[f"holdfast_lock_wake:{name}" for name in self.places if name != "dead"])

    def hear(self, *channels):
        """Listen to these as well."""
        self.near_listener.subscribe(*channels)
        for _ in channels:
            self.near_listener.parse_response(block=True, timeout=PATIENCE)

    def woken(self):
        """Whose channels had a message, in order; a last one of our own ends the reading."""
        self.server.publish("holdfast_lock_wake:1b", "end")
        heard: list[str] = []
        while message := self.near_listener.get_message(timeout=PATIENCE):
            if message["data"] == b"end":
                return heard
            heard.append(message["channel"].decode().removeprefix("holdfast_lock_wake:"))
        raise AssertionError(f"heard {heard}, and no end")

    def waiting(self):
        """The waiters in the queue."""
        names = {place.encode(): name for name, place in self.places.items()}
        return [names[place] for place in self.server.lrange(QUEUE, 0, -1)]


def test_a_release_that_leaves_the_lock_to_java_wakes_one_waiter_of_each_process(server):
    """Java may win: then one of each process knows that it must listen, and the dead have left the queue."""
    owner = new_owner()
    locks["default"].try_acquire("a", owner, 60.0)
    crowd = Crowd(server)
    crowd.hear(CHANNEL)
    assert locks["default"].release("a", owner)
    assert sorted(crowd.woken()) == ["1a", "2a", CHANNEL]
    assert crowd.waiting() == ["1a", "1b", "2a", "2b"]


def test_the_listener_of_a_process_that_gives_up_is_replaced(server, java):
    """Only its successor is notified, and learns that it is the one to listen."""
    _hold(server, java)
    crowd = Crowd(server)
    place = crowd.places["1a"]
    request = Ordinary(Index()).release("a", place.split()[0], entry=place.encode())
    assert server.execute_command(*parts_of(request)) == 0
    assert crowd.woken() == ["1b"]


def test_a_waiter_that_gives_up_on_a_free_lock_passes_it_on(server):
    """It alone may have been notified that the lock is free: the next in the queue has it."""
    crowd = Crowd(server)
    place = crowd.places["1a"]
    request = Ordinary(Index()).release("a", place.split()[0], entry=place.encode())
    assert server.execute_command(*parts_of(request)) == 0
    assert crowd.woken() == ["1b"]
    assert server.hkeys("a") == [crowd.places["1b"].split()[0].encode()]


def test_a_prefix_keeps_locks_apart(own_redis):
    """Every name begins with `KEY_PREFIX`."""
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
    keys, channel, _ = keys_of(key, Index("{shop}:"))
    assert keys == pack(b"4", lock, token, queue, b"holdfast_held:{shop}:")
    assert channel == pack(derived(b"redisson_lock__channel", lock))
