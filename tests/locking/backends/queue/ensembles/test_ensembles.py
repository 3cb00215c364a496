"""Three servers of which one dies in mid-hold: the hold survives or is lost loudly, never shared."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from django.db import connection, transaction

from locking import (
    BackendUnavailable,
    LockError,
    LockLost,
    StaleFencingToken,
    get_lock,
    locked_transaction,
)
from locking.core.handler import locks
from locking.core.lease import State
from locking.testing.contract.base import begin, counted_waiters, until
from locking.transactions.fence import advance
from tests.locking.backends.queue.ensembles.servers import serves
from tests.locking.support.helpers import is_answered, take_from

PATIENCE = 40.0


def victims(ensemble, who):
    """The server to kill."""
    return ensemble.leader() if who == "leader" else ensemble.follower()


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_hold_outlives_the_death_of_a_server(ensemble, who):
    """The holder goes on holding, its waiter stays in line, and both get through on the two that are left."""
    with counted_waiters(locks["default"]) as waiters, get_lock("shared", ttl=60) as lease:
        waiter = begin(get_lock("shared", ttl=60).acquire)
        until(waiters.number, PATIENCE)
        victims(ensemble, who).kill()
        # An election may last longer than a request, and the lease goes on meanwhile.
        until(lambda: is_answered(partial(lease.extend, 60)), PATIENCE)
        lease.ensure_held()
        assert not waiter.done()
    successor = waiter.result(timeout=PATIENCE)
    assert successor.fencing_token > lease.fencing_token
    successor.release()


def test_one_writer_at_a_time_while_servers_die(ensemble):
    """Threads that count under the lock lose no count and never meet, while the leader dies."""
    inside, counts, tokens, losses = [], [0], [], []
    half_way = threading.Event()

    def work(rounds):
        for _ in range(rounds):
            try:
                with get_lock("counter", ttl=60, wait=PATIENCE) as lease:
                    inside.append(1)
                    assert len(inside) == 1, "two in one section"
                    tokens.append(lease.fencing_token)
                    seen = counts[0]
                    time.sleep(0.001)  # between reading and writing: room for an intruder
                    counts[0] = seen + 1
                    inside.pop()
            except (
                LockError
            ) as error:  # lost or unavailable, and said so: the round counts only if it was entered
                losses.append(error)
            if counts[0] >= 10:
                half_way.set()

    workers = [begin(partial(work, 10)) for _ in range(3)]
    assert half_way.wait(PATIENCE)
    ensemble.leader().kill()
    for worker in workers:
        worker.result(timeout=PATIENCE * 2)
    assert counts[0] == len(tokens)
    assert counts[0] + sum(isinstance(loss, BackendUnavailable) for loss in losses) >= 30
    assert tokens == sorted(set(tokens))


def test_without_a_quorum_no_client_gets_a_lock_and_the_holder_is_reported(ensemble):
    """With one server of three nothing is granted, and a hold is lost before another could have it."""
    lease = get_lock("shared", ttl=3).acquire()
    for server in (ensemble.leader(), ensemble.follower()):
        server.kill()
    with pytest.raises(BackendUnavailable):
        get_lock("other", wait=0).acquire()
    until(lambda: lease.state is State.LOST, PATIENCE)
    with pytest.raises(LockLost):
        lease.ensure_held()
    ensemble.restore()
    until(serves, PATIENCE)
    with pytest.raises(LockLost):
        lease.release()
    get_lock("shared", ttl=5).acquire().release()


@pytest.mark.django_db(transaction=True)
def test_the_fence_refuses_a_holder_from_before_the_leader_died(ensemble):
    """Tokens rise across an election, so a database that saw the new holder refuses the old one."""
    stale = get_lock("shared", ttl=60, fenced=True).acquire()
    assert take_from("shared", owner=stale.owner)
    ensemble.leader().kill()
    successor = begin(_fenced_token)
    assert successor.result(timeout=PATIENCE) > stale.fencing_token
    with pytest.raises(StaleFencingToken), transaction.atomic():
        advance("default", stale)
    with pytest.raises(LockLost):
        stale.release()


def _fenced_token():
    """Write under the fence over this thread's own connection, and return the token."""
    try:
        with locked_transaction("shared", ttl=30, wait=PATIENCE, fenced=True) as lease:
            return lease.fencing_token
    finally:
        connection.close()


def test_a_live_check_names_the_server_that_is_gone(ensemble):
    """`check --tag locking_live` warns of a member that doesn't answer, and says nothing when all do."""
    assert locks["default"].check(live=True) == []
    victim = ensemble.follower()
    victim.kill()
    (message,) = locks["default"].check(live=True)
    assert message.id == "locking.W103"
    assert str(victim.port) in message.msg
