"""Locks in the database, beyond the contract: their own connections, their wake-ups, their housekeeping."""

import os
import threading
from contextlib import contextmanager

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction
from django.test.utils import override_settings

from locking import BackendError, LockLost, LockNotSupported, get_lock
from locking.backends.base import Busy, Grant
from locking.handler import locks
from locking.identity import new_owner
from locking.testing.contract.base import begin, elsewhere, until
from tests.backends import ADVISORY, DATABASE
from tests.locking.pooler import pooler_to

PATIENCE = 15.0
DAY_US = 86_400_000_000


@contextmanager
def locking_on(backend: str, **options: object):
    """The default alias on this backend."""
    with override_settings(LOCKING={"default": {"BACKEND": backend, "OPTIONS": options}}):
        yield locks["default"]


@pytest.fixture(params=["postgresql", "mariadb", "sqlite"])
def rows(request, django_db_blocker):
    """Locks in rows, on each engine."""
    entry = request.getfixturevalue(f"{request.param}_locks")
    with django_db_blocker.unblock(), locking_on(DATABASE, **entry["OPTIONS"]) as backend:
        yield backend


@pytest.fixture
def postgresql(postgresql_locks, django_db_blocker):
    """Locks in rows on PostgreSQL."""
    with django_db_blocker.unblock(), locking_on(DATABASE, **postgresql_locks["OPTIONS"]) as backend:
        yield backend


@pytest.fixture
def advisory(postgresql_locks, django_db_blocker):
    """PostgreSQL's session locks."""
    with django_db_blocker.unblock(), locking_on(ADVISORY, **postgresql_locks["OPTIONS"]) as backend:
        yield backend


def test_a_rollback_of_the_caller_does_not_take_the_lock_with_it(postgresql):
    """The lock is on a connection of its own: neither the caller's rollback nor its closing reaches it."""
    using = postgresql._using
    with get_lock("own", ttl=30):
        with transaction.atomic(using):
            transaction.set_rollback(True, using)
        connections[using].close()
        close_old_connections()
        assert elsewhere(get_lock("own").try_acquire) is None


def test_a_lock_taken_inside_a_transaction_is_seen_at_once(postgresql):
    """Inside the caller's open transaction the lock is committed all the same."""
    using = postgresql._using
    with transaction.atomic(using), get_lock("within", ttl=30, on_open_transaction="ignore"):
        assert elsewhere(get_lock("within").locked)
    connections[using].close()


def test_one_row_a_lock_is_kept_when_it_is_free(rows):
    """A released lock's row stays, with its token; the next hold writes into it."""
    key = rows.key("kept-row")
    first = rows.try_acquire(key, new_owner(), 30.0)
    assert rows.release(key, _holder(rows, key))
    second = rows.try_acquire(key, new_owner(), 30.0)
    assert second.token > first.token
    assert rows.release(key, _holder(rows, key))
    assert rows.count_held(prefix=key) == 0


def _holder(backend, key):
    return backend.holder(key).owner


def test_tokens_rise_although_the_clock_went_back(rows):
    """A token is one more than the last where the database's clock is behind it."""
    key = rows.key("clock")
    rows.try_acquire(key, new_owner(), 30.0)
    rows.release(key, _holder(rows, key))
    ahead = 4_000_000_000_000_000
    _execute(rows, "UPDATE locking_row SET token = %s WHERE name = %s", [ahead, key])
    assert rows.try_acquire(key, new_owner(), 30.0).token == ahead + 1
    rows.release(key, _holder(rows, key))


def _execute(backend, statement, arguments):
    return backend._pool.run(lambda cursor, _: cursor.execute(statement, arguments))


def test_rows_that_nobody_used_for_a_day_are_swept(rows):
    """Housekeeping deletes what is free and old, and neither what is held nor what a fence has seen."""
    for name, fenced in (("old", False), ("fenced", True), ("held", False), ("young", False)):
        rows.try_acquire(rows.key(f"sweep-{name}"), new_owner(), 3600.0, fenced=fenced)
    for name in ("old", "fenced", "young"):
        rows.release(rows.key(f"sweep-{name}"), _holder(rows, rows.key(f"sweep-{name}")))
    _execute(
        rows,
        "UPDATE locking_row SET since = since - %s WHERE name IN ('sweep-old', 'sweep-fenced', 'sweep-held')",
        [2 * DAY_US],
    )

    assert rows.sweep() >= 1

    left = {row[0] for row in rows._pool.run(_names)}
    assert left & {"sweep-old", "sweep-fenced", "sweep-held", "sweep-young"} == {
        "sweep-fenced",
        "sweep-held",
        "sweep-young",
    }
    rows.release(rows.key("sweep-held"), _holder(rows, rows.key("sweep-held")))


def _names(cursor, _):
    cursor.execute("SELECT name FROM locking_row")
    return cursor.fetchall()


def test_an_expired_lock_is_taken_by_one_of_many(rows):
    """Of all who ask for a lock whose lease has ended, one gets it."""
    key, start = rows.key("takeover"), threading.Barrier(6)
    rows.try_acquire(key, new_owner(), 0.05)
    until(lambda: rows.holder(key) is None, PATIENCE)

    def ask():
        owner = new_owner()
        start.wait()
        while isinstance(outcome := rows.try_acquire(key, owner, 30.0), Busy) and outcome.outage:
            pass  # SQLite: another was writing
        return outcome

    crowd = [begin(ask) for _ in range(6)]
    outcomes = [asker.result(timeout=PATIENCE) for asker in crowd]
    assert sum(isinstance(outcome, Grant) for outcome in outcomes) == 1
    rows.release(key, _holder(rows, key))


def test_a_connection_that_the_server_closed_is_replaced(postgresql):
    """An idle connection that was terminated costs nobody an error."""
    with get_lock("replaced", ttl=30):
        _terminate_all(postgresql)
        assert get_lock("replaced").locked()


def _terminate_all(backend):
    with connections[backend._pool.using].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connections[backend._pool.using].close()


def test_waiters_survive_the_loss_of_the_listening_connection(postgresql):
    """When the connection that listens is terminated a waiter still gets the lock."""
    holder = get_lock("listening", ttl=60).acquire()
    waiter = begin(lambda: get_lock("listening", ttl=60).acquire(wait=60))
    until(lambda: postgresql._bell.listens, PATIENCE)
    _terminate_all(postgresql)
    holder.release()
    waiter.result(timeout=PATIENCE).release()


def test_a_frozen_server_is_given_up(postgresql, monkeypatch):
    """A request that isn't answered ends after the time-out as BackendUnavailable, not never."""
    with locking_on(DATABASE, using=postgresql._using, timeout=0.3) as impatient:
        sleep = "SELECT pg_sleep(60)"
        with pytest.raises(BackendError, match="doesn't answer"):
            impatient._pool.run(lambda cursor, _: cursor.execute(sleep))


@pytest.mark.django_db(transaction=True)
def test_no_connection_to_a_tests_database_is_kept():
    """An open one would prevent the database from being dropped at the end of the run."""
    with locking_on(DATABASE) as backend:
        with get_lock("in a test", ttl=30):
            assert get_lock("in a test").locked()
        assert not backend._pool._idle


def test_a_missing_table_is_told(tmp_path, django_db_blocker):
    """Without the migration the error says what to run."""
    connections.settings["untabled"] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": tmp_path / "empty.sqlite3",
        "OPTIONS": {},
    }
    try:
        with (
            django_db_blocker.unblock(),
            locking_on(DATABASE, using="untabled"),
            pytest.raises(BackendError, match="migrate --database untabled"),
        ):
            get_lock("any", ttl=1).try_acquire()
    finally:
        del connections.settings["untabled"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"using": "lost"}, "DATABASES doesn't have"),
        ({"using": None}, "DATABASES doesn't have"),
        ({"timeout": 0}, "must be seconds above 0"),
        ({"timeout": "5"}, "must be seconds above 0"),
        ({"tabel": "x"}, "doesn't know; it knows timeout, using"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    """A mistake in OPTIONS is told when the backend is made."""
    with (
        override_settings(LOCKING={"default": {"BACKEND": DATABASE, "OPTIONS": options}}),
        pytest.raises(ImproperlyConfigured, match=message),
    ):
        locks["default"]


def test_a_database_in_memory_is_refused(settings):
    """SQLite in memory can't hold locks: a second connection would see another database."""
    connections.settings["memory"] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {},
    }
    try:
        with locking_on(DATABASE, using="memory") as backend:
            assert [message.id for message in backend.check()] == ["locking.E009"]
            with pytest.raises(ImproperlyConfigured, match="lives in memory"):
                get_lock("any", ttl=1).try_acquire()
    finally:
        del connections["memory"]
        del connections.settings["memory"]


# --- advisory ---------------------------------------------------------------------------------------------


def test_the_end_of_the_session_reaches_the_section(advisory):
    """When the connection of a hold is terminated, its holder finds the lock lost at its next look."""
    with pytest.raises(LockLost), get_lock("session", ttl=60) as lease:
        _terminate_all(advisory)
        until(lambda: lease.remaining() == 0.0, PATIENCE)
        with pytest.raises(LockLost):
            lease.ensure_held()


def test_a_terminated_session_frees_the_lock(advisory):
    """Whoever comes next has the lock at once."""
    lease = get_lock("freed", ttl=60).acquire()
    _terminate_all(advisory)
    elsewhere(lambda: get_lock("freed", ttl=60).acquire(wait=PATIENCE)).release()
    with pytest.raises(LockLost):
        lease.release()


def test_the_server_ends_the_lease_of_a_frozen_holder(advisory):
    """The lease is kept by the server: nothing in the holder's process has to run for it to end."""
    key, owner = advisory.key("frozen"), new_owner()
    advisory.try_acquire(key, owner, 0.2)
    until(lambda: advisory.holder(key) is None, PATIENCE)
    assert not advisory.extend(key, owner, 30.0)


def test_a_forked_child_does_not_keep_its_parents_lock(advisory, tmp_path):
    """The lock goes with its holder, though a child that it forked lives on with a copy of its sockets."""
    told, tell = os.pipe()
    orphan_waits, orphan_ends = os.pipe()
    parent = os.fork()
    if parent == 0:
        _hold_and_fork(tell, orphan_waits)
    assert os.read(told, 1) == b"h"
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    get_lock("orphaned", ttl=60).acquire(wait=PATIENCE).release()
    os.write(orphan_ends, b".")
    for end in (told, tell, orphan_waits, orphan_ends):
        os.close(end)


def _hold_and_fork(tell, orphan_waits):
    for connection in connections.all(initialized_only=True):
        connection.connection = None
    lease = get_lock("orphaned", ttl=3600).acquire()
    if os.fork() == 0:
        os.write(tell, b"h")
        os.read(orphan_waits, 1)
        os._exit(0)
    os.read(orphan_waits, 1)
    os._exit(0 if lease else 1)


def test_a_pooler_is_refused(advisory, postgresql_locks):
    """Behind a pooler nobody is given a lock: another client could be given the same session."""
    using = postgresql_locks["OPTIONS"]["using"]
    with pooler_to(connections[using].settings_dict) as pooled:
        connections.settings["pooled"] = pooled
        try:
            with locking_on(ADVISORY, using="pooled") as backend:
                with pytest.raises(LockNotSupported, match="connection pooler"):
                    get_lock("pooled", ttl=30).try_acquire()
                assert [message.id for message in backend.check(live=True)] == ["locking.E111"]
            with locking_on(ADVISORY, using="pooled", session_pooling=True), get_lock("pooled", ttl=30):
                assert get_lock("pooled").locked()
        finally:
            del connections.settings["pooled"]


def test_advisory_locks_are_postgresqls(sqlite_locks):
    """On another engine the backend can't be made, and says which can."""
    with (
        override_settings(LOCKING={"default": {"BACKEND": ADVISORY, **sqlite_locks}}),
        pytest.raises(ImproperlyConfigured, match="take DatabaseBackend"),
    ):
        locks["default"]
