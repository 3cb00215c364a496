"""Locks on the master of a service that Sentinels watch."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from locking import BackendError, BackendUnavailable, State, get_lock
from locking.backends.redis.sentinel import SENTINEL_TIMEOUT, Sentinels
from locking.core.handler import locks
from tests.locking.backends.redis.topologies.servers import PATIENCE, is_copying, until
from tests.locking.backends.redis.topologies.waiters import acquired_in_thread, in_thread, until_waiting
from tests.locking.support.helpers import is_answered


def test_a_failover_is_followed_by_waiters_and_holders(service):
    """When the master dies, its waiter and the holder go on with the replica that takes over."""
    held = get_lock("watched").acquire()
    waiter = acquired_in_thread("watched")
    until_waiting(service.replica, "watched")  # what the waiter wrote has been copied

    service.kill_master()
    until(lambda: service.replica.ask("ROLE")[0] == b"master", "a failover")
    until(lambda: is_answered(held.release), "a release on the new master")

    assert waiter.result(25).fencing_token > held.fencing_token


async def _areleases(lease):
    try:
        await lease.arelease()
    except BackendUnavailable:
        return False
    return True


async def test_a_failover_is_followed_by_tasks(service):
    """A task that waits when the master dies gets the lock from the replica that takes over."""
    held = await get_lock("watched").aacquire()
    waiter = asyncio.create_task(get_lock("watched").aacquire())
    await asyncio.to_thread(until_waiting, service.replica, "watched")

    service.kill_master()
    await asyncio.to_thread(until, lambda: service.replica.ask("ROLE")[0] == b"master", "a failover")
    async with asyncio.timeout(PATIENCE):
        while not await _areleases(held):
            await asyncio.sleep(0.05)  # asks again until the new master answers

    assert (await asyncio.wait_for(waiter, 15)).fencing_token > held.fencing_token


async def test_a_task_passes_over_a_sentinel_that_hangs(service, settings):
    """It has its second, then the next is asked, however short the limit of a request is."""
    settings.LOCKING = {"default": {"LOCATION": service.location, "OPTIONS": {"socket_timeout": 0.5}}}
    service.sentinels[0].pause()
    try:
        async with get_lock("found") as lease:
            lease.ensure_held()
    finally:
        service.sentinels[0].resume()


def test_an_acquisition_counts_once_a_replica_has_it(service):
    """The replica knows the lock when `acquire` returns; while it is frozen no lock is granted."""
    with get_lock("copied") as lease:
        assert service.replica.ask("HKEYS", "copied") == [lease.leases[0].owner.encode()]

    service.replica.pause()
    try:
        with pytest.raises(BackendUnavailable, match="0 of 1 replicas confirmed the lock"):
            get_lock("copied").acquire(wait=5)
        assert service.master.ask("EXISTS", "copied") == 0
    finally:
        service.replica.resume()


async def test_a_task_counts_copies_too(service):
    """A task isn't given a lock either that no replica confirms, and the lock is free afterwards."""
    async with get_lock("copied") as lease:
        assert service.replica.ask("HKEYS", "copied") == [lease.leases[0].owner.encode()]

    service.replica.pause()
    try:
        with pytest.raises(BackendUnavailable, match="0 of 1 replicas confirmed the lock"):
            await get_lock("copied").aacquire(wait=5)
        assert service.master.ask("EXISTS", "copied") == 0
    finally:
        service.replica.resume()


def test_a_handed_over_lock_is_confirmed_as_well(service, settings):
    """A waiter who is handed the lock has the replicas confirm it: while they are silent it isn't given."""
    held = get_lock("handed").acquire()
    waiter = acquired_in_thread("handed")
    until_waiting(service.master, "handed")
    service.replica.pause()
    try:
        held.release()

        with pytest.raises(BackendUnavailable, match="replicas confirmed"):
            waiter.result(25)
    finally:
        service.replica.resume()


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_a_master_without_replicas_renews_unless_it_asks_for_them(
    start, settings, turned_clock, min_replicas
):
    """A renewal isn't confirmed: beside the new master's holder there is the old one's, until a ttl at most
    after its last renewal. Only the server can refuse, which `min-replicas-to-write` has it do.
    """
    old = start(repl_diskless_sync_delay=0, min_replicas_to_write=min_replicas)
    new = start(replicaof=f"127.0.0.1 {old.port}", repl_diskless_sync_delay=0)
    options = {"LOCATION": old.url, "OPTIONS": {"wait_replicas": 1}}
    settings.LOCKING = {"old": options, "new": {"LOCATION": new.url}}
    until(lambda: is_copying(new), "a replica")
    until(lambda: _good_replicas(old) >= min_replicas, "a replica that counts")
    held = get_lock("renewed", backend="old", ttl=30).acquire()
    new.ask("REPLICAOF", "NO", "ONE")
    until(lambda: old.client().info("replication")["connected_slaves"] == 0, "a master without replicas")

    with pytest.raises(BackendError, match="NOREPLICAS") if min_replicas else nullcontext():
        held.extend(60)
    new.ask("PEXPIRE", "renewed", "1")
    until(lambda: new.ask("EXISTS", "renewed") == 0, "the copy's end")
    turned_clock.advance(31)

    with get_lock("renewed", backend="new") as other:
        other.ensure_held()
        assert held.state is (State.LOST if min_replicas else State.HELD)


def _good_replicas(server):
    """Return how many a write may count on; the server says so where it asks for some."""
    return server.client().info("replication").get("min_slaves_good_slaves", 0)


def test_a_service_that_no_client_knows_is_unavailable(service, settings):
    """A service's name that the Sentinels don't know is an outage that names it."""
    settings.LOCKING = {"default": {"LOCATION": service.location.replace("/locks/", "/lokcs/")}}

    with pytest.raises(BackendUnavailable, match="lokcs"):
        get_lock("any").try_acquire()


def test_a_cache_on_a_sentinel_is_shared(service, settings):
    """`CACHE` may name a django-redis cache that is on a Sentinel: the lock is on its master."""
    hosts = [("127.0.0.1", sentinel.port) for sentinel in service.sentinels]
    settings.CACHES = {
        "default": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": f"redis://{service.name}/0",
            "OPTIONS": {
                "CLIENT_CLASS": "django_redis.client.SentinelClient",
                "SENTINELS": hosts,
            },
        }
    }
    settings.DJANGO_REDIS_CONNECTION_FACTORY = "django_redis.pool.SentinelConnectionFactory"
    settings.LOCKING = {"default": {"CACHE": "default"}}

    backend: Any = locks["default"]
    pool = backend.calls.make().connection.connection_pool
    assert isinstance(pool.sentinel_manager, Sentinels)
    for sentinel in pool.sentinel_manager.sentinels:
        asked = sentinel.connection_pool.connection_kwargs
        assert (asked["retry"]._retries, asked["socket_timeout"]) == (0, SENTINEL_TIMEOUT)
    with get_lock("cached") as lease:
        assert service.master.ask("HKEYS", "cached") == [lease.leases[0].owner.encode()]
        assert in_thread(lambda: get_lock("cached").try_acquire()).result(25) is None
