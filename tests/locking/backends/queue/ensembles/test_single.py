"""One server of each: what a pause, a lost watch, another client or a late end does to a hold."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import override_settings

from locking import (
    BackendUnavailable,
    LockLost,
    LockNotAcquired,
    StaleFencingToken,
    distributed_lock,
    get_lock,
    locked_transaction,
)
from locking.backends.base import Busy
from locking.backends.zookeeper import SESSION_TRUST_RATIO
from locking.core.handler import locks
from locking.core.lease import State
from locking.testing.contract.base import begin, counted_waiters, until
from locking.utils.clock import now
from locking.utils.ownership import new_owner
from tests.backends import BACKENDS, ZOOKEEPER, any_engine
from tests.locking.backends.queue.ensembles.servers import ZooKeeper, needs_etcd, needs_zookeeper, running
from tests.locking.support.helpers import take_from

# The sockets of handshakes that test_security.py had refused may be found here, if it ran just before.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 30.0


@pytest.fixture(params=["zookeeper", "etcd"])
def on(request):
    """`LOCKING` on an empty part of either."""
    with override_settings(LOCKING={"default": BACKENDS[request.param].reached(request)}):
        yield request.param


@pytest.fixture
def on_etcd(request):
    """`LOCKING` on an empty part of etcd; its prefix."""
    settings = BACKENDS["etcd"].reached(request)
    with override_settings(LOCKING={"default": settings}):
        yield settings


@pytest.mark.django_db(transaction=True)
def test_a_decorated_function_is_fenced(on):
    """`@distributed_lock(fenced=True)` works as on Redis: the database knows the token of the last holder."""
    tokens = []

    @distributed_lock(key=lambda number: f"order:{number}", fenced=True)
    def pay(number):
        with connection.cursor() as cursor:
            cursor.execute("SELECT max(token) FROM locking_fence")
            tokens.append(cursor.fetchone()[0])

    pay(42)
    pay(42)
    assert tokens == sorted(set(tokens))


@pytest.mark.django_db(transaction=True)
def test_the_fence_refuses_a_stale_holder(on):
    """A holder whose lock was broken and taken by another can't write, though it hasn't noticed."""
    from django.db import transaction

    from locking.transactions.fence import advance

    stale = get_lock("a", ttl=60, fenced=True).acquire()
    assert take_from("a", owner=stale.owner)

    def take():
        try:
            with locked_transaction("a", ttl=30, fenced=True) as lease:
                return lease.fencing_token
        finally:
            connection.close()

    assert begin(take).result(timeout=PATIENCE) > stale.fencing_token
    with pytest.raises(StaleFencingToken), transaction.atomic():
        advance("default", stale)
    with pytest.raises(LockLost):
        stale.release()


def test_a_listing_tells_who_waits(on):
    """Holder, token and number of waiters, of every kind; the variants leave listing to the main backend."""
    backend = any_engine()
    with counted_waiters(backend) as waiters, get_lock("a", ttl=60) as lease:
        waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
        until(waiters.number, PATIENCE)
        backend.variant("read").try_acquire("b", new_owner(), 60)
        found = {(held.key, held.kind): held for held in backend.held()}
        assert set(found) == {("a", "lock"), ("b", "read")}
        assert found["a", "lock"].owner == lease.owner
        assert found["a", "lock"].token == lease.fencing_token
        assert found["a", "lock"].waiters == 1
    waiter.result(timeout=PATIENCE).release()


def test_a_force_release_reaches_the_holder_of_another_client(on):
    """An operator breaks the hold that he was shown, and the next in the queue has it."""
    lease = get_lock("a", ttl=60).acquire()
    with pytest.raises(LockNotAcquired) as refusal:
        begin(get_lock("a", wait=0).acquire).result(timeout=PATIENCE)
    assert refusal.value.holder == lease.owner
    assert take_from("a", owner=refusal.value.holder)
    begin(get_lock("a", ttl=5, wait=0).acquire).result(timeout=PATIENCE).release()
    with pytest.raises(LockLost):
        lease.release()


# ZooKeeper's session


def zookeeper_at(location: str, **options: Any) -> override_settings:
    """The default alias on this server."""
    entry = {"BACKEND": ZOOKEEPER, "LOCATION": location, "OPTIONS": options}
    return override_settings(LOCKING={"default": entry})


@contextlib.contextmanager
def own_zookeeper(folder: Path, **options: Any) -> Iterator[ZooKeeper]:
    """A server that no other test uses, as the default alias."""
    with running(partial(ZooKeeper, folder)) as server, zookeeper_at(server.location, **options):
        yield server


@needs_zookeeper
def test_a_session_in_doubt_is_unknown_and_then_lost(tmp_path):
    """A server that stops answering: the lease is unknown, and lost before the servers could end the
    session.
    """
    with own_zookeeper(tmp_path, session_timeout=6.0, timeout=PATIENCE) as server:
        lease = get_lock("a", ttl=600).acquire()
        assert lease.state is State.HELD
        server.servers[0].pause()
        until(lambda: lease.state is not State.HELD, PATIENCE)
        until(lambda: lease.state is State.LOST, PATIENCE)
        with pytest.raises(LockLost):
            lease.ensure_held()
        server.servers[0].resume()
        with pytest.raises(LockLost):
            lease.release()


@needs_zookeeper
def test_a_server_agrees_to_less_than_was_asked_for_and_a_hold_ends_by_that(tmp_path):
    """A request for ten minutes gets the server's limit of one minute, and two thirds of it count."""
    with own_zookeeper(tmp_path, session_timeout=600.0), get_lock("a", ttl=600) as lease:
        assert 0.0 < any_engine().hold_ends("a", lease.owner) - now() <= 60.0 * SESSION_TRUST_RATIO


@needs_zookeeper
def test_a_short_break_of_the_connection_costs_no_hold(tmp_path):
    """A server that is gone for less than the session leaves the lease unknown, and then held again."""
    with own_zookeeper(tmp_path, session_timeout=60.0) as server, get_lock("a", ttl=600) as lease:
        server.servers[0].kill()
        until(lambda: lease.state is State.UNKNOWN, PATIENCE)
        server.restore()
        until(lambda: lease.state is State.HELD, 2 * PATIENCE)
        lease.extend(600)


@needs_zookeeper
def test_a_closed_backend_ends_its_session_with_its_last_hold(request):
    """Its holds stay until they are released or broken; then the servers have nothing of it any more."""
    with override_settings(LOCKING={"default": BACKENDS["zookeeper"].reached(request)}):
        backend, leases = any_engine(), [get_lock(name, ttl=600).acquire() for name in ("a", "b", "c")]
        backend.close()
        leases[0].release()
        assert [lease.state for lease in leases[1:]] == [State.HELD, State.HELD]
        leases[1].extend(600)
        leases[1].release()
        assert backend.force_release("c", leases[2].owner)
        assert backend._session.number == 0
        get_lock("a", ttl=5).acquire().release()
        assert backend._session.number != 0, "it was used since it was closed"


# etcd's leases


@needs_etcd
def test_a_waiter_whose_lease_ended_does_not_get_the_lock_by_it(on_etcd):
    """Jepsen's finding in etcd 3.4.3: a lease that ended in the queue is never granted; it queues again."""
    backend = locks["default"]
    holder = get_lock("a", ttl=60).acquire()
    owner = new_owner()
    place = backend.waiter("a", owner, 60.0)
    place.try_acquire(queue=True)
    assert backend.release("a", owner), "the waiter's lease is ended behind its back"
    rival = backend.waiter("a", new_owner(), 60.0)
    rival.try_acquire(queue=True)
    holder.release()
    assert isinstance(place.try_acquire(queue=True), Busy), "the rival came first now"
    place.leave()
    rival.leave()


@needs_etcd
def test_a_lease_longer_than_the_first_has_a_lease_of_its_own(on_etcd):
    """Extending beyond the first length keeps key and token, and survives the end of the first lease."""
    lease = get_lock("a", ttl=1).acquire()
    lease.extend(30)
    held = any_engine().held()[0]
    assert (held.owner, held.token) == (lease.owner, lease.fencing_token)
    assert (held.remaining or 0) > 20
    lease.release()
    assert not get_lock("a").locked()


@needs_etcd
@pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl on PATH (Debian: etcd-client)")
def test_etcdctl_stands_in_the_same_line(on_etcd):
    """`etcdctl lock` waits for our hold, has it next, and we wait for its."""
    with etcdctl_lock(on_etcd, "a") as other:
        until(lambda: [held.waiters for held in any_engine().held()] == [0], PATIENCE)
        with counted_waiters(locks["default"]) as waiters:
            waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
            until(waiters.number, PATIENCE)
            assert not waiter.done()
            other.send_signal(signal.SIGINT)  # etcdctl lets the lock go
            waiter.result(timeout=PATIENCE).release()


@contextlib.contextmanager
def etcdctl_lock(settings, name):
    """Have `etcdctl lock` queue behind a hold of ours, and then hold until a signal."""
    prefix, (endpoint,) = settings["OPTIONS"]["prefix"], settings["LOCATION"]
    command = ["etcdctl", "--endpoints", endpoint, "lock", f"{prefix}{name}", "--ttl", "5"]
    environment = {**os.environ, "ETCDCTL_API": "3"}
    with get_lock(name, ttl=60):
        other = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            until(lambda: [held.waiters for held in any_engine().held()] == [1], PATIENCE)
        except BaseException:
            other.kill()
            raise
    try:
        yield other
    finally:
        other.kill()
        other.wait()


@needs_etcd
def test_a_watch_that_breaks_wakes_its_waiters(on_etcd, monkeypatch):
    """A waiter whose stream ended asks again, and starts a new watch."""
    monkeypatch.setattr("locking.backends.etcd.QUIET", 0.2)
    backend: Any = locks["default"]
    with counted_waiters(backend) as waiters:
        with get_lock("a", ttl=60):
            waiter = begin(get_lock("a", ttl=60, wait=60).acquire)
            until(waiters.number, PATIENCE)
            begun: list[int] = []
            run = backend._watches._run

            def run_noted(revision: int) -> None:
                begun.append(revision)
                run(revision)

            monkeypatch.setattr(backend._watches, "_run", run_noted)
            until(lambda: len(begun) >= 2, PATIENCE)
            assert not waiter.done()
        waiter.result(timeout=PATIENCE).release()


def test_a_server_that_accepts_and_says_nothing_is_tried_again_within_the_session():
    """kazoo by itself waits for its answer as long as the session lasts, and every hold is lost by then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address, session_timeout = f"127.0.0.1:{silent.getsockname()[1]}", 18.0
        with zookeeper_at(address, session_timeout=session_timeout, timeout=0.1):
            with pytest.raises(BackendUnavailable):
                get_lock("a").try_acquire()
            silent.settimeout(PATIENCE)
            with silent.accept()[0]:
                first = time.monotonic()
                with silent.accept()[0]:
                    assert time.monotonic() - first < session_timeout * SESSION_TRUST_RATIO
