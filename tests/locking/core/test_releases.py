"""A release that worked is not called a loss, and a loss is not called a release."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import requests
from django.db import OperationalError
from django.test.utils import override_settings
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError

from locking.backends.etcd import NOT_FOUND, EtcdBackend, EtcdClient, Refused
from locking.backends.queue import QueueEntry
from locking.backends.zookeeper import Dropped, ZooKeeperBackend, ZooKeeperSession
from locking.conf import read_alias
from locking.core.handler import locks
from locking.testing.contract.base import until
from locking.utils.clock import now
from locking.utils.ownership import new_owner
from tests.backends import ADVISORY

PATIENCE = 30.0
MEMBERS = ["http://one:1", "http://two:1"]


# etcd: the next member answers


def lost_reply():
    """What requests raises when a member does not answer in time."""
    return requests.ReadTimeout()


def refused_connection():
    """What requests raises when no member listens at the address."""
    return requests.ConnectionError(
        MaxRetryError(HTTPConnectionPool("one"), "/", NewConnectionError(HTTPConnection("one"), "refused"))
    )


def not_found():
    """What a member says of a lease that it does not know."""
    return Refused("a member", "requested lease not found", NOT_FOUND)


@pytest.fixture
def members(monkeypatch):
    """Leases on two members, and what each says in turn."""
    said: list[Exception] = []
    leases = EtcdClient(read_alias("a", {"LOCATION": MEMBERS}))

    def post(url, path, body):
        raise said.pop(0)

    # Of this client only: a release that an earlier test left to be repeated must not take its answers.
    monkeypatch.setattr(leases, "_post", post)
    return leases, said


@pytest.mark.parametrize(("first", "released"), [(lost_reply, True), (refused_connection, False)])
def test_a_revocation_that_the_next_member_answers(members, first, released):
    """A lease unknown to the second member was ended by the first, if the request may have reached that."""
    leases, said = members
    said += [first(), not_found()]
    assert leases.revoke(1) is released


def test_a_lease_that_the_first_member_does_not_know_has_ended(members):
    """A single answer that the lease is unknown is a loss."""
    leases, said = members
    said += [not_found()]
    assert leases.revoke(1) is False


def test_without_the_rule_a_release_that_worked_is_called_a_loss(members, monkeypatch):
    """The mutant of the first test."""
    monkeypatch.setattr(Refused, "repeated", property(lambda error: False, lambda error, value: None))
    leases, said = members
    said += [lost_reply(), not_found()]
    assert leases.revoke(1) is False


# etcd: extensions of one hold at the same time


class Cluster:
    """Leases and the keys bound to them, as etcd has them, behind `Client` and `_rewritten`."""

    def __init__(self):
        self.bound_to: int | None = 1
        self.alive = {1}
        self.renewals = 0

    def renew(self, lease):
        """Say whether the lease is alive."""
        self.renewals += 1
        return lease in self.alive

    def grant(self, lease, ttl):
        """Have a new lease."""
        self.alive.add(lease)

    def revoke(self, lease):
        """End the lease, and with it the key if that is bound to it."""
        self.alive.discard(lease)
        if self.bound_to == lease:
            self.bound_to = None
        return True


class Counted:
    """A mutex that counts who wants it."""

    def __init__(self, mutex):
        self._mutex, self.wanted = mutex, 0

    def __enter__(self):
        self.wanted += 1
        self._mutex.__enter__()

    def __exit__(self, *error):
        self._mutex.__exit__(*error)


def extended_twice(mutex, monkeypatch):
    """Extend one hold from two threads, the second beginning while the first puts another lease there."""
    backend, cluster = EtcdBackend(read_alias("a", {"LOCATION": MEMBERS})), Cluster()
    hold = QueueEntry("n", 1, token=1, deadline=now() + 10, lease=1, length=10)
    monkeypatch.setattr(hold, "mutex", turns := Counted(mutex))
    backend._holds.add("k", "o", hold)
    is_asked, rewritten = threading.Event(), threading.Event()

    def grant(lease, ttl):
        cluster.alive.add(lease)
        is_asked.set()
        until(
            lambda: turns.wanted == 2 and (not isinstance(mutex, nullcontext) or cluster.renewals == 2),
            PATIENCE,
        )

    def write(hold, owner, ttl, lease):
        if lease == 1:
            assert rewritten.wait(PATIENCE)
        cluster.bound_to = lease
        rewritten.set()
        return {"succeeded": True}

    monkeypatch.setattr(cluster, "grant", grant)
    monkeypatch.setattr(backend, "_client", cluster)
    monkeypatch.setattr(backend, "_write", write)
    with ThreadPoolExecutor(2) as pool:
        longer = pool.submit(backend.extend, "k", "o", 60.0)
        assert is_asked.wait(PATIENCE)
        shorter = pool.submit(backend.extend, "k", "o", 5.0)
        longer.result(PATIENCE)
        shorter.result(PATIENCE)
    backend._holds.reset()
    return cluster


def test_extensions_of_one_etcd_hold_leave_the_key_in_place(monkeypatch):
    """Two extensions at once, one of which needs a longer lease, leave the key bound to a living lease."""
    cluster = extended_twice(threading.Lock(), monkeypatch)
    assert cluster.bound_to in cluster.alive


def test_without_turns_the_key_of_an_etcd_hold_is_deleted(monkeypatch):
    """The mutant of the test above: the key is bound to a lease that was revoked, or gone."""
    cluster = extended_twice(nullcontext(), monkeypatch)
    assert cluster.bound_to not in cluster.alive


def test_of_overlapping_extensions_a_hold_keeps_the_longest(monkeypatch):
    """The hold outlives the lease, whichever answer comes last; only `shorten` shortens it."""
    backend = EtcdBackend(read_alias("a", {"LOCATION": MEMBERS}))
    hold = QueueEntry("n", 1, token=1, deadline=now() + 60)
    backend._holds.add("k", "o", hold)
    asked: list[float] = []

    def extended(owner, hold, seconds):
        asked.append(round(seconds))
        return True

    monkeypatch.setattr(backend, "_extended", extended)
    for ttl in (100.0, 30.0):
        assert backend.extend("k", "o", ttl)
        assert hold.deadline > now() + 90
    assert backend.shorten("k", "o", 30.0)
    assert hold.deadline < now() + 31
    assert asked == [100, 100, 30]
    backend._holds.reset()


# ZooKeeper: the connection is lost under a deletion


@pytest.mark.parametrize(("later", "released"), [(1, True), (2, False)])
def test_a_deletion_that_is_repeated(monkeypatch, later, released):
    """A node that is gone at the second try was deleted by the first, unless its session ended between."""
    backend = ZooKeeperBackend(read_alias("a", {"LOCATION": "localhost:1"}))
    answers = [Dropped("lost"), [None, None]]

    def ask(*_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(backend._session, "ask", ask)
    monkeypatch.setattr(ZooKeeperSession, "number", property(lambda _: 1 if len(answers) == 2 else later))
    assert backend._withdraw(QueueEntry("/n", 1)) is released


# advisory locks: the connection breaks under the release


@pytest.fixture
def advisory(postgresql_locks, django_db_blocker):
    """PostgreSQL's session locks."""
    entry = {"BACKEND": ADVISORY, "OPTIONS": postgresql_locks["OPTIONS"]}
    with django_db_blocker.unblock(), override_settings(LOCKING={"default": entry}):
        yield locks["default"]


def broken(session, monkeypatch, *, served):
    """Have the next request on the session fail, after the server has served it or before."""
    ask = session.connection.cursor

    class Cursor:
        """A cursor whose connection breaks."""

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return False

        def execute(self, statement, asked):
            """Send it or not, and lose the answer."""
            if served:
                with ask() as cursor:
                    cursor.execute(statement, asked)
            raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(session.connection, "cursor", Cursor)


@pytest.mark.parametrize("served", [True, False])
def test_a_connection_that_breaks_under_the_release_has_released(advisory, served, monkeypatch):
    """The lock was held until then and is free now, whether the server served the request or not."""
    owner = new_owner()
    advisory.try_acquire("k", owner, 30.0)
    broken(advisory._holds["k", owner], monkeypatch, served=served)
    assert advisory.release("k", owner) is True
    until(lambda: advisory.holder("k") is None, PATIENCE)


def test_an_advisory_lock_whose_session_was_ended_is_lost(advisory):
    """A session that the server ended before the release is a loss."""
    owner = new_owner()
    advisory.try_acquire("k", owner, 30.0)
    assert advisory.force_release("k", owner)
    assert advisory.release("k", owner) is False
