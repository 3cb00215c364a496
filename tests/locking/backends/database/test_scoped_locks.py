"""Locks of the transaction itself: taken inside it, ended by its commit."""

import threading
from functools import partial

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test.utils import override_settings

from locking import (
    BackendUnavailable,
    LockNotAcquired,
    LockNotSupported,
    LockTransactionError,
    distributed_lock,
    get_lock,
    locked_transaction,
)
from locking.backends.database import transaction_locks
from locking.core.handler import locks
from locking.testing.contract.base import begin, elsewhere, until
from locking.utils.databases import was_overtaken

ROW = "locking.backends.database.RowLockBackend"
XACT = "locking.backends.database.TransactionLockBackend"
PATIENCE = 30.0

FORMS = [("postgresql", XACT), ("postgresql", ROW), ("mariadb", ROW)]


def form_of(form):
    """Return the name of one of `FORMS`."""
    return f"{form[1].rsplit('.', 1)[-1]}-{form[0]}"


@pytest.fixture(params=FORMS, ids=form_of)
def using(request, django_db_blocker):
    """The alias of the database on which the default locks are, with a table to write to."""
    vendor, backend = request.param
    entry = request.getfixturevalue(f"{vendor}_locks")
    alias = entry["OPTIONS"]["using"]
    with django_db_blocker.unblock(), override_settings(LOCKING={"default": {"BACKEND": backend, **entry}}):
        _execute(alias, "CREATE TABLE scoped_sale (buyer varchar(20) NOT NULL)")
        yield alias
        _execute(alias, "DROP TABLE scoped_sale")
        connections[alias].close()


def _execute(alias, statement, *arguments):
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, arguments)


def _sales(alias):
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT buyer FROM scoped_sale ORDER BY buyer")
        return [row[0] for row in cursor.fetchall()]


def _sell(alias, buyer):
    """Sell the only piece, unless it is sold."""
    if not _sales(alias):
        _execute(alias, "INSERT INTO scoped_sale (buyer) VALUES (%s)", buyer)


def _closing(alias, step):
    """Return `step` with this thread's connection closed behind it."""

    def run():
        try:
            return step()
        finally:
            connections[alias].close()

    return run


def test_the_commit_is_the_release(using):
    """A second transaction gets the lock when the first has committed, and reads what that one wrote."""
    inside = threading.Event()

    def second():
        inside.wait(PATIENCE)
        with locked_transaction("piece", using=using, wait=PATIENCE):
            _sell(using, "second")

    rival = begin(_closing(using, second))
    with locked_transaction("piece", using=using):
        inside.set()
        refused = elsewhere(_closing(using, lambda: _is_refused(using)))
        _sell(using, "first")
    rival.result(timeout=PATIENCE)
    assert refused
    assert _sales(using) == ["first"]


def test_a_process_that_never_used_the_name_is_refused_at_once(using, monkeypatch):
    """Whether the row is there it asks without waiting for its holder."""
    with locked_transaction("piece", using=using):
        monkeypatch.setattr(locks["default"], "_made", set(), raising=False)  # as in another process
        refused = elsewhere(_closing(using, lambda: _is_refused(using)))
    assert refused


@pytest.mark.whole
@pytest.mark.parametrize("using", FORMS[:2], ids=form_of, indirect=True)
def test_a_limit_of_statements_ends_no_wait(using):
    """A wait is bounded by `wait` alone, and PostgreSQL's own limit holds for what follows."""

    def impatient():
        with transaction.atomic(using):
            _execute(using, "SET LOCAL statement_timeout = '1s'")
            with pytest.raises(LockNotAcquired):
                get_lock("piece", wait=1.5).acquire()
            with connections[using].cursor() as cursor:
                cursor.execute("SHOW statement_timeout")
                return cursor.fetchone()[0]

    with locked_transaction("piece", using=using):
        assert elsewhere(_closing(using, impatient)) == "1s"


def _is_refused(using):
    try:
        with locked_transaction("piece", using=using, wait=0):
            return False
    except LockNotAcquired:
        return True


def test_a_rollback_is_a_release_too(using):
    """A body that fails takes its lock with it."""
    with pytest.raises(ZeroDivisionError), locked_transaction("piece", using=using):
        _sell(using, "no one")
        raise ZeroDivisionError
    assert not elsewhere(_closing(using, lambda: _is_refused(using)))
    assert _sales(using) == []


def test_a_waiter_times_out(using):
    """When the wait is over the body has not run, and the transaction is over, too."""

    def wait():
        with pytest.raises(LockNotAcquired), locked_transaction("piece", using=using, wait=0.3):
            raise AssertionError("the body ran")
        return connections[using].in_atomic_block

    with locked_transaction("piece", using=using):
        assert elsewhere(_closing(using, wait)) is False


def deadlock(using):
    """Let two transactions wait for each other's lock, and return what became of each."""
    both = threading.Barrier(2)

    def lock(first, second):
        with locked_transaction(first, using=using, wait=PATIENCE):
            if connections[using].vendor == "postgresql":
                _execute(using, "SET LOCAL deadlock_timeout = '50ms'")  # after a second it looks for a circle
            both.wait(PATIENCE)
            get_lock(second, wait=PATIENCE).acquire()

    orders = [("a", "b"), ("b", "a")]
    waiters = [begin(_closing(using, partial(lock, *order))) for order in orders]
    return [waiter.exception(timeout=PATIENCE) for waiter in waiters]


def test_a_deadlock_is_the_databases_error(using):
    """The transaction that the database gives up fails with an error that says so; the other goes on."""
    errors = [error for error in deadlock(using) if error is not None]
    assert [was_overtaken(error) for error in errors] == [True], errors


def test_a_deadlock_that_is_reported_as_an_outage_is_found_out(using, monkeypatch):
    """The mutant, for which no transaction was given up, says that the database doesn't answer."""
    monkeypatch.setattr(transaction_locks, "was_overtaken", lambda error: False)
    (error,) = [error for error in deadlock(using) if error is not None]
    assert isinstance(error, BackendUnavailable)


def test_a_decorated_function_is_one_transaction(using):
    """`@distributed_lock` takes these locks inside its transaction."""

    @distributed_lock(key="'piece:'+<number>", using=using, on_conflict="raise")
    def sell(number):
        assert connections[using].in_atomic_block
        _sell(using, f"buyer {number}")

    sell(1)
    sell(2)
    assert _sales(using) == ["buyer 1"]


def test_the_same_name_nests(using):
    """Inside, the same name is a savepoint of the same transaction."""
    with locked_transaction("piece", using=using), locked_transaction("piece", using=using):
        _sell(using, "nested")
    assert _sales(using) == ["nested"]


def test_outside_a_transaction_there_is_nothing_to_hold_it(using):
    """`get_lock` without a transaction is refused with the way out."""
    with pytest.raises(LockNotSupported, match="locked_transaction"):
        get_lock("piece").acquire()


def test_a_transaction_elsewhere_is_refused(using):
    """The lock ends with a transaction of its own database: another one says nothing about it."""
    with (
        pytest.raises(LockTransactionError, match="name it in using="),
        locked_transaction("piece", using="default"),
    ):
        raise AssertionError("the body ran")


def test_snapshots_are_refused(using):
    """Where the transaction's snapshot may be older than the lock, its holder would read old data."""
    connection = connections[using]
    connection.close()
    before = connection.settings_dict["OPTIONS"]
    level = "repeatable read" if connection.vendor == "mysql" else 3
    connection.settings_dict["OPTIONS"] = {**before, "isolation_level": level}
    connection.__dict__.pop("isolation_level", None)
    try:
        with (
            pytest.raises(LockTransactionError, match="snapshot may be older"),
            locked_transaction("piece", using=using),
        ):
            raise AssertionError("the body ran")
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = before
        if connection.vendor == "postgresql":
            vars(connection)["isolation_level"] = 2


def test_no_wait_of_the_lock_stays_behind(using):
    """The limit of the wait is taken back: the body's own statements wait as long as they did before."""
    question = (
        "SHOW lock_timeout"
        if connections[using].vendor == "postgresql"
        else "SELECT @@innodb_lock_wait_timeout"
    )

    def limit():
        with connections[using].cursor() as cursor:
            cursor.execute(question)
            return cursor.fetchone()[0]

    before = limit()
    holder_is_in, holder_may_go = threading.Event(), threading.Event()

    def hold():
        with locked_transaction("piece", using=using):
            holder_is_in.set()
            holder_may_go.wait(PATIENCE)

    holder = begin(_closing(using, hold))
    assert holder_is_in.wait(PATIENCE)
    threading.Timer(0.05, holder_may_go.set).start()
    with locked_transaction("piece", using=using, wait=PATIENCE):
        assert limit() == before
    holder.result(timeout=PATIENCE)


def test_tokens_are_neither_minted_nor_needed(using):
    """`fenced=True` is refused: anyone who lost such a lock has lost its transaction, too."""
    with pytest.raises(LockNotSupported, match="fencing"), locked_transaction("a", using=using, fenced=True):
        raise AssertionError("the body ran")


def test_session_and_transaction_exclude_each_other(postgresql_locks, django_db_blocker):
    """The two forms of PostgreSQL's advisory locks are one lock by one name."""
    entries = {
        "default": {"BACKEND": XACT, **postgresql_locks},
        "session": {"BACKEND": "locking.backends.database.AdvisoryLockBackend", **postgresql_locks},
    }
    alias = postgresql_locks["OPTIONS"]["using"]
    with django_db_blocker.unblock(), override_settings(LOCKING=entries):
        with (
            get_lock("both", ttl=30, backend="session"),
            pytest.raises(LockNotAcquired),
            locked_transaction("both", using=alias, wait=0),
        ):
            raise AssertionError("the body ran")
        with locked_transaction("both", using=alias):
            assert locks["default"].holder("both") is not None
            session = get_lock("both", backend="session", on_open_transaction="ignore")
            assert session.try_acquire() is None
        until(lambda: locks["default"].holder("both") is None, PATIENCE)
        connections[alias].close()


def test_sqlite_has_neither(sqlite_locks):
    """SQLite has no locks of rows: the backend can't be made, and says what can."""
    for backend in (ROW, XACT):
        with (
            override_settings(LOCKING={"default": {"BACKEND": backend, **sqlite_locks}}),
            pytest.raises(ImproperlyConfigured, match="take DatabaseBackend"),
        ):
            locks["default"]


def test_an_open_transaction_may_take_one(using):
    """Inside a transaction of one's own `get_lock` works: the lock lasts until that one ends."""
    with transaction.atomic(using):
        with get_lock("piece"):
            _sell(using, "own")
        assert elsewhere(_closing(using, lambda: _is_refused(using)))
    assert not elsewhere(_closing(using, lambda: _is_refused(using)))


OUTLASTING = {
    "release=False": lambda using: distributed_lock(key="'scoped'", using=using, release=False, ttl=60),
    "min_hold": lambda using: locked_transaction("scoped", using=using, min_hold=60),
}


@pytest.mark.parametrize("option", OUTLASTING)
def test_what_would_outlast_the_transaction_is_refused(using, option):
    """The lock ends with COMMIT: a function that must not run again at once would, without a notice."""
    runs = []
    submit = OUTLASTING[option](using)(lambda: runs.append(1))
    for _ in range(2):
        with pytest.raises(LockNotSupported, match=option):
            submit()
    assert runs == []
