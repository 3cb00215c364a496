"""GET_LOCK of MySQL and MariaDB, beyond the contract: sessions, names, and who ends a lease."""

import os
import threading
from functools import partial
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test.utils import override_settings

from locking import BackendUnavailable, LockLost, LockNotAcquired, LockNotSupported, get_lock
from locking.backends.base import Busy, Grant
from locking.backends.database import mysql_locks
from locking.core.handler import locks
from locking.testing.contract.base import begin, counted_waiters, elsewhere, until
from locking.utils.ownership import new_owner
from tests.backends import MYSQL_LOCK

PATIENCE = 30.0


@pytest.fixture
def backend(mariadb_locks, django_db_blocker):
    """The default alias, on the session's MariaDB."""
    entry = {"BACKEND": MYSQL_LOCK, **mariadb_locks}
    with django_db_blocker.unblock(), override_settings(LOCKING={"default": entry}):
        yield locks["default"]


def ask(backend, statement, *asked):
    """One answer of the server, on a connection of the test's own."""
    with connections[backend._using].cursor() as cursor:
        cursor.execute(statement, asked)
        return cursor.fetchone()[0] if cursor.description else None


def session_of(backend, name):
    """The number of the session that has the lock."""
    return ask(backend, "SELECT IS_USED_LOCK(%s)", backend._name(backend.key(name)))


def kill(backend, name):
    """End the session that has the lock, as an operator would."""
    ask(backend, "KILL %s", session_of(backend, name))


def test_a_killed_session_is_a_lost_lock(backend):
    """The holder finds out by its socket, without a request, and its block ends with LockLost."""
    with pytest.raises(LockLost), get_lock("session", ttl=60) as lease:
        kill(backend, "session")
        until(lambda: lease.remaining() == 0.0, PATIENCE)
        with pytest.raises(LockLost):
            lease.ensure_held()


def test_a_holder_that_does_not_look_at_its_socket_is_found_out(backend, monkeypatch):
    """The mutant, for which every session is alive, never learns of the loss."""
    monkeypatch.setattr(mysql_locks, "_is_alive", lambda lease: True)
    lease = get_lock("unwatched", ttl=60).acquire()
    kill(backend, "unwatched")
    lease.ensure_held()
    lease.release()


def test_a_killed_sessions_lock_is_free(backend):
    """Anyone who comes next has the lock, and the former holder cannot release it."""
    lease = get_lock("freed", ttl=60).acquire()
    kill(backend, "freed")
    with elsewhere(lambda: get_lock("freed", ttl=60).acquire(wait=PATIENCE)):
        with pytest.raises(LockLost):
            lease.release()
        assert get_lock("freed").locked()


def test_the_server_ends_the_session_of_a_frozen_holder(backend):
    """With the process' own expiry switched off, the server ends the lease at the next whole seconds."""
    with mock.patch.object(backend._leases, "add"):
        assert isinstance(backend.try_acquire(backend.key("frozen"), new_owner(), 0.2), Grant)
    until(lambda: session_of(backend, "frozen") is None, PATIENCE)


@pytest.mark.parametrize(("ttl", "seconds"), [(0.2, 2), (30, 31), (31.5, 33), (10**9, 31_536_000)])
def test_the_servers_patience_is_longer_than_the_lease(backend, ttl, seconds):
    """The server never ends a session before its lease is over."""
    with mock.patch.object(backend._leases, "add"):  # this process does not end it, be the test slow or not
        backend.try_acquire(backend.key("patience"), new_owner(), ttl)
    (lease,) = backend._sessions.values()
    with lease.connection.cursor() as cursor:
        cursor.execute("SELECT @@wait_timeout")
        assert cursor.fetchone() == (seconds,)
    assert backend._finish(lease)


def test_an_extension_moves_the_servers_patience(backend):
    """A lease that was made longer isn't ended by the server at its first length."""
    key, owner = backend.key("longer"), new_owner()
    backend.try_acquire(key, owner, 10.0)
    assert backend.extend(key, owner, 60.0)
    (lease,) = backend._sessions.values()
    with lease.connection.cursor() as cursor:
        cursor.execute("SELECT @@wait_timeout")
        assert cursor.fetchone() == (61,)
    backend.release(key, owner)


def test_long_names_and_case_are_hashed(backend):
    """GET_LOCK knows 64 characters and no case: names that differ beyond that are different locks."""
    names = {backend._name(key) for key in ("a" * 200, "a" * 201, "A" * 200)}
    assert len(names) == 3
    assert all(len(name) <= 64 for name in names)


def test_databases_of_one_server_do_not_share_names(backend):
    """GET_LOCK is server-wide; the name of the database is part of the lock's."""
    name = backend._name("a")
    with mock.patch.dict(connections[backend._using].settings_dict, {"NAME": "another"}):
        assert backend._name("a") != name


def test_the_session_of_another_process_is_told(backend):
    """Of a holder elsewhere the server knows the session's number, which KILL takes."""
    with connections[backend._using].cursor() as cursor:
        name = backend._name(backend.key("abroad"))
        cursor.execute("SELECT GET_LOCK(%s, 0)", [name])
        number = session_of(backend, "abroad")
        with pytest.raises(LockNotAcquired) as caught:
            get_lock("abroad").acquire(wait=0)
        assert caught.value.holder == f"session {number}"
        cursor.execute("SELECT RELEASE_LOCK(%s)", [name])


def test_a_session_serves_the_next_hold(backend):
    """A released lock's session is kept: the next section makes no connection."""
    numbers = set()
    for _ in range(5):
        with get_lock("again", ttl=30):
            numbers.add(session_of(backend, "again"))
    assert len(numbers) == 1


def test_a_session_that_was_given_back_is_not_released_twice(backend):
    """The lease's end and a release at the same time end one hold, not the next one of that session."""
    key, owner, other = backend.key("twice"), new_owner(), new_owner()
    backend.try_acquire(key, owner, 60.0)
    (lease,) = backend._sessions.values()
    assert backend.release(key, owner)
    backend.try_acquire(key, other, 60.0)
    assert not backend._finish(lease)
    assert not backend._is_kept(lease, 60.0)
    assert backend.holder(key).owner == other
    backend.release(key, other)


def test_waiting_threads_stand_in_the_servers_queue(backend):
    """A waiter needs no polling: the server grants the lock, at the release."""
    with counted_waiters(backend) as waiters:
        with get_lock("queue", ttl=60):
            waiter = begin(get_lock("queue", ttl=60, wait=PATIENCE).acquire)
            until(waiters.number, PATIENCE)
            waiting = (
                "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT GET_LOCK%%'"
            )
            until(lambda: ask(backend, waiting), PATIENCE)
        waiter.result(timeout=PATIENCE).release()


@pytest.mark.parametrize("patience", [0.2, 1.4])
def test_mysql_is_never_asked_for_a_part_of_a_second(backend, patience):
    """MySQL rounds GET_LOCK's time-out: a part of a second is slept, and the lock asked for after it."""
    asked: list[object] = []
    connection = mock.Mock(mysql_is_mariadb=False)
    with mock.patch.object(mysql_locks, "_ask", side_effect=lambda _, *rest: asked.append(rest[-1])):
        mysql_locks._wait(connection, "a", patience)
    assert asked == [int(patience)]


def test_a_forked_child_does_not_keep_its_parents_lock(backend):
    """The lock goes with its holder, though a child that it forked lives on with a copy of its sockets."""
    told, tell = os.pipe()
    child_waits, child_ends = os.pipe()
    parent = os.fork()
    if parent == 0:
        _hold_and_fork(tell, child_waits)
    assert os.read(told, 1) == b"h"
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    get_lock("orphaned", ttl=60).acquire(wait=PATIENCE).release()
    os.write(child_ends, b".")
    for end in (told, tell, child_waits, child_ends):
        os.close(end)


def _hold_and_fork(tell, child_waits):
    for connection in connections.all(initialized_only=True):
        connection.connection = None
    lease = get_lock("orphaned", ttl=3600).acquire()
    if os.fork() == 0:
        os.write(tell, b"h")
        os.read(child_waits, 1)
        os._exit(0)
    os.read(child_waits, 1)
    os._exit(0 if lease else 1)


def test_a_proxy_is_refused(backend):
    """A session whose number isn't the one of the greeting belongs to a proxy, and may be given to others."""
    with connections[backend._using].cursor():
        raw = connections[backend._using].connection
    with mock.patch.object(type(raw), "thread_id", return_value=10**6):
        with pytest.raises(LockNotSupported, match="a proxy stands between"):
            get_lock("proxied").try_acquire()
        assert [message.id for message in backend.check(live=True)] == ["locking.E111"]
        with mock.patch.object(backend, "_session_pooling", True), get_lock("proxied"):
            pass


def test_the_doctor_asks_the_server(backend):
    """A live check of a reachable server finds nothing; of another one it says so."""
    assert backend.check(live=True) == []
    gone = mock.patch.object(backend._pool, "run", side_effect=BackendUnavailable("gone"))
    with gone, pytest.raises(BackendUnavailable):
        backend.check(live=True)


def test_an_end_that_forgets_the_session_is_found_out(backend, monkeypatch):
    """The mutant, whose hold keeps its session after the release, would end the next one's lock."""
    key, owner = backend.key("kept"), new_owner()
    backend.try_acquire(key, owner, 60.0)
    (lease,) = backend._sessions.values()
    connection = lease.connection
    assert backend.release(key, owner)
    lease.connection = connection
    backend.try_acquire(key, other := new_owner(), 60.0)
    assert backend._finish(lease)
    assert backend.holder(key) is None
    backend.release(key, other)


def test_get_lock_is_mysqls(sqlite_locks):
    """On another engine the backend can't be made, and says which can."""
    with (
        override_settings(LOCKING={"default": {"BACKEND": MYSQL_LOCK, **sqlite_locks}}),
        pytest.raises(ImproperlyConfigured, match="take DatabaseBackend"),
    ):
        locks["default"]


def test_two_threads_of_one_session_number_never_meet(backend):
    """Concurrent sections of one process have sessions of their own."""
    inside = threading.Barrier(3)

    def section(number):
        with get_lock(f"apart-{number}", ttl=60):
            inside.wait(PATIENCE)
            found = session_of(backend, f"apart-{number}")
            connections[backend._using].close()
            return found

    numbers = [begin(partial(section, number)) for number in range(3)]
    assert len({number.result(timeout=PATIENCE) for number in numbers}) == 3


def test_a_refusal_leaves_no_hold(backend):
    """A busy lock's refusal gives its connection back, and nothing else."""
    key = backend.key("refused")
    backend.try_acquire(key, owner := new_owner(), 60.0)
    assert isinstance(backend.try_acquire(key, new_owner(), 60.0), Busy)
    assert len(backend._sessions) == 1
    backend.release(key, owner)
    assert backend._sessions == {}
