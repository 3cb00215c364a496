import os
import subprocess
import sys
import time
from typing import Any

import pytest

from locking import BackendUnavailable, get_lock, get_read_lock, get_semaphore, get_write_lock
from locking.backends.base import Grant
from locking.backends.redis.scripts import Index, read_entry, tags
from locking.contrib.redisson import get_fair_lock
from locking.core.handler import locks
from locking.inspection.admin_actions import extend_held, force_release
from locking.inspection.columns import GONE
from locking.inspection.held import held_locks, holds_of
from locking.utils.ownership import new_owner
from tests.backends import any_engine
from tests.locking.backends.redis.topologies.servers import Cluster, servers, until
from tests.locking.support.helpers import elsewhere

JAVA = "11111111-1111-4111-8111-111111111111:57"
INDEX = "holdfast_held:"


@pytest.fixture(autouse=True)
def one_alias(settings):
    """Leave the alias on the database to the tests that may ask it."""
    settings.LOCKING = {"default": settings.LOCKING["default"]}


@pytest.fixture
def client(redis_database):
    """The server's own view."""
    return redis_database


def members(client):
    """Return what the index has beside the last token, the oldest first."""
    found = [member.decode() for member in client.zrange(INDEX, 0, -1)]
    assert found == [] or found.pop() == "~"
    return found


def rows():
    """Return what is listed."""
    return held_locks().rows


def names():
    """Return what is listed."""
    return [row.name for row in rows()]


KINDS: dict[str, Any] = {
    "lock": get_lock,
    "read": get_read_lock,
    "write": get_write_lock,
    "fair": get_fair_lock,
    "semaphore": lambda name: get_semaphore(name, 2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_release_takes_the_entry_out(client, kind):
    """What was acquired and released leaves nothing in the index."""
    with KINDS[kind]("a"):
        assert len(members(client)) == 1
    assert members(client) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_hold_that_ended_unseen_is_not_listed_and_goes(client, kind):
    """Its keys are gone, as after a crash and its ttl: the reader that meets the entry takes it out."""
    lease = KINDS[kind]("a").acquire()
    client.delete(*[key for key in client.keys("*a*") if key.decode() != INDEX])
    assert len(members(client)) == 1
    assert names() == []
    assert members(client) == []
    lease.leave_to_expire()


def test_a_name_taken_again_has_one_entry(client):
    """The entry of a holder that vanished is written over by the next one."""
    lost = get_lock("a").acquire()
    client.delete("a")
    newer = elsewhere(lambda: get_lock("a").acquire())
    assert [row.owner for row in rows()] == [newer.owner]
    assert len(members(client)) == 1
    newer.release()
    lost.leave_to_expire()


def test_a_handoff_is_listed_under_its_new_owner(client):
    """The lock passes to a waiter inside the release: the list shows the waiter, with its own token."""
    backend, (first, second) = locks["default"], (new_owner(), new_owner())
    backend.try_acquire("a", first, 30.0)
    place = backend.waiter("a", second, 30.0)
    place.try_acquire(queue=True)
    assert [(row.owner, row.waiters) for row in rows()] == [(first, 1)]
    backend.release("a", first)
    (row,) = rows()
    grant = place.wait(30.0)
    assert isinstance(grant, Grant)
    assert (row.owner, row.token, row.waiters) == (second, grant.token, 0)
    assert len(members(client)) == 1


def test_a_page_is_full_although_stale_entries_stood_in_it(client):
    """Stale entries that are met are taken out, and the page is read again."""
    leases = [get_lock(f"n:{number:02}").acquire() for number in range(40)]
    client.delete(*[f"n:{number:02}" for number in range(0, 40, 2)])
    page = held_locks(limit=10)
    assert [row.name for row in page.rows] == [f"n:{number:02}" for number in range(1, 21, 2)]
    for lease in leases:
        lease.leave_to_expire()


def test_a_sweep_clears_what_no_client_meets(client):
    """After thousands of crashes at most about a quarter of the index stays stale, without any reader."""
    backend = any_engine()
    backend.try_acquire("alive", new_owner(), 30.0)
    for number in range(2000):
        client.zadd(INDEX, {f"Lgone:{number}": 1_700_000_000_000_000 + number})
    backend.tidy()
    assert client.zcard(INDEX) < 100
    assert client.zscore(INDEX, "Lalive")
    assert 0 < client.ttl(INDEX) <= 8 * 24 * 3600


def test_one_sweep_a_minute_is_enough_for_all(client):
    """The second process that comes to sweep finds it done."""
    backend = any_engine()
    backend.tidy()
    client.zadd(INDEX, {"Lgone": 1})
    backend.tidy()
    assert client.zscore(INDEX, "Lgone")


def test_an_index_that_was_lost_fills_again(client):
    """FLUSHALL of the index loses rows of the list, never a lock; new ones are listed."""
    with get_lock("old") as lease:
        client.delete(INDEX)
        lease.confirm()
        with get_lock("new"):
            assert names() == ["new"]


def test_prefixes_have_indexes_of_their_own(client, settings):
    """Two applications on one server don't see each other's locks."""
    with get_lock("mine"):
        settings.LOCKING = {"default": {**settings.LOCKING["default"], "KEY_PREFIX": "other:"}}
        assert names() == []
        with get_lock("theirs"):
            assert names() == ["theirs"]
            assert client.exists("holdfast_held:other:")


def test_the_old_ones_are_counted_without_looking_at_all(client):
    """A page of the holds of a minute and more knows how many there are, and has no younger ones."""
    leases = [get_lock(f"n:{number:02}").acquire() for number in range(40)]
    for number in range(25):  # as if they had been taken an hour ago
        client.zadd(INDEX, {f"Ln:{number:02}": leases[number].fencing_token - 3_600_000_000})
    first, last = held_locks(older_than=60, limit=10), held_locks(older_than=60, limit=10, offset=20)
    assert [row.name for row in first.rows] == [f"n:{number:02}" for number in range(10)]
    assert [row.name for row in last.rows] == [f"n:{number:02}" for number in range(20, 25)]
    assert (first.total, last.total) == (25, 25)
    assert held_locks(older_than=7200, limit=10).total == 0
    for lease in leases:
        lease.release()


def test_a_prefix_is_found_among_many(client):
    """A prefix is looked for by the server, over more entries than it takes at a time."""
    backend = any_engine()
    for number in range(2100):
        client.zadd(INDEX, {f"Lother:{number}": 1000 + number})
    with get_lock("order:1"), get_read_lock("order:2"), get_semaphore("order:3", 2):
        assert [hold.key for hold in backend.held(prefix="order:")] == ["order:1", "order:2", "order:3"]
        assert backend.count_held(prefix="order:") == 3
        assert backend.count_held(prefix="order:2") == 1


def java_holds(client, key, **fields):
    """Lock as Redisson does: it doesn't run our scripts."""
    client.hset(key, mapping=fields or {JAVA: 1})
    client.pexpire(key, 30_000)


@pytest.mark.parametrize(
    ("get", "fields", "kind"),
    [
        (get_lock, {JAVA: "1"}, "lock"),
        (get_fair_lock, {JAVA: "1"}, "lock"),
        (get_write_lock, {"mode": "write", f"{JAVA}:write": "1"}, "write"),
        (get_write_lock, {"mode": "read", JAVA: "1"}, "read"),
        (get_read_lock, {"mode": "write", f"{JAVA}:write": "1"}, "write"),
    ],
)
def test_a_java_holder_is_listed_once_one_of_ours_met_it(client, get, fields, kind):
    """A refused acquisition puts the foreign holder on the list, in front of however many other keys."""
    java_holds(client, "a", **fields)
    client.set(f"{{a}}:{JAVA}:rwlock_timeout:1", 1, px=30_000)
    assert get("a").try_acquire() is None
    assert len(members(client)) == 1
    (row,) = rows()
    assert (row.name, row.owner, row.token, row.kind) == ("a", JAVA, 0, kind)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({JAVA: "1"}, "lock"),
        ({"mode": "read", JAVA: "1"}, "read"),
        ({"mode": "write", f"{JAVA}:write": "1"}, "write"),
    ],
)
def test_java_holders_are_found_by_looking_around(client, fields, kind):
    """Listing looks at some keys of the server each time, until it has come round."""
    client.hset("another:hash", mapping={"name": "x", "mode": "read"})
    java_holds(client, "a", **fields)
    if kind == "read":
        client.set(f"{{a}}:{JAVA}:rwlock_timeout:1", 1, px=30_000)
    until(lambda: names() == ["a"], "the Java holder on the list")
    assert rows()[0].kind == kind


FOR_EVER = 922337203685477
"""When a permit ends that Redisson's client took without a lease: epoch ms."""

JAVA_WAITER = "22222222-2222-4222-8222-222222222222:58"


def java_waits_fairly(client, key):
    """Stand in the queue of Redisson's fair lock and return what hears the wake-up."""
    client.rpush(f"redisson_lock_queue:{{{key}}}", JAVA_WAITER)
    client.zadd(f"redisson_lock_timeout:{{{key}}}", {JAVA_WAITER: time.time() * 1000 + 300_000})
    near_listener = client.pubsub(ignore_subscribe_messages=True)
    near_listener.subscribe(f"redisson_lock__channel:{{{key}}}:{JAVA_WAITER}")
    near_listener.parse_response(block=True, timeout=10)
    return near_listener


def test_a_java_fair_lock_is_listed_as_one_once_someone_waits(client):
    """Without waiters it is a lock like any other on the server; with one it differs from it."""
    java_holds(client, "a")
    until(lambda: [(row.name, row.kind) for row in rows()] == [("a", "lock")], "the Java holder on the list")
    since = rows()[0].since
    java_waits_fairly(client, "a").close()
    for _ in range(2):
        (row,) = rows()
        assert (row.owner, row.kind, row.waiters, row.token) == (JAVA, "fair", 1, 0)
        assert row.since >= since
        assert members(client) == ["Fa"]
    assert any_engine().count_held() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("waits_when_listed", [True, False])
def test_breaking_a_java_fair_lock_wakes_its_line(client, waits_when_listed):
    """The first in Redisson's queue is woken, whether or not it was there when the list was shown."""
    java_holds(client, "a")
    if waits_when_listed:
        near_listener = java_waits_fairly(client, "a")
    until(lambda: names() == ["a"], "the Java holder on the list")
    (hold,) = holds_of("a")
    assert hold.kind == ("fair" if waits_when_listed else "lock")
    if not waits_when_listed:
        near_listener = java_waits_fairly(client, "a")
    assert force_release(hold, reason="the JVM is gone").done
    assert near_listener.get_message(timeout=30)["data"] == b"0"
    near_listener.close()


def java_permit(client, name, ends, permit=bytes(range(16)), until_ms=None):
    """Take a permit as Redisson does: 16 raw bytes, which may be anything, even a blank."""
    client.set(name, 1)
    client.zadd(ends, {permit: until_ms or time.time() * 1000 + 30_000})
    return permit.hex()


@pytest.mark.parametrize(
    ("name", "ends"), [("a", "{a}:timeout"), ("{a}", "{a}:timeout"), ("shop:{a}:b", "shop:{a}:b:timeout")]
)
def test_java_permits_are_found_by_looking_around(client, name, ends):
    """Redisson's semaphore is listed with each of its permits, beside ours; other sorted sets are not."""
    first = java_permit(client, name, ends)
    second = java_permit(client, name, ends, b"    0123456789ab", FOR_EVER)
    client.zadd("{other}:timeout", {"x": time.time() * 1000 + 30_000})
    with get_semaphore(name, 3) as ours:
        until(lambda: len(rows()) == 3, "the Java permits on the list")
        found = {row.owner: row for row in rows()}
    assert set(found) == {ours.owner, first, second}
    assert {row.kind for row in found.values()} == {"semaphore"}
    assert {row.name for row in found.values()} == {name}
    assert found[first].token == 0
    assert 0 < (found[first].remaining or 0) <= 30
    assert found[second].remaining is None


@pytest.mark.django_db(transaction=True)
def test_a_java_permit_can_be_extended_and_broken(client):
    """An operator acts on Redisson's permit by the name that the list shows."""
    permit = java_permit(client, "a", "{a}:timeout")
    until(lambda: names() == ["a"], "the Java permit on the list")
    (hold,) = holds_of("a")
    assert hold.owner == permit
    assert extend_held(hold, 600).done
    (hold,) = holds_of("a")
    assert (hold.remaining or 0) > 500
    assert force_release(hold, reason="the JVM is gone").done
    assert names() == []
    assert (client.zcard("{a}:timeout"), client.get("a")) == (0, b"2")


def test_a_java_permit_of_another_prefix_is_not_ours(client, settings):
    """Only semaphores of this alias' names are looked at."""
    settings.LOCKING = {"default": {**settings.LOCKING["default"], "KEY_PREFIX": "shop:"}}
    java_permit(client, "other:a", "{other:a}:timeout")
    java_permit(client, "shop:a", "{shop:a}:timeout")
    until(lambda: names() == ["a"], "the Java permit on the list")


def test_a_java_holder_after_one_of_ours_has_its_own_beginning(client):
    """The entry of our vanished hold doesn't date the Java hold that followed it."""
    lease = get_lock("a").acquire()
    client.delete("a")
    java_holds(client, "a")
    (row,) = rows()
    assert row.owner == JAVA
    assert row.since > lease.fencing_token / 1_000_000
    lease.leave_to_expire()


@pytest.mark.django_db(transaction=True)
def test_a_java_holder_can_be_broken(client):
    """Force release takes the lock from a Java client, and says that there is no token to fence."""
    java_holds(client, "a")
    get_lock("a").try_acquire()
    (hold,) = holds_of("a")
    result = force_release(hold, reason="the JVM is gone")
    assert result.done
    assert "has no token" in result.event.details
    assert not client.exists("a")


CRASH = """
import django, signal
django.setup()
from locking import get_lock
from locking.inspection import heartbeat
lease = get_lock("crash", ttl=60).acquire()
heartbeat.HELD_LONG = 0.0
heartbeat.reporter.beat()
print("published", flush=True)
signal.pause()
"""


def test_a_killed_holder_is_known_and_shown_as_gone(monkeypatch):
    """While it lives its host, process and place in the code are listed; killed, its row says so."""
    # Without a runtime directory no sibling releases the lock for it.
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "tests.settings", "LOCKING_RUNTIME_DIR": ""}
    command = [sys.executable, "-c", CRASH]
    process: Any = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "published\n"
        (row,) = rows()
        assert row.pid == process.pid
        assert row.holder.endswith(f":{process.pid}:MainThread")
        assert row.ttl == 60
        assert row.state == "held"
    finally:
        process.kill()
        process.communicate()
    monkeypatch.setattr("locking.inspection.columns.SILENT", 0.2)
    until(lambda: rows()[0].state == GONE, "its silence to be noticed")


def test_tags_cover_every_slot_once():
    """Each slot of a cluster has a tag that falls into it."""
    from redis.crc import key_slot

    assert [key_slot(tag) for tag in tags()] == list(range(16384))
    index = Index("shop:", clustered=True)
    assert key_slot(index.of(b"order:1")) == key_slot(b"order:1")
    assert key_slot(index.of(b"{cart}:order:1")) == key_slot(b"cart")


@pytest.mark.parametrize("name", ["a b", "订单:1", "{cart}:7", "Ra", "x" * 1024, "a\nb"])
def test_any_name_can_be_listed(name):
    """Blanks, Chinese, braces, letters that mean something in the index: the name comes back whole."""
    for make in KINDS.values():
        with make(name) as lease:
            (row,) = rows()
            assert (row.name, row.owner) == (name, lease.owner)


def test_an_entry_reads_back():
    """Members of shared kinds name the owner first."""
    assert read_entry(b"Ru:1 a b", 5.0)[:4] == ("read", b"a b", b"u:1", 5)
    assert read_entry(b"La b", 5.0)[:4] == ("lock", b"a b", b"", 5)


@pytest.mark.whole
def test_a_cluster_lists_over_all_its_nodes(tmp_path, settings):
    """Locks in slots of every node are one list, oldest first, in pages; a sweep works there as well."""
    with servers(tmp_path) as start:
        cluster = Cluster(start)
        settings.LOCKING = {"default": {"LOCATION": cluster.location, "OPTIONS": {"wait_replicas": 0}}}
        wanted = [cluster.name_in(node, f"n{number}") for number, node in enumerate(cluster.masters * 2)]
        leases = [get_lock(name).acquire() for name in wanted]
        backend = any_engine()
        assert names() == wanted
        pages = [backend.held(offset=offset, limit=2) for offset in range(0, len(wanted) + 1, 2)]
        assert [hold.key for page in pages for hold in page] == wanted
        assert backend.count_held() == len(wanted)
        assert [hold.key for hold in backend.held(prefix=wanted[0])] == wanted[:1]
        cluster.masters[0].ask("DEL", wanted[0])
        backend.tidy()
        assert names() == wanted[1:]
        for lease in leases[1:]:
            lease.release()
        assert names() == []


def test_a_server_that_is_away_is_a_problem_not_an_error(settings):
    """The page names the backend and what it said."""
    settings.LOCKING = {"default": {"LOCATION": "redis://127.0.0.1:1/0"}}
    page = held_locks()
    assert page.rows == []
    assert [(problem.backend, problem.unsupported) for problem in page.problems] == [("default", False)]
    with pytest.raises(BackendUnavailable):
        holds_of("a")
