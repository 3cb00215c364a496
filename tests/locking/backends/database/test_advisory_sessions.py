"""PostgreSQL's session locks: a session is one hold's, from its grant to its release and no longer."""

import math
import socket
import threading
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connections
from django.test.utils import override_settings

from locking import BackendUnavailable
from locking.backends.base import Busy, Grant
from locking.backends.database import advisory
from locking.backends.database.advisory import Session
from locking.core.handler import locks
from locking.testing.contract.base import begin, until
from locking.utils.ownership import new_owner
from tests.backends import ADVISORY

PATIENCE = 30.0


@pytest.fixture
def backend(postgresql_locks, django_db_blocker):
    """The default alias, which has patience with a server that answers late."""
    entry = {"BACKEND": ADVISORY, "OPTIONS": {**postgresql_locks["OPTIONS"], "timeout": PATIENCE}}
    with django_db_blocker.unblock(), override_settings(LOCKING={"default": entry}):
        yield locks["default"]
        locks["default"].close()


def setting_of(backend, key, owner, name):
    """A setting of the session that a hold has."""
    with backend._holds[key, owner].connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return cursor.fetchone()[0]


def extend_too_late(backend, monkeypatch):
    """Extend a hold that is released, and whose session serves another hold, before the request is sent.

    Returns:
        What the extension said, and the lease and the owner of the other hold on the server.
    """
    first, second = (backend.key("first"), new_owner()), (backend.key("second"), new_owner())
    keep = Session.keep

    def overtaken(session, ttl):
        assert backend.release(*first)
        assert isinstance(backend.try_acquire(*second, 60.0), Grant)
        assert backend._holds[second].connection is session.connection
        return keep(session, ttl)

    backend.try_acquire(*first, 60.0)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "keep", overtaken)
        extended = backend.extend(*first, 90.0)
    reported = (
        setting_of(backend, *second, "idle_session_timeout"),
        backend.holder(second[0]).owner == second[1],
    )
    backend.release(*second)
    return extended, *reported


def test_an_extension_after_the_release_changes_no_other_lease(backend, monkeypatch):
    """A renewal that a release overtakes is refused, and the next hold of the session keeps its own lease."""
    assert extend_too_late(backend, monkeypatch) == (False, "1min", True)


def test_a_session_that_serves_after_its_release_is_found_out(backend, monkeypatch):
    """The mutant, whose session forgets its release, prolongs the other hold's lease and takes its name."""
    never = property(lambda session: False, lambda session, value: None)
    monkeypatch.setattr(Session, "_is_released", never, raising=False)
    assert extend_too_late(backend, monkeypatch) == (True, "90s", False)


def waiting_here(backend):
    """How many sessions wait for an advisory lock of this database; other tests have others."""
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    asked = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {here}"  # noqa: S608
    ((count,),) = backend._pool.fetch(asked)
    return count


def freeze_in_the_queue(backend, monkeypatch, seconds):
    """Grant the lock to a waiter that is frozen before it hears of that, and return what the next one gets.

    Args:
        seconds: how long the next one waits.
    """
    key, ttl = backend.key("frozen"), 0.5
    holder, stopped, following = new_owner(), new_owner(), new_owner()
    granted, thaw, asked = threading.Event(), threading.Event(), advisory._asked
    assert isinstance(backend.try_acquire(key, holder, 60.0), Grant)

    def frozen(connection, statement, *arguments):
        if statement is advisory.KEEP:
            granted.set()
            thaw.wait(PATIENCE)
        return asked(connection, statement, *arguments)

    monkeypatch.setattr(advisory, "_asked", frozen)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_timeout", 1.0)  # the longest silence that the server is promised
        waiter = begin(lambda: backend.wait_for(key, stopped, ttl, PATIENCE))
        until(lambda: waiting_here(backend) == 1, PATIENCE)
    backend.release(key, holder)
    assert granted.wait(PATIENCE)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(advisory, "_asked", asked)
            return backend.wait_for(key, following, ttl, seconds)
    finally:
        backend.release(key, following)
        thaw.set()
        waiter.exception(timeout=PATIENCE)
        backend.release(key, stopped)


@pytest.mark.whole
def test_the_server_ends_the_lease_of_a_waiter_that_was_frozen(backend, monkeypatch):
    """A process that is stopped while it waits, and granted the lock then, has it no longer than a holder."""
    assert isinstance(freeze_in_the_queue(backend, monkeypatch, PATIENCE), Grant)


@pytest.mark.whole
def test_a_wait_that_promises_the_server_nothing_is_found_out(backend, monkeypatch):
    """The mutant, which sets the lease after the grant only, leaves the lock to a frozen process."""
    promise = "set_config('idle_session_timeout', %(silence)s, false)"
    assert promise in advisory.PREPARE_TO_WAIT
    careless = advisory.PREPARE_TO_WAIT.replace(promise, "%(silence)s::text")
    monkeypatch.setattr(advisory, "PREPARE_TO_WAIT", careless)
    assert isinstance(freeze_in_the_queue(backend, monkeypatch, 3.0), Busy)


def test_a_wait_in_vain_leaves_its_session_to_the_pool(backend):
    """A connection that waited in vain is not ended by the server while it is idle."""
    key, holder = backend.key("vain"), new_owner()
    backend.try_acquire(key, holder, 60.0)
    assert isinstance(backend.wait_for(key, new_owner(), 0.5, 0.05), Busy)
    assert backend._pool.fetch("SELECT current_setting('idle_session_timeout')") == [("0",)]
    backend.release(key, holder)


def wait_on_a_closed_connection(backend):
    """Let a waiter get a connection of the pool that the server has closed, and return what it hears."""
    key, holder, other = backend.key("closed"), new_owner(), new_owner()
    backend.try_acquire(key, holder, 60.0)
    closed, fresh = backend._pool.connect(), backend._pool.connect()
    backend._pool.fetch("SELECT pg_terminate_backend(%s, 30000)", [closed.connection.info.backend_pid])
    backend._pool.close()
    backend._pool.give_back(closed)
    backend._pool.give_back(fresh)
    waiter = backend.waiter(key, new_owner(), 60.0)
    assert isinstance(waiter.try_acquire(queue=True), Busy)
    backend.try_acquire(backend.key("other"), other, 60.0)  # has the fresh one from now on
    try:
        return waiter.wait(2.0)  # the second connection has what the first left of it
    finally:
        backend.release(key, holder)
        backend.release(backend.key("other"), other)


@pytest.mark.whole
def test_a_waiter_gets_another_connection_for_one_that_was_closed_while_idle(backend):
    """A connection that the server has closed in the pool is no outage: the waiter waits on a new one."""
    assert isinstance(wait_on_a_closed_connection(backend), Busy)


def test_a_server_that_stays_away_ends_the_wait(backend, monkeypatch):
    """A second connection that breaks, too, is an outage, which the waiter raises."""
    monkeypatch.setattr(backend._pool, "connect", mock.Mock(side_effect=OperationalError("gone")))
    with pytest.raises(BackendUnavailable, match="gone"):
        backend.wait_for(backend.key("away"), new_owner(), 60.0, PATIENCE)
    assert backend._pool.connect.call_count == 2


def test_the_first_look_at_an_ended_session_tells(backend):
    """COMMIT looks once: what the server has said by then counts, however many reads that takes."""
    key, owner = backend.key("ended"), new_owner()
    assert isinstance(backend.try_acquire(key, owner, 60.0), Grant)
    pid = backend._holds[key, owner]._pid
    assert backend._pool.fetch("SELECT pg_terminate_backend(%s, 30000)", [pid]) == [(True,)]
    assert backend.hold_ends(key, owner) == -math.inf


def test_the_last_words_count_while_the_socket_is_open():
    """The server lets go of the lock between the two."""
    ours = mock.Mock()
    raw = mock.Mock(closed=False)
    heard: list[Any] = []
    ours.connection.add_notice_handler = heard.append
    advisory._hear_the_end(ours)
    raw.pgconn.is_busy.side_effect = lambda: heard[0](mock.Mock(severity_nonlocalized="FATAL"))
    one, other = socket.socketpair()
    with one, other:
        raw.fileno = one.fileno
        assert not advisory._is_quiet(raw, ours)
        raw.pgconn.is_busy.side_effect = lambda: heard[0](mock.Mock(severity_nonlocalized="WARNING"))
        ours.has_ended.clear()
        assert advisory._is_quiet(raw, ours)


@pytest.mark.whole
def test_a_limit_of_statements_ends_no_wait(backend, monkeypatch):
    """How long a statement may run says nothing of how long a lock may be waited for."""
    options = connections[backend._using].settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "options", "-c statement_timeout=1000")
    backend.close()  # the connections that are opened from here on have the limit
    key, owner = backend.key("limited"), new_owner()
    assert isinstance(backend.try_acquire(key, owner, 60.0), Grant)
    assert isinstance(backend.wait_for(key, new_owner(), 60.0, 1.5), Busy)
    assert backend.release(key, owner)
