"""Locks on a cluster of three real nodes and a replica."""

import asyncio
import threading
import time

import pytest
from django_redis.client import DefaultClient
from redis.cluster import RedisCluster
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, TryAgainError

from locking import BackendError, BackendUnavailable, LockNotAcquired, get_lock
from locking.backends.redis import cluster as cluster_module
from locking.backends.redis.protocol import Server
from locking.core.handler import locks
from locking.core.kinds import get_semaphore
from locking.utils.ownership import new_owner
from tests.locking.backends.redis.topologies.servers import (
    Cluster,
    begin_move,
    end_move,
    move_keys,
    move_slot,
    servers,
    until,
)
from tests.locking.backends.redis.topologies.waiters import (
    acquired_in_thread,
    in_thread,
    queue_of,
    until_waiting,
)


def test_names_of_every_node_are_locked_together(cluster):
    """A multi-lock takes names of all three nodes, and its tokens rise."""
    names = [cluster.name_in(node, "cart") for node in cluster.masters]

    with get_lock(*names) as first:
        assert first.names == tuple(sorted(names))
    with get_lock(*names) as second:
        assert all(b.token > a.token for a, b in zip(first.leases, second.leases, strict=True))


def test_a_waiter_is_handed_the_lock_on_any_node(cluster):
    """On every node the release hands the lock to the waiter at once, not at the lease's end."""
    for node in cluster.masters:
        name = cluster.name_in(node, "handed")
        held = get_lock(name).acquire()
        waiter = acquired_in_thread(name)
        until_waiting(node, name)

        held.release()

        assert waiter.result(25).fencing_token > held.fencing_token


async def test_tasks_wait_on_any_node(cluster):
    """On every node a waiting task is woken by a release."""
    for node in cluster.masters:
        name = cluster.name_in(node, "task")
        held = await get_lock(name).aacquire()
        waiter = asyncio.create_task(get_lock(name).aacquire())
        await asyncio.to_thread(until_waiting, node, name)

        await held.arelease()

        lease = await asyncio.wait_for(waiter, 25)
        assert lease.fencing_token > held.fencing_token


def test_a_moved_slot_is_followed(cluster):
    """A slot that moves with a held lock in it keeps the lock: its owner extends and releases it there."""
    source = cluster.masters[1]
    name, target = cluster.name_in(source, "moved"), cluster.other_than(source)
    lease = get_lock(name).acquire()

    move_slot(cluster, key_slot(name.encode()), source, target)

    assert not in_thread(lambda: get_lock(name).try_acquire()).result(25)
    lease.extend(15)
    lease.release()
    assert not get_lock(name).locked()
    assert cluster.owner(name) is target


def test_a_waiter_follows_its_slot(cluster):
    """A waiter whose slot moves is notified to ask again, queues on the new node, and gets the lock."""
    source = cluster.masters[2]
    name, target = cluster.name_in(source, "followed"), cluster.other_than(source)
    held = get_lock(name).acquire()
    waiter = acquired_in_thread(name)
    until_waiting(source, name)
    move_slot(cluster, key_slot(name.encode()), source, target)

    held.release()

    lease = waiter.result(25)
    assert target.ask("HKEYS", name) == [lease.leases[0].owner.encode()]
    assert target.ask("LLEN", queue_of(name)) == 0


async def test_a_task_follows_its_slot(cluster):
    """A waiting task whose slot moves gets the lock on the new node."""
    source = cluster.masters[2]
    name, target = cluster.name_in(source, "followed-by-task"), cluster.other_than(source)
    held = await get_lock(name).aacquire()
    waiter = asyncio.create_task(get_lock(name).aacquire())
    await asyncio.to_thread(until_waiting, source, name)
    await asyncio.to_thread(move_slot, cluster, key_slot(name.encode()), source, target)

    await held.arelease()

    lease = await asyncio.wait_for(waiter, 25)
    assert target.ask("HKEYS", name) == [lease.leases[0].owner.encode()]


async def test_a_redirection_for_one_request_is_followed(cluster):
    """A lock that was carried over is renewed at its new place before the slot's move has ended (ASK)."""
    source = cluster.masters[1]
    name, target = cluster.name_in(source, "asked"), cluster.other_than(source)
    slot = key_slot(name.encode())
    lease = await get_lock(name, ttl=1).aacquire()
    begin_move(cluster, slot, source, target)
    move_keys(source, target, source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10))
    try:
        lease.extend(20)
        await lease.aextend(20)
    finally:
        end_move(cluster, slot, target)
    assert target.ask("PTTL", name) > 15_000


def half_moved(cluster, prefix):
    """Hold a lock whose keys lie half here, half there: requests for all of them are answered TRYAGAIN."""
    source = cluster.masters[1]
    name, target = cluster.name_in(source, prefix), cluster.other_than(source)
    lease = get_lock(name).acquire()
    begin_move(cluster, key_slot(name.encode()), source, target)
    move_keys(source, target, [f"redisson_lock_token:{{{name}}}".encode()])
    return name, source, target, lease


def end_half_move(cluster, name, source, target):
    """Carry the rest over and close the move."""
    move_keys(source, target, [name.encode()])
    end_move(cluster, key_slot(name.encode()), target)


def test_a_half_moved_lock_is_waited_for_in_bounds(cluster, monkeypatch):
    """Without a wait BackendUnavailable is raised; no caller is granted the lock."""
    monkeypatch.setattr(cluster_module, "TIMEOUT", 0.1)
    name, source, target, _lease = half_moved(cluster, "half")
    try:
        with pytest.raises(BackendUnavailable, match="slot"):
            in_thread(lambda: get_lock(name).try_acquire()).result(25)
    finally:
        end_half_move(cluster, name, source, target)


def test_a_waiter_outlasts_a_half_moved_lock(cluster, monkeypatch):
    """A waiter goes on asking until the move has ended, and then gets the lock."""
    monkeypatch.setattr(cluster_module, "TIMEOUT", 0.1)
    name, source, target, lease = half_moved(cluster, "outlast")
    tried = threading.Event()
    follow = cluster_module.Cluster._redirected

    def redirected(self, route, error):
        tried.set()
        return follow(self, route, error)

    monkeypatch.setattr(cluster_module.Cluster, "_redirected", redirected)
    waiter = acquired_in_thread(name)
    assert tried.wait(25)

    end_half_move(cluster, name, source, target)
    lease.release()

    assert waiter.result(25).fencing_token > lease.fencing_token


def ask_while_it_moves(cluster, prefix, monkeypatch):
    """Try to acquire a half moved lock; its move ends when the cluster has said *try again* once."""
    name, source, target, lease = half_moved(cluster, prefix)
    follow, seen = cluster_module.Cluster._redirected, list[TryAgainError]()

    def redirected(self, route, error):
        if isinstance(error, TryAgainError) and not seen:
            seen.append(error)
            end_half_move(cluster, name, source, target)
        return follow(self, route, error)

    monkeypatch.setattr(cluster_module.Cluster, "_redirected", redirected)
    try:
        return in_thread(lambda: get_lock(name).try_acquire()).result(25)
    finally:
        assert seen
        lease.release()


def test_a_request_outlasts_the_moment_of_a_move(cluster, monkeypatch):
    """A caller that doesn't wait for the lock waits for its keys all the same, and learns the holder."""
    assert ask_while_it_moves(cluster, "moment", monkeypatch) is None


def test_mutant_a_move_that_is_not_waited_out_is_an_outage(cluster, monkeypatch):
    """The rule of the test above taken out: a cluster that moves a slot counts as one that doesn't answer."""
    monkeypatch.setattr(cluster_module, "MOVING", (ClusterDownError,))
    with pytest.raises(BackendUnavailable, match="Multiple keys"):
        ask_while_it_moves(cluster, "outage", monkeypatch)


def test_renewals_of_many_slots_are_one_batch_a_node(cluster, monkeypatch):
    """Sixty leases in sixty slots are extended by one pipeline for each node, also when a slot has moved."""
    backend = locks["default"]
    leases = [(f"renewed:{i}", new_owner(), 20.0) for i in range(60)]
    for key, owner, ttl in leases:
        backend.try_acquire(key, owner, ttl)
    moved = next(key for key, _, _ in leases if cluster.owner(key) is cluster.masters[1])
    move_slot(cluster, key_slot(moved.encode()), cluster.masters[1], cluster.masters[2])
    backend.release(*leases[7][:2])
    pipelines = []
    send = Server.pipeline

    def pipeline(server, requests):
        pipelines.append(len(requests))
        return send(server, requests)

    monkeypatch.setattr(Server, "pipeline", pipeline)

    held = backend.extend_many(leases)

    assert [i for i, is_held in enumerate(held) if not is_held] == [7]
    assert len(pipelines) == 3
    assert sum(pipelines) == 60


def test_a_dead_master_leaves_the_leases_on_the_others_alone(tmp_path, settings):
    """A renewal of many leases answers *unknown* for those of a dead node and *held* for all others."""
    with servers(tmp_path) as start:
        own = Cluster(start)
        settings.LOCKING = {"default": {"LOCATION": own.location}}
        backend = locks["default"]
        leases = [(f"renewed:{i}", new_owner(), 20.0) for i in range(30)]
        for key, owner, ttl in leases:
            backend.try_acquire(key, owner, ttl)
        lost = [own.owner(key) is own.masters[1] for key, _, _ in leases]

        own.masters[1].kill()

        held = backend.extend_many(leases)
        assert {answer for answer, is_lost in zip(held, lost, strict=True) if is_lost} == {None}
        assert {answer for answer, is_lost in zip(held, lost, strict=True) if not is_lost} == {True}


def test_a_release_is_announced_both_ways(cluster):
    """Redisson's clients hear a release in a cluster whether they listen by SUBSCRIBE or by SSUBSCRIBE."""
    node = cluster.masters[0]
    name = cluster.name_in(node, "announced")
    channel = f"redisson_lock__channel:{{{name}}}"
    with node.client() as client, client.pubsub() as plain, client.pubsub() as sharded:
        plain.subscribe(channel)
        sharded.ssubscribe(channel)
        until(plain.get_message, "a subscription")
        until(sharded.get_sharded_message, "a sharded subscription")

        get_lock(name).acquire().release()

        assert until(plain.get_message, "PUBLISH")["data"] == b"0"
        assert until(sharded.get_sharded_message, "SPUBLISH")["data"] == b"0"


def test_a_foreign_release_wakes_both_ways(cluster):
    """A waiter behind a Redisson client is woken by its SPUBLISH as well as by its PUBLISH."""
    node = cluster.masters[0]
    for verb in ("PUBLISH", "SPUBLISH"):
        name = cluster.name_in(node, verb.lower())
        channel = f"redisson_lock__channel:{{{name}}}"
        node.ask("HSET", name, "11111111-1111-4111-8111-111111111111:1", 1)
        node.ask("PEXPIRE", name, 30_000)
        waiter = acquired_in_thread(name)
        until(lambda: node.ask("PUBSUB", "NUMSUB", channel)[1] == 1, "a listener")  # noqa: B023
        until(lambda: node.ask("PUBSUB", "SHARDNUMSUB", channel)[1] == 1, "a sharded listener")  # noqa: B023

        node.ask("DEL", name)
        node.ask(verb, channel, "0")

        assert waiter.result(25).remaining() > 0


def test_a_cluster_without_sharded_channels_is_heard(tmp_path, settings):
    """On nodes that don't know SSUBSCRIBE, as Redis 6, threads and tasks are woken by PUBLISH alone."""
    with servers(tmp_path) as start:
        own = Cluster(start, rename_command='SSUBSCRIBE ""')
        settings.LOCKING = {"default": {"LOCATION": own.location, "WAIT": 10, "TTL": 20}}
        node = own.masters[1]
        for prefix, step in (
            ("thread", lambda name: get_lock(name).acquire()),
            ("task", lambda name: asyncio.run(get_lock(name).aacquire())),
        ):
            name = own.name_in(node, prefix)
            channel = f"redisson_lock__channel:{{{name}}}"
            node.ask("HSET", name, "11111111-1111-4111-8111-111111111111:1", 1)
            node.ask("PEXPIRE", name, 30_000)
            waiter = in_thread(step, name)
            until(lambda: node.ask("PUBSUB", "NUMSUB", channel)[1] == 1, "a listener")  # noqa: B023

            node.ask("DEL", name)
            node.ask("PUBLISH", channel, "0")

            assert waiter.result(25).remaining() > 0


def test_the_other_kinds_live_in_one_slot(cluster):
    """A semaphore's waiter is woken on every node of a cluster."""
    for node in cluster.masters:
        name = cluster.name_in(node, "permits")
        held = get_semaphore(name, permits=1).acquire()
        waiter = in_thread(lambda: get_semaphore(name, permits=1).acquire())  # noqa: B023
        until(lambda: node.ask("PUBSUB", "SHARDNUMSUB", f"redisson_sc:{{{name}}}")[1] == 1, "a waiter")  # noqa: B023

        held.release()

        assert waiter.result(25).remaining() > 0


def test_a_demoted_master_gives_no_lock(tmp_path, settings):
    """A waiter on a master that became a replica comes again; only the new master gives the lock."""
    with servers(tmp_path) as start:
        own = Cluster(start)
        settings.LOCKING = {"default": {"LOCATION": own.location, "WAIT": 10, "TTL": 20}}
        old, new = own.masters[0], own.replica
        name = own.name_in(old, "demoted")
        held = get_lock(name).acquire()
        waiter = acquired_in_thread(name)
        until_waiting(old, name)
        new.ask("CLUSTER", "FAILOVER")
        until(lambda: own.owner(name) is new, "a new master")

        held.release()

        lease = waiter.result(25)
        assert new.ask("HKEYS", name) == [lease.leases[0].owner.encode()]


def test_the_death_of_a_node_is_outlived(tmp_path, settings):
    """When a master dies its waiters find the successor; names on other nodes are served all the time."""
    with servers(tmp_path) as start:
        own = Cluster(start)
        settings.LOCKING = {"default": {"LOCATION": own.location, "WAIT": 15, "TTL": 20}}
        dead, elsewhere = own.masters[0], own.name_in(own.masters[1], "elsewhere")
        name = own.name_in(dead, "orphan")
        held = get_lock(name).acquire()
        waiter = acquired_in_thread(name)
        until_waiting(dead, name)
        until(lambda: own.replica.client().info("replication")["slave_repl_offset"] > 0, "a replica")

        dead.kill()

        get_lock(elsewhere).acquire().release()
        with pytest.raises(BackendUnavailable):
            in_thread(lambda: get_lock(name).try_acquire()).result(25)
        until(lambda: own.owner(name) is own.replica, "a successor")
        held.release()
        assert waiter.result(25).fencing_token > held.fencing_token


def test_a_cluster_without_nodes_is_unavailable(tmp_path, settings):
    """When no node answers, the lock isn't given and the wait stays in its bounds."""
    settings.LOCKING = {"default": {"LOCATION": ["redis://127.0.0.1:1", "redis://127.0.0.1:2"], "WAIT": 0.2}}

    with pytest.raises(BackendUnavailable, match="default"):
        get_lock("unserved").try_acquire()
    with pytest.raises(BackendUnavailable):
        get_lock("unserved").acquire()


def test_one_url_of_a_cluster_says_what_to_do(cluster, settings):
    """A LOCATION that is one node of a cluster is refused with the fix in the message."""
    name = cluster.name_in(cluster.masters[0], "alone")
    settings.LOCKING = {"default": {"LOCATION": cluster.masters[1].url}}

    with pytest.raises(BackendError, match="list of its nodes' URLs"):
        get_lock(name).try_acquire()


class ClusterClient(DefaultClient):
    """A django-redis client that is on a cluster."""

    def connect(self, index=0):
        """Return redis-py's own cluster client."""
        return RedisCluster.from_url(self._server[index])


def test_a_cache_on_a_cluster_is_shared(cluster, settings):
    """`CACHE` may name a cache whose client is a RedisCluster: locks go to all of its nodes."""
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": cluster.location[0],
            "OPTIONS": {"CLIENT_CLASS": f"{__name__}.ClusterClient"},
        }
    }
    settings.LOCKING = {"default": {"CACHE": "default"}}
    names = [cluster.name_in(node, "cached") for node in cluster.masters]

    with get_lock(*names):
        assert [node.ask("EXISTS", name) for node, name in zip(cluster.masters, names, strict=True)] == [
            1,
            1,
            1,
        ]


def test_a_listed_node_that_has_left_the_cluster_is_passed_over(cluster, start, settings):
    """It answers that there are no slots at all; the next one that is listed knows them."""
    gone = start(cluster_enabled="yes")
    settings.LOCKING = {"default": {"LOCATION": [f"redis://127.0.0.1:{gone.port}", *cluster.location]}}
    with get_lock("listed") as lease:
        assert lease.remaining() > 0


def test_contention_across_threads_is_exclusive(cluster):
    """Twenty threads that count up under one lock lose no count."""
    name, total = cluster.name_in(cluster.masters[2], "hammer"), [0]

    def count() -> None:
        for _ in range(10):
            with get_lock(name):
                seen = total[0]
                time.sleep(0)  # lets the others run
                total[0] = seen + 1

    threads = [in_thread(count) for _ in range(20)]
    for thread in threads:
        thread.result(30)
    assert total == [200]


def test_a_busy_lock_is_refused_in_time(cluster):
    """A wait that runs out on a cluster says who holds the lock."""
    with get_lock("busy") as lease, pytest.raises(LockNotAcquired) as refusal:
        in_thread(lambda: get_lock("busy").acquire(wait=0.05)).result(25)
    assert refusal.value.holder == lease.leases[0].owner
