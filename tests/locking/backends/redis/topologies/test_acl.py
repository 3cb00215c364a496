"""The rights that docs/library/how-to/acl.md lists are enough, and none of them is idle."""

import asyncio
import re

import pytest

from locking import BackendError, LockNotAcquired, get_lock
from locking.contrib.redisson import get_fair_lock
from locking.core.kinds import get_read_lock, get_semaphore, get_write_lock
from locking.inspection.held import held_locks
from tests import ROOT
from tests.backends import any_engine
from tests.locking.backends.redis.topologies.servers import Cluster, servers, until
from tests.locking.backends.redis.topologies.waiters import acquired_in_thread, in_thread, until_waiting

PAGE = ROOT / "docs" / "library" / "how-to" / "acl.md"


def rights(section: str) -> list[str]:
    """Return the rules of ACL SETUSER that the page lists under `section`."""
    block = re.search(rf"<!-- {section} -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block, f"{PAGE} has no block {section!r}"
    return block[1].split()


def admit(server, rules):
    """Make the user `locks` with these rights and no others."""
    server.ask("ACL", "SETUSER", "locks", "reset", "on", ">s3cret", *rules)


@pytest.fixture
def server(start, settings):
    """A server on which LOCKING is a user with the listed rights."""
    made = start()
    admit(made, rights("single"))
    url = made.url.replace("redis://", "redis://locks:s3cret@")
    settings.LOCKING = {"default": {"LOCATION": url, "KEY_PREFIX": "lock:", "TTL": 20, "WAIT": 5}}
    return made


def use_everything(server, prefix="lock:"):
    """Lock, wait, be handed over to, be woken by a Java client, extend, renew, look, and give up."""
    held = get_lock("a", "b", fenced=True).acquire()
    waiter = acquired_in_thread("a")
    until_waiting(server, f"{prefix}a")
    held.extend(15)
    assert get_lock("a").locked()
    held.release()
    waiter.result(25).release()
    with get_lock("kept", min_hold=0.05):
        pass
    use_asyncio()
    wait_behind_java(server, f"{prefix}java")
    server.ask("SET", f"{prefix}text", "of another use")
    with pytest.raises(BackendError, match="holds a string"):
        get_lock("text").try_acquire()


def use_asyncio():
    """Take and wait for a lock as a task does."""

    async def wait_for_it() -> None:
        async with get_lock("task"):
            other = asyncio.create_task(get_lock("task").atry_acquire())
            assert await other is None

    asyncio.run(wait_for_it())


def wait_behind_java(server, key):
    """Wait for a lock that a Redisson client holds, and hear its release."""
    channel = f"redisson_lock__channel:{{{key}}}"
    server.ask("HSET", key, "11111111-1111-4111-8111-111111111111:1", 1)
    server.ask("PEXPIRE", key, 30_000)
    waiter = acquired_in_thread("java")
    until(lambda: server.ask("PUBSUB", "NUMSUB", channel)[1] == 1, "a listener")
    server.ask("DEL", key)
    server.ask("PUBLISH", channel, "0")
    waiter.result(25).release()


def test_the_listed_rights_are_enough(server):
    """A user with these rights locks, waits, hands over, extends and is woken by Java."""
    use_everything(server)


def test_the_listed_rights_are_enough_for_the_other_kinds(server):
    """With the rights for them added, the user has read-write locks, semaphores and fair locks, too."""
    admit(server, rights("single") + rights("kinds"))

    kinds = [get_read_lock("r"), get_write_lock("w"), get_fair_lock("f"), get_semaphore("s", permits=1)]
    for lock in kinds:
        with lock as lease:
            lease.extend(10)
            assert lock.locked()
    held = get_fair_lock("queued").acquire()
    with pytest.raises(LockNotAcquired):
        in_thread(lambda: get_fair_lock("queued").acquire(wait=0.05)).result(25)
    held.release()
    held = get_write_lock("waited").acquire()
    waiter = in_thread(lambda: get_write_lock("waited").acquire())
    until(lambda: server.ask("PUBSUB", "NUMSUB", "redisson_rwlock:{lock:waited}")[1] == 1, "a waiter")
    held.release()
    waiter.result(25).release()


def test_the_listed_rights_are_enough_to_list(server):
    """With the rights for listing added, the user lists, tells of itself, adds figures and sweeps."""
    admit(server, rights("single") + rights("kinds") + rights("listing"))
    backend = any_engine()

    with get_lock("a") as lease, get_read_lock("r"), get_write_lock("w"), get_semaphore("s", permits=1):
        client = lease.owner.split(":")[0]
        backend.publish_heartbeats({client: "{}"})
        backend.publish_heartbeats({client: None})
        assert {row.name for row in held_locks().rows} == {"a", "r", "w", "s"}
        assert backend.count_held(prefix="lock:a") == 1
        assert client in backend.heartbeats([client])
        backend.publish_heartbeats({}, forget=[client])
    backend.add_counters(1, {"acquired": 1})
    assert backend.figures_by_minute([1]) == [{"acquired": 1}]
    backend.tidy()


def test_without_scan_our_own_locks_are_listed_all_the_same(server):
    """SCAN only finds holders of other languages: anyone who forbids it has the rest of the list."""
    without = [rule for rule in rights("listing") if rule != "+scan"]
    admit(server, rights("single") + without)

    with get_lock("a"):
        assert [row.name for row in held_locks().rows] == ["a"]


def test_a_user_who_may_not_list_locks_all_the_same(server):
    """Without any of the rights for listing, the list says what is missing, and locks work."""
    with get_lock("a"):
        (problem,) = held_locks().problems
        assert "permission" in problem.message.lower()


def test_keys_outside_the_prefix_are_out_of_reach(server, settings):
    """The user can't lock, nor touch anything else, outside its prefix."""
    settings.LOCKING = {"default": {**settings.LOCKING["default"], "KEY_PREFIX": "elsewhere:"}}

    with pytest.raises(BackendError, match=r"(?i)permission"):
        get_lock("a").try_acquire()


def test_no_listed_command_is_idle(server):
    """Every listed command is sent, by us or by a script, when everything is used."""
    server.ask("CONFIG", "RESETSTAT")
    use_everything(server)
    give_up_waiting()

    with server.client() as client:
        used = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    assert {rule[1:] for rule in rights("single") if rule.startswith("+")} <= used


def give_up_waiting():
    """Leave the queue of a lock that another caller keeps."""
    with get_lock("kept"), pytest.raises(LockNotAcquired):
        in_thread(lambda: get_lock("kept").acquire(wait=0.05)).result(25)


def test_the_listed_rights_are_enough_on_a_cluster(tmp_path, settings):
    """With the rights for a cluster added, the user locks, waits and hands over there."""
    with servers(tmp_path) as start:
        cluster = Cluster(start)
        for node in cluster.nodes:
            admit(node, rights("single") + rights("cluster") + rights("replicas"))
        urls = [url.replace("redis://", "redis://locks:s3cret@") for url in cluster.location]
        settings.LOCKING = {"default": {"LOCATION": urls, "KEY_PREFIX": "lock:", "TTL": 20, "WAIT": 5}}
        name = cluster.name_in(cluster.masters[0], "lock:a").removeprefix("lock:")
        held = get_lock(name).acquire()
        waiter = acquired_in_thread(name)
        until_waiting(cluster.masters[0], f"lock:{name}")
        held.release()
        waiter.result(25).release()
        use_asyncio()
