"""The kinds on Redis: queues, channels and keys as they are on the server, and replies that are lost."""

import time
from functools import partial

import pytest

from locking import (
    BackendError,
    BackendUnavailable,
    LockNotAcquired,
    get_lock,
    get_read_lock,
    get_semaphore,
    get_write_lock,
)
from locking.backends.base import Busy, Grant
from locking.backends.redis import redisson_kinds, scripts
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.core.lease import State
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until
from locking.testing.contract.processes import child
from locking.utils.ownership import new_owner
from tests.backends import any_engine

PATIENCE = 30.0
FAR = 60.0
QUEUE, TIMEOUTS = "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"
JAVA = "11111111-2222-4333-8444-555555555555:7"


@pytest.fixture
def server(own_redis, locks_on):
    """An empty server with the locks on it."""
    locks_on(own_redis.url)
    return own_redis.client


def variant(kind, **options):
    """The backend of a kind."""
    return any_engine().variant(kind, **options)


# Redisson's layout


def test_readers_and_writer_lie_as_redisson_lays_them(server):
    """A field a holder, `mode`, and a key for each reader's time."""
    with get_read_lock("a", ttl=FAR) as lease:
        owner = lease.leases[0].owner
        assert server.hgetall("a") == {b"mode": b"read", owner.encode(): b"1"}
        assert 0 < server.pttl(f"{{a}}:{owner}:rwlock_timeout:1") <= FAR * 1000
    assert server.keys("*") == [b"holdfast_held:"]
    with get_write_lock("a", ttl=FAR) as lease:
        assert server.hgetall("a") == {b"mode": b"write", f"{lease.leases[0].owner}:write".encode(): b"1"}
    assert not server.exists("a")


def test_a_java_reader_keeps_a_writer_out_as_long_as_its_longest_hold(server):
    """Redisson counts the holds of a thread and gives each a key; the last to end counts."""
    server.hset("a", mapping={"mode": "read", JAVA: 2})
    server.set(f"{{a}}:{JAVA}:rwlock_timeout:1", 1, px=1)
    server.set(f"{{a}}:{JAVA}:rwlock_timeout:2", 1, px=50_000)
    server.pexpire("a", 50_000)
    with get_read_lock("a", ttl=FAR):
        assert variant("read").holder("a").count == 2
    assert 40_000 < server.pttl("a") <= 50_000
    assert isinstance(variant("write").try_acquire("a", new_owner(), 1.0), Busy)
    assert variant("write").holder("a").owner == JAVA


def test_a_java_writer_that_reads_as_well_keeps_readers_out(server):
    """Both its fields are there; only its own client may end them."""
    server.hset("a", mapping={"mode": "write", f"{JAVA}:write": 1, JAVA: 1})
    server.pexpire("a", 50_000)
    refused = variant("read").try_acquire("a", new_owner(), 1.0)
    assert isinstance(refused, Busy)
    assert refused.retry_after is not None
    assert 40 < refused.retry_after <= 50


@pytest.mark.parametrize("kind", ["read", "write", "fair"])
def test_an_ordinary_lock_of_the_same_name_excludes(server, kind):
    """Kinds should not be mixed on a name; where they are, they still exclude each other."""
    with get_lock("a", ttl=FAR):
        assert isinstance(variant(kind).try_acquire("a", new_owner(), 1.0), Busy)
    variant(kind).try_acquire("a", new_owner(), FAR)
    assert isinstance(locks["default"].try_acquire("a", new_owner(), 1.0), Busy)


def test_permits_lie_as_redisson_lays_them(server):
    """A count of what is left, and a time for each permit that is out."""
    with get_semaphore("a", 3, ttl=FAR) as lease:
        assert server.get("a") == b"2"
        assert server.zrange("{a}:timeout", 0, -1) == [lease.leases[0].owner.encode()]
    assert server.get("a") == b"3"
    assert server.zcard("{a}:timeout") == 0


@pytest.mark.parametrize("no_end", [922337203685477, 92233720368547758])
def test_a_java_permit_is_waited_for_and_shown_as_java_shows_it(server, no_end):
    """Redisson stores sixteen raw bytes, which need not be text; a permit without a lease has no end."""
    server.set("a", 0)
    server.zadd("{a}:timeout", {bytes.fromhex("ff00" * 8): no_end})
    with pytest.raises(LockNotAcquired) as caught:
        get_semaphore("a", 1, wait=0).acquire()
    assert caught.value.holder == "ff00" * 8
    assert caught.value.retry_after is None
    holder = variant("semaphore", permits=1).holder("a")
    assert (holder.owner, holder.remaining) == ("ff00" * 8, None)


def test_permits_stay_out_when_their_count_is_lost(server):
    """A count that was evicted or deleted is made again, less the permits that are out."""
    get_semaphore("a", 2, ttl=FAR).acquire().leave_to_expire()
    server.delete("a")
    assert get_semaphore("a", 2, ttl=FAR).try_acquire()
    assert elsewhere(get_semaphore("a", 2).try_acquire) is None


def test_a_release_recreates_a_lost_count(server):
    """A count that is gone when a permit comes back is what is left of all, not one."""
    backend, owners = variant("semaphore", permits=3), [new_owner(), new_owner()]
    for owner in owners:
        backend.try_acquire("a", owner, FAR)
    server.delete("a")
    for owner, left in zip(owners, [b"2", b"3"], strict=True):
        assert backend.release("a", owner)
        assert server.get("a") == left


def test_a_release_that_knows_nothing_of_the_permits_makes_no_count(server):
    """With the number of all permits lost as well, the next acquisition says how many there are."""
    lease = get_semaphore("a", 3, ttl=FAR).acquire()
    server.delete("a", "holdfast_semaphore:{a}")
    lease.release()
    assert not server.exists("a")
    with get_semaphore("a", 3, ttl=FAR):
        assert server.get("a") == b"2"


def test_by_counting_up_a_lost_count_the_semaphore_would_shrink(server, monkeypatch):
    """The mutant of the two tests above: the first permit that comes back makes the count one."""
    read, rule = scripts._read, b"if redis.call('EXISTS', KEYS[1]) == 1 then"
    assert rule in read("release_permit")
    monkeypatch.setattr(scripts, "_read", lambda name: read(name).replace(rule, b"if true then"))
    monkeypatch.setattr(
        redisson_kinds.Semaphore, "RELEASE", scripts.Script(*redisson_kinds.Semaphore.RELEASE.names)
    )
    lease = get_semaphore("a", 3, ttl=FAR).acquire()
    server.delete("a")
    lease.release()
    assert server.get("a") == b"1"


def test_a_count_down_latch_is_never_a_semaphore(server):
    """A number that nothing shows to count permits is refused, whatever it is, and the way out works."""
    server.set("a", 3)  # Redisson's RCountDownLatch, RSemaphore and RAtomicLong look the same
    with pytest.raises(BackendError, match=r"holds a string.*set 'holdfast_semaphore:\{a\}' to the number"):
        get_semaphore("a", 3).try_acquire()
    assert server.get("a") == b"3"
    server.set("holdfast_semaphore:{a}", 3)
    with get_semaphore("a", 3):
        assert server.get("a") == b"2"


def test_without_the_proof_a_latch_would_be_counted_down(server, monkeypatch):
    """The mutant of the test above: a permit is granted, and the latch opens early."""
    read, rule = scripts._read, b"redis.call('EXISTS', KEYS[5], KEYS[3], KEYS[2]) == 0"
    assert rule in read("permits")
    monkeypatch.setattr(scripts, "_read", lambda name: read(name).replace(rule, b"false"))
    monkeypatch.setattr(
        redisson_kinds.Semaphore, "ACQUIRE", scripts.Script(*redisson_kinds.Semaphore.ACQUIRE.names)
    )
    server.set("a", 3)
    assert get_semaphore("a", 3).try_acquire()
    assert server.get("a") == b"2"


def test_permits_that_java_took_show_that_it_is_a_semaphore(server):
    """A Java permit that is out is proof enough, and the number of all permits is noted for good."""
    server.set("a", 1)
    server.zadd("{a}:timeout", {bytes(16): (time.time() + FAR) * 1000})
    with get_semaphore("a", 2, ttl=FAR):
        server.zrem("{a}:timeout", bytes(16))
    server.set("a", 2)
    assert server.get("holdfast_semaphore:{a}") == b"2"
    with get_semaphore("a", 2, ttl=FAR):
        assert server.get("a") == b"1"


def test_very_many_permits_may_end_together(server):
    """Ten thousand dead holders don't stop the next one."""
    server.set("a", 0)
    server.zadd("{a}:timeout", {f"dead:{i}": 1 for i in range(10_000)})
    assert get_semaphore("a", 10_000, ttl=FAR).try_acquire()
    assert server.get("a") == b"9999"


# replies lost


@pytest.mark.parametrize(
    ("get", "acquire", "extend", "release"),
    [
        (get_read_lock, redisson_kinds.Read.ACQUIRE, redisson_kinds.Read.EXTEND, redisson_kinds.Read.RELEASE),
        (
            get_write_lock,
            redisson_kinds.Write.ACQUIRE,
            redisson_kinds.Write.EXTEND,
            redisson_kinds.Write.RELEASE,
        ),
        (
            partial(get_semaphore, permits=3),
            redisson_kinds.Semaphore.ACQUIRE,
            redisson_kinds.Semaphore.EXTEND,
            redisson_kinds.Semaphore.RELEASE,
        ),
        (get_fair_lock, redisson_kinds.Fair.ACQUIRE, redisson_kinds.Fair.EXTEND, redisson_kinds.Fair.RELEASE),
    ],
    ids=["read", "write", "semaphore", "fair"],
)
def test_every_script_may_be_sent_twice(own_redis, proxy, locks_on, get, acquire, extend, release):
    """Each request whose reply is lost is repeated, counts once, and leaves the lock free at the end."""
    locks_on(f"redis://127.0.0.1:{proxy.port}/0")
    with get("a", ttl=FAR) as lease:  # so that the server knows the scripts
        lease.extend(FAR)
    for script in (acquire, extend, release):
        proxy.lose_reply_to(script.by_digest)
    with get("a", ttl=5) as lease:
        assert lease.backend.holder("a").count == 1
        lease.extend(FAR)
        lease.extend(5)
    assert lease.state is State.RELEASED
    assert proxy._lose == []
    assert not get("a").locked()
    assert own_redis.client.get("a") in (None, b"3")


# the fair lock's queue


def test_threads_are_served_in_the_order_they_came(server):
    """First in, first out, through the queue that Java shares."""
    turns = []

    def enqueue(number):
        with get_fair_lock("a", ttl=FAR, wait=FAR):
            turns.append(number)

    with get_fair_lock("a", ttl=FAR):
        crowd = []
        for number in range(5):
            crowd.append(begin(partial(enqueue, number)))
            until(partial(queue_is, server, number + 1), PATIENCE)
    for each in crowd:
        each.result(timeout=PATIENCE)
    assert turns == [0, 1, 2, 3, 4]
    assert not server.exists(QUEUE)
    assert not server.exists(TIMEOUTS)


def queue_is(server, length):
    """Whether so many wait in the queue."""
    return server.llen(QUEUE) == length


def test_each_place_in_the_queue_lasts_one_patience_longer(server, monkeypatch):
    """The time-outs add up, so that the last one's covers the silence of all before it."""
    monkeypatch.setattr(redisson_kinds, "FAIR_PATIENCE", 100_000)
    backend = variant("fair")
    backend.try_acquire("a", new_owner(), FAR)
    began = time.time() * 1000
    places = stand_in_line(backend, 3)
    scores = [server.zscore(TIMEOUTS, owner) for owner in places]
    for number, score in enumerate(scores):
        assert score == pytest.approx(began + FAR * 1000 + (number + 1) * 100_000, abs=10_000)


def test_who_gives_up_leaves_the_queue_and_those_behind_move_up(server, monkeypatch):
    """A wait that ran out takes its place along, and one patience off all behind it, as Redisson does."""
    monkeypatch.setattr(redisson_kinds, "FAIR_PATIENCE", 100_000)
    backend = variant("fair")
    backend.try_acquire("a", new_owner(), FAR)
    first, second, third = places = stand_in_line(backend, 3)
    before = {owner: server.zscore(TIMEOUTS, owner) for owner in places}
    places[second].leave()
    assert server.lrange(QUEUE, 0, -1) == [first.encode(), third.encode()]
    assert server.zscore(TIMEOUTS, second) is None
    assert server.zscore(TIMEOUTS, first) == before[first]
    assert server.zscore(TIMEOUTS, third) == before[third] - 100_000


def stand_in_line(backend, number):
    """Owners and their places in the queue of `a`, in order."""
    places = {owner: backend.waiter("a", owner, FAR) for owner in (new_owner() for _ in range(number))}
    for place in places.values():
        assert isinstance(place.try_acquire(queue=True), Busy)
    return places


def test_a_wait_that_ran_out_leaves_no_place(server):
    """LockNotAcquired, and the queue is as it was."""
    with get_fair_lock("a", ttl=FAR):
        with pytest.raises(LockNotAcquired):
            elsewhere(lambda: get_fair_lock("a", wait=0.05).acquire())
        assert server.llen(QUEUE) == server.zcard(TIMEOUTS) == 0


def test_a_dead_waiter_is_skipped_after_its_time_out(server, monkeypatch):
    """A killed process stands in the way until its time-out, and the living are served after it."""
    monkeypatch.setattr(redisson_kinds, "FAIR_PATIENCE", 300)

    def wait_for_ever(pipe):
        begin(get_fair_lock("a", ttl=FAR, wait=FAR).acquire)
        until(lambda: server.llen(QUEUE) == 1, PATIENCE)
        pipe.send("waits")
        pipe.recv()

    holder = get_fair_lock("a", ttl=FAR).acquire()
    with child(wait_for_ever) as doomed:
        doomed.report()
        doomed.kill()
    (dead,) = server.lrange(QUEUE, 0, -1)
    server.zadd(TIMEOUTS, {dead: (time.time() + FAR) * 1000})
    holder.release()
    assert get_fair_lock("a").try_acquire() is None
    ends = time.time() + 0.1
    server.zadd(TIMEOUTS, {dead: ends * 1000})
    get_fair_lock("a", ttl=FAR, wait=PATIENCE).acquire().release()
    assert time.time() >= ends - 0.01


def test_a_release_wakes_the_first_who_is_alive(server, monkeypatch):
    """A dead head whose time-out has passed doesn't swallow the wake-up."""
    with get_fair_lock("a", ttl=FAR):
        monkeypatch.setattr(redisson_kinds, "FAIR_PATIENCE", 300_000)
        with counted_waiters(variant("fair")) as waiters:
            alive = begin(get_fair_lock("a", ttl=FAR, wait=FAR).acquire)
            until(waiters.number, PATIENCE)
        server.lpush(QUEUE, JAVA)
        server.zadd(TIMEOUTS, {JAVA: 1})
    alive.result(timeout=PATIENCE).release()


def test_a_waiter_before_us_is_not_overtaken(server):
    """While the lock is free but its first waiter hasn't taken it yet, no other caller gets it."""
    backend = variant("fair")
    holder, newcomer = new_owner(), new_owner()
    backend.try_acquire("a", holder, FAR)
    ((first, place),) = stand_in_line(backend, 1).items()
    assert backend.release("a", holder)
    refused = backend.try_acquire("a", newcomer, FAR)
    assert isinstance(refused, Busy)
    assert refused.holder == first
    assert isinstance(place.try_acquire(queue=True), Grant)


# announcements


@pytest.mark.parametrize(
    ("end", "channel", "payloads"),
    [
        (get_read_lock, "redisson_rwlock:{a}", [b"0"]),
        (get_write_lock, "redisson_rwlock:{a}", [b"1", b"0"]),
        (partial(get_semaphore, permits=2), "redisson_sc:{a}", [b"2"]),
    ],
    ids=["read", "write", "semaphore"],
)
def test_an_end_is_announced_as_java_listens_for_it(server, end, channel, payloads):
    """On Redisson's channel, with the payload that wakes one or all; a writer's end has both."""
    with server.pubsub() as near_listener:
        near_listener.subscribe(channel)
        assert near_listener.get_message(timeout=PATIENCE)["type"] == "subscribe"
        with end("a", ttl=FAR):
            pass
        assert [near_listener.get_message(timeout=PATIENCE)["data"] for _ in payloads] == payloads


def test_killed_connections_cost_a_waiter_of_a_kind_nothing(server):
    """A waiter whose sockets the server killed goes on over new ones."""
    with counted_waiters(variant("write")) as waiters:
        reader = elsewhere(get_read_lock("a", ttl=FAR).acquire)
        writer = begin(get_write_lock("a", ttl=FAR, wait=FAR).acquire)
        until(waiters.number, PATIENCE)
        server.client_kill_filter(_type="pubsub")
        until(lambda: server.pubsub_numsub("redisson_rwlock:{a}")[0][1] == 1, PATIENCE)
    reader.release()
    writer.result(timeout=PATIENCE).release()


def test_a_pending_release_reader_is_released(own_redis, proxy, locks_on):
    """An acquisition of a kind without any reply isn't held, and what it left is taken back."""
    locks_on(f"redis://127.0.0.1:{proxy.port}/0")
    with get_read_lock("a", ttl=FAR):
        pass
    proxy.lose_reply_to(redisson_kinds.Read.ACQUIRE.by_digest, times=2)
    with pytest.raises(BackendUnavailable):
        get_read_lock("a", ttl=FAR).acquire()
    until(lambda: not own_redis.client.exists("a"), PATIENCE)


LAST_MILLISECOND = """
local server = redis
local redis = {call = function(verb, key, ...)
    if verb == 'PTTL' then return 0 end
    if verb == 'DEL' and key == 'a' then error('the lock was freed') end
    return server.call(verb, key, ...)
end}
"""


def test_a_reader_in_its_last_millisecond_still_reads(server):
    """Redis says 0 ms for it, and yet another reader's release doesn't free the lock, nor is it uncounted."""
    backend, dying, other = variant("read"), new_owner(), new_owner()
    for owner in (dying, other):
        backend.try_acquire("a", owner, FAR)
    assert at_its_end(server, "holder_fields", ["a"], "{a}")[0] == 2
    keys = ["a", "redisson_lock_token:{a}", f"{{a}}:{other}:rwlock_timeout:1", "holdfast_held:"]
    assert at_its_end(server, "release_read", keys, other, "redisson_rwlock:{a}", "{a}") == 1


def at_its_end(server, script, keys, *arguments):
    """Run a script that finds every hold in its last millisecond."""
    parts = [scripts._read(part).decode() for part in ("announce", "readers", "is_external", script)]
    return server.eval("\n".join([LAST_MILLISECOND, *parts]), len(keys), *keys, *arguments)
