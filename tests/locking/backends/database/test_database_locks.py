"""Locks in the database, beyond the contract: their own connections, their wake-ups, their housekeeping."""

import itertools
import os
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from unittest import mock

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, close_old_connections, connections, transaction
from django.test.utils import override_settings

from locking import (
    BackendError,
    BackendUnavailable,
    LockLost,
    LockNotSupported,
    get_lock,
    get_read_lock,
    get_write_lock,
)
from locking.backends.base import Busy, Grant
from locking.backends.database.connection_pool import ConnectionPool, Permit
from locking.core.handler import locks
from locking.core.pending_release import release_retrier
from locking.testing.contract.base import begin, elsewhere, until
from locking.utils.databases import setting_too_small
from locking.utils.ownership import new_owner
from tests.backends import ADVISORY, DATABASE
from tests.locking.support.pooler import pooler_to

PATIENCE = 30.0
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


def test_rows_that_no_client_used_for_a_day_are_swept(rows):
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
    """An idle connection that was terminated causes no error."""
    with get_lock("replaced", ttl=30):
        _terminate_all(postgresql)
        assert get_lock("replaced").locked()


def _terminate_all(backend):
    with connections[backend._pool.using].cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    connections[backend._pool.using].close()


def test_waiters_survive_the_loss_of_the_listening_connection(postgresql):
    """When the connection that listens is terminated a waiter still gets the lock."""
    holder = get_lock("listening", ttl=60).acquire()
    waiter = begin(lambda: get_lock("listening", ttl=60).acquire(wait=60))
    until(lambda: postgresql._listener.listens, PATIENCE)
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


def test_a_missing_table_is_reported(tmp_path, django_db_blocker):
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
        ({"max_connections": 0}, "must be a whole number, 1 or more, not 0"),
        ({"max_connections": True}, "must be a whole number, 1 or more, not True"),
        ({"tabel": "x"}, "doesn't know; it knows max_connections, timeout, using"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    """A mistake in OPTIONS is reported when the backend is made."""
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


# --- connections ------------------------------------------------------------------------------------------


def connections_to(backend):
    """Return how many connections others have to the backend's database, by the server."""
    with connections[backend._pool.using].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        count = cursor.fetchone()[0]
    connections[backend._pool.using].close()
    return count


def test_waiters_hold_no_connection(postgresql_locks, django_db_blocker):
    """Thirty threads that wait for one lock share three connections, and one that listens."""
    with (
        django_db_blocker.unblock(),
        locking_on(DATABASE, **postgresql_locks["OPTIONS"], max_connections=3) as backend,
    ):
        before = connections_to(backend)
        holder = get_lock("crowd", ttl=60).acquire()
        key = backend._id(backend.key("crowd"))
        crowd = [begin(lambda: _pass_through("crowd")) for _ in range(30)]
        until(lambda: len(backend._listener.subscribers.get(key, ())) == 30, PATIENCE)
        until(lambda: connections_to(backend) - before <= 3 + 1, PATIENCE)  # autovacuum's comes and goes
        holder.release()
        for waiter in crowd:
            waiter.result(timeout=60)
        until(lambda: connections_to(backend) - before <= 3 + 1, PATIENCE)


def _pass_through(name):
    get_lock(name, ttl=60).acquire(wait=60).release()


@contextmanager
def one_connection_in_use(postgresql_locks, **options):
    """A backend that may have one connection, which another thread uses until the event is set."""
    options = {**postgresql_locks["OPTIONS"], "max_connections": 1, **options}
    with locking_on(DATABASE, **options) as backend:
        used, over = threading.Event(), threading.Event()
        user = begin(lambda: backend._pool.run(lambda cursor, _: _use(used, over)))
        assert used.wait(PATIENCE)
        yield backend, over
        over.set()
        user.result(timeout=PATIENCE)


def _use(used, over):
    used.set()
    over.wait(PATIENCE)


def test_a_thread_waits_for_a_connection_in_use(postgresql_locks, django_db_blocker):
    """With all connections of the process in use a request waits for the first that is given back."""
    with django_db_blocker.unblock(), one_connection_in_use(postgresql_locks, timeout=60) as (_, over):
        asker = begin(get_lock("next", ttl=60).acquire)
        assert not asker.done()
        over.set()
        asker.result(timeout=PATIENCE).release()


def test_connections_in_use_for_too_long_are_reported(postgresql_locks, django_db_blocker):
    """A request that gets none of the process's connections in time says which option is too small."""
    in_use = one_connection_in_use(postgresql_locks, timeout=PATIENCE)  # for an answer of the server
    with django_db_blocker.unblock(), in_use as (backend, over):
        impatient = mock.patch.object(backend._pool, "_timeout", 0.05)
        with impatient, pytest.raises(BackendUnavailable, match="max_connections") as refused:
            get_lock("none", ttl=60).acquire(wait=0.1)
        assert not refused.value.sent
        over.set()
        get_lock("none", ttl=60).acquire(wait=PATIENCE).release()


def test_a_pool_without_a_bound_is_found_out(postgresql_locks, django_db_blocker, monkeypatch):
    """A mutant: a pool that opens a connection for anyone who asks fails the test above."""
    monkeypatch.setattr(ConnectionPool, "_enter", lambda pool: Permit())
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_connections_in_use_for_too_long_are_reported(postgresql_locks, django_db_blocker)


def released_after_a_lost_reply(rows, monkeypatch):
    """Acquire at the second try, as the first one's reply was lost, and release; return what follows."""
    take, replies, scheduled = type(rows)._take, [OperationalError("the connection was lost")], mock.Mock()
    monkeypatch.setattr(release_retrier, "schedule", scheduled)

    def lost(backend, cursor, asked):
        row = take(backend, cursor, asked)
        if replies:
            raise replies.pop()
        return row

    monkeypatch.setattr(type(rows), "_take", lost)
    lease = get_lock("late", ttl=60).acquire()
    lease.release()
    return lease.owner, [call.args[2] for call in scheduled.call_args_list]


def test_a_request_that_may_be_served_late_is_undone(rows, monkeypatch):
    """A frozen server process takes the lock after its release, for no caller: it is released once more."""
    owner, released = released_after_a_lost_reply(rows, monkeypatch)
    assert released == [owner]


def test_a_lost_permit_is_free_again(postgresql_locks, django_db_blocker):
    """An exception between having a permit and using it doesn't cost the permit."""
    options = {**postgresql_locks["OPTIONS"], "max_connections": 1}
    with django_db_blocker.unblock(), locking_on(DATABASE, **options) as backend:
        backend._pool._enter()
        get_lock("lost", ttl=60).acquire(wait=0).release()


@pytest.fixture
def role_of_one(postgresql_locks, django_db_blocker):
    """A role with a slot for a waiter and one for its listener, an alias for it, and what takes both.

    Its name is its own: a listener of the test before may still be connecting, which would take a slot.
    """
    default = connections[postgresql_locks["OPTIONS"]["using"]]
    role = f"holdfast_limited_{os.getpid()}_{next(ROLES)}"  # roles are of the whole server
    with django_db_blocker.unblock():
        _run_all(default, *(statement.format(role) for statement in ROLE))
        connections.settings[role] = {**default.settings_dict, "USER": role, "PASSWORD": "limited"}
        both = connections[role], connections[role].copy()
        for each in both:
            each.ensure_connection()

        def close() -> None:
            for each in both:
                each.close()

        yield SimpleNamespace(alias=role, close=close)
        close()
        del connections[role]
        del connections.settings[role]
        _run_all(default, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        default.close()


ROLES = itertools.count(1)
ROLE = (
    "CREATE ROLE {0} LOGIN PASSWORD 'limited' CONNECTION LIMIT 2",
    "GRANT USAGE ON SCHEMA public TO {0}",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO {0}",
)


def _run_all(connection, *statements):
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.parametrize("backend", [DATABASE, ADVISORY])
def test_a_server_without_a_slot_is_waited_for(role_of_one, backend):
    """A waiter that gets no connection asks again, and has the lock when there is a slot."""
    with locking_on(backend, using=role_of_one.alias):
        waiter = begin(lambda: get_lock("slot", ttl=60).acquire(wait=60))
        with pytest.raises(BackendUnavailable, match="CONNECTION LIMIT is too small"):
            get_lock("slot", ttl=60).acquire(wait=0)
        assert not waiter.done()
        role_of_one.close()
        waiter.result(timeout=60).release()


@pytest.mark.parametrize("backend", [DATABASE, ADVISORY])
def test_a_server_without_a_slot_says_which_setting_is_too_small(role_of_one, backend):
    """When the time is over, the error names the setting, and nothing was sent."""
    with locking_on(backend, using=role_of_one.alias):
        with pytest.raises(BackendUnavailable, match="the role's CONNECTION LIMIT is too small") as refused:
            get_lock("slot", ttl=60).acquire(wait=0.3)
        assert not refused.value.sent


def test_a_waiter_that_does_not_wait_for_a_slot_is_found_out(role_of_one, monkeypatch):
    """A mutant: a refusal for want of a slot is taken for an outage, and the waiter gives up."""
    monkeypatch.setattr("locking.backends.database.connection_pool.setting_too_small", lambda error: None)
    with pytest.raises((AssertionError, BackendUnavailable)):
        test_a_server_without_a_slot_is_waited_for(role_of_one, DATABASE)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("FATAL:  sorry, too many clients already", "max_connections"),
        (
            "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attr",
            "max_connections",
        ),
        ('FATAL:  too many connections for role "shop"', "the role's CONNECTION LIMIT"),
        ('FATAL:  too many connections for database "shop"', "the database's CONNECTION LIMIT"),
        ("FATAL:  no more connections allowed (max_client_conn)", "max_client_conn of pgbouncer"),
        (1040, "max_connections"),
        (1203, "max_user_connections"),
        ("connection refused", None),
        (2003, None),
    ],
)
def test_the_setting_that_is_too_small_is_known(text, setting):
    """The answers of PostgreSQL, pgbouncer and MySQL differ from an outage."""
    assert setting_too_small(OperationalError(text)) == setting
    assert setting_too_small(ValueError(text)) is None


# --- advisory ---------------------------------------------------------------------------------------------


def test_the_end_of_the_session_reaches_the_section(advisory):
    """When the connection of a hold is terminated, its holder finds the lock lost at its next look."""
    with pytest.raises(LockLost), get_lock("session", ttl=60) as lease:
        _terminate_all(advisory)
        until(lambda: lease.remaining() == 0.0, PATIENCE)
        with pytest.raises(LockLost):
            lease.ensure_held()


def test_a_terminated_session_frees_the_lock(advisory):
    """Anyone who comes next has the lock at once."""
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
    reported, tell = os.pipe()
    orphan_waits, orphan_ends = os.pipe()
    parent = os.fork()
    if parent == 0:
        _hold_and_fork(tell, orphan_waits)
    assert os.read(reported, 1) == b"h"
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    get_lock("orphaned", ttl=60).acquire(wait=PATIENCE).release()
    os.write(orphan_ends, b".")
    for end in (reported, tell, orphan_waits, orphan_ends):
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
    """Behind a pooler no lock is granted: another client could be given the same session."""
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
            with suppress(AttributeError):
                del connections["pooled"]


def test_advisory_locks_are_postgresqls(sqlite_locks):
    """On another engine the backend can't be made, and says which can."""
    with (
        override_settings(LOCKING={"default": {"BACKEND": ADVISORY, **sqlite_locks}}),
        pytest.raises(ImproperlyConfigured, match="take DatabaseBackend"),
    ):
        locks["default"]


def test_a_reader_does_not_pass_a_waiting_writer(advisory):
    """PostgreSQL's queue is fair to writers: while one waits, a reader that comes is refused."""
    here = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    waiting = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {here}"  # noqa: S608
    with get_read_lock("fair", ttl=60):
        writer = begin(get_write_lock("fair", ttl=60, wait=PATIENCE).acquire)
        until(lambda: advisory._pool.run(lambda cursor, _: _one(cursor, waiting)), PATIENCE)
        assert elsewhere(get_read_lock("fair", ttl=60).try_acquire) is None
    writer.result(timeout=PATIENCE).release()


def _one(cursor, statement):
    cursor.execute(statement)
    return cursor.fetchone()[0]


def test_the_write_lock_is_the_ordinary_lock(advisory):
    """`get_lock` excludes readers, and they exclude it."""
    with get_lock("both", ttl=60):
        assert elsewhere(get_read_lock("both").try_acquire) is None
        assert elsewhere(get_write_lock("both").try_acquire) is None
    with get_read_lock("both", ttl=60):
        assert elsewhere(get_lock("both").try_acquire) is None


def test_a_read_lock_that_is_not_shared_is_found_out(advisory, monkeypatch):
    """The mutant, whose readers take the exclusive form, lets only one of them in."""
    monkeypatch.setattr(advisory.variant("read"), "_form", advisory._form)
    with get_read_lock("mutant", ttl=60):
        assert elsewhere(get_read_lock("mutant").try_acquire) is None


@pytest.mark.whole
def test_a_row_that_another_locks_costs_no_other_lease_its_renewal(postgresql_locks, django_db_blocker):
    """An open transaction keeps one row of three locked: that lease is unknown, the others are extended."""
    options = {**postgresql_locks["OPTIONS"], "timeout": 0.5}
    with django_db_blocker.unblock(), locking_on(DATABASE, **options) as backend:
        leases = [(backend.key(f"many-{number}"), new_owner(), 30.0) for number in range(3)]
        for key, owner, ttl in leases:
            backend.try_acquire(key, owner, ttl)
        with transaction.atomic(backend._using), connections[backend._using].cursor() as cursor:
            cursor.execute("SELECT 1 FROM locking_row WHERE name = %s FOR UPDATE", [leases[1][0]])
            assert backend.extend_many(leases) == [True, None, True]
        for key, owner, _ in leases:
            backend.release(key, owner)
        connections[backend._using].close()
