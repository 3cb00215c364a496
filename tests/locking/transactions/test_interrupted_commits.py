"""A COMMIT that the server may still be at work on keeps its locks: they end with their ttl, not before."""

from __future__ import annotations

import inspect
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    connections,
)

from locking import distributed_lock, get_lock, locked_transaction
from locking.utils.databases import may_still_commit
from tests.locking.support.helpers import committed, elsewhere
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

GATE = 20_031_114
"""The number of the advisory lock before which the server waits in COMMIT."""
AT_THE_GATE = """
SELECT 1 FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
 WHERE datname = current_database() AND locktype = 'advisory' AND objid = %s AND NOT granted
"""
AT_COMMIT = """
CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {}; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON auth_group DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.name = 'row') EXECUTE FUNCTION at_commit()
"""


class Limit(Exception):
    """As Celery's SoftTimeLimitExceeded: a signal's handler raises it."""


@contextmanager
def at_commit(statement: str) -> Iterator[None]:
    """Have the server run this in the COMMIT of a row."""
    with connection.cursor() as cursor:
        cursor.execute(AT_COMMIT.format(statement))
    try:
        yield
    finally:
        connection.close()
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER at_commit ON auth_group; DROP FUNCTION at_commit()")


class Gate:
    """COMMIT waits in the server before it; there a signal strikes, whose handler raises `error`."""

    error: type[BaseException] = Limit

    def __init__(self) -> None:
        self._closed, self._struck, self._open = threading.Event(), threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._keep)

    def _keep(self) -> None:
        """Hold the gate on a connection of its own, and send the signal while a COMMIT is at it."""
        main = threading.main_thread().ident
        assert main is not None
        try:
            with connection.cursor() as cursor:

                def waits() -> bool:
                    cursor.execute(AT_THE_GATE, [GATE])
                    return cursor.fetchone() is not None

                cursor.execute("SELECT pg_advisory_lock(%s)", [GATE])
                self._closed.set()
                until(lambda: waits() or self._open.is_set())
                while not (self._struck.is_set() or self._open.is_set()):
                    signal.pthread_kill(main, signal.SIGUSR1)
                    self._struck.wait(timeout=0.5)  # psycopg looks for signals when none came for 0.1 s
                self._open.wait(timeout=60)
        finally:
            connections.close_all()

    def strike(self, _: int, frame: FrameType | None) -> None:
        """Raise it in psycopg's wait: raised in its protocol's generator it leaves nothing to wait for."""
        if frame is None or frame.f_code.co_flags & inspect.CO_GENERATOR or self._struck.is_set():
            return
        self._struck.set()
        raise self.error

    def start(self) -> None:
        """Close it."""
        self._keeper.start()
        assert self._closed.wait(timeout=30)

    def open(self) -> None:
        """Let the COMMIT finish."""
        self._open.set()
        self._keeper.join(timeout=60)


@pytest.fixture
def gate(transactional_db: None) -> Iterator[Gate]:
    """The server waits in each COMMIT of a row until this is opened."""
    gate = Gate()
    before = signal.signal(signal.SIGUSR1, gate.strike)
    try:
        with at_commit(f"PERFORM pg_advisory_xact_lock({GATE})"):
            gate.start()
            yield gate
            gate.open()
    finally:
        gate.open()
        signal.signal(signal.SIGUSR1, before)


# --- the forms of a transaction under a lock --------------------------------------------------------------


def add() -> None:
    """Write the row."""
    Group.objects.create(name="row")


def in_a_block() -> None:
    """The plain form."""
    with locked_transaction("shop"):
        add()


def in_a_function() -> None:
    """The decorator."""
    distributed_lock(key="'shop'")(add)()


def with_retries() -> None:
    """The lock is around as many transactions as it takes."""
    distributed_lock(key="'shop'", retries=2)(add)()


def with_a_fence() -> None:
    """The signal is no answer there, either."""
    with locked_transaction("shop", fenced=True):
        add()


def under_a_plain_lock() -> None:
    """The lock is released by the outer block."""
    with get_lock("shop"), locked_transaction("shop"):
        add()


def among_several_names() -> None:
    """One transaction under two locks."""
    with locked_transaction("other", "shop"):
        add()


OWN = [in_a_block, in_a_function, with_retries, with_a_fence, under_a_plain_lock, among_several_names]


def names_of(form: Callable[[], None]) -> list[str]:
    """The names of its locks."""
    return ["other", "shop"] if form is among_several_names else ["shop"]


def is_locked(name: str = "shop") -> bool:
    """Whether another thread finds the lock taken."""
    return elsewhere(get_lock(name).locked)


@pytest.mark.parametrize("form", OWN)
def test_a_commit_that_still_runs_keeps_its_lock(gate: Gate, form: Callable[[], None]) -> None:
    """A limit strikes while the server commits: it comes out, and no other caller gets the lock meanwhile."""
    with pytest.raises((Limit, DatabaseError)) as raised:
        form()
    assert committed() == []
    assert all(map(is_locked, names_of(form)))
    assert raised.type is Limit
    gate.open()
    until(lambda: committed() == ["row"])
    assert all(map(is_locked, names_of(form))), "they end with their ttl"


def test_a_commit_that_still_runs_on_one_of_two_databases_keeps_the_lock(
    gate: Gate, second_database: str
) -> None:
    """The other database rolls back and answers that: it is not the last one that decides."""
    with (
        pytest.raises((Limit, DatabaseError)),
        locked_transaction("shop", using=[second_database, "default"]),
    ):
        add()
    assert committed() == []
    assert is_locked()


def test_mutant_a_release_that_believes_any_error_is_before_the_commit(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant takes what ended the wait for the end of the COMMIT: the next holder reads old data."""
    monkeypatch.setattr("locking.utils.databases.may_still_commit", lambda *_: False)
    read: list[str] = []

    def next_holder() -> None:
        with locked_transaction("shop", wait=0):
            read.extend(Group.objects.values_list("name", flat=True))

    with suppress(Limit, DatabaseError):
        in_a_block()
    elsewhere(next_holder)
    assert read == []
    connection.close()
    gate.open()
    until(lambda: committed() == ["row"])


def test_the_lease_is_not_renewed_any_more(gate: Gate) -> None:
    """The lock isn't kept without end: its ttl is all that it is left to, and the connection works again."""
    with pytest.raises(Limit), locked_transaction("shop") as lease:
        add()
    assert not lease.leases[0].renewed
    assert 0 < elsewhere(lambda: lease.leases[0].backend.holder(lease.key)).remaining <= lease.ttl  # type: ignore[union-attr, operator]
    with locked_transaction("other"):
        Group.objects.create(name="later")
    assert committed() == ["later"]
    assert not is_locked("other")


def test_the_log_says_why_the_lock_stays(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """The log of a lock without a release names the COMMIT."""
    with pytest.raises(Limit):
        in_a_block()
    assert "the answer to a COMMIT under the lock 'shop' is missing" in caplog.text


# --- what has ended releases at once ----------------------------------------------------------------------


@pytest.mark.parametrize("form", OWN)
def test_ctrl_c_ends_the_commit_and_releases(gate: Gate, form: Callable[[], None]) -> None:
    """psycopg cancels the COMMIT for it and waits for that: nothing is stored, and the lock is free."""
    gate.error = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        form()
    assert committed() == []
    assert not is_locked()


@pytest.mark.parametrize("form", OWN)
@pytest.mark.parametrize("code", ["23514", "40001", "57014"])
def test_a_commit_that_was_refused_releases_at_once(form: Callable[[], None], code: str) -> None:
    """A broken constraint, a serialization failure or a time-out in COMMIT is an answer."""
    with at_commit(f"RAISE EXCEPTION 'no' USING ERRCODE = '{code}'"):
        with pytest.raises(DatabaseError, match="no"):
            form()
        assert committed() == []
        assert not is_locked()


@pytest.mark.parametrize("form", [in_a_block])
def test_a_limit_in_the_body_releases_at_once(form: Callable[[], None], monkeypatch: Any) -> None:
    """It rolls back before COMMIT, so nothing runs on."""

    def interrupted() -> None:
        Group.objects.create(name="row")
        raise Limit

    monkeypatch.setitem(globals(), "add", interrupted)
    with pytest.raises(Limit):
        form()
    assert committed() == []
    assert not is_locked()


SILENT = [
    OperationalError("server closed"),
    OperationalError(2013, "Lost connection"),
    InterfaceError("gone"),
]
ANSWERS = [
    OperationalError(4031, "disconnected by the server because of inactivity"),
    OperationalError(1205, "Lock wait timeout"),
    OperationalError(1213, "Deadlock"),
    IntegrityError("no"),
]


@pytest.mark.parametrize("error", [*SILENT, Limit(), SystemExit()], ids=repr)
def test_on_mysql_a_broken_connection_or_a_signal_leaves_the_commit_running(error: BaseException) -> None:
    """MySQL goes on with the COMMIT of a client that has gone, as PyMySQL's has after a read time-out."""
    assert may_still_commit(SimpleNamespace(vendor="mysql", connection=None), error)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", ANSWERS, ids=repr)
def test_on_mysql_an_answer_ends_the_commit(error: BaseException) -> None:
    """The server has refused it."""
    assert not may_still_commit(SimpleNamespace(vendor="mysql", connection=None), error)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [OperationalError("database is locked"), Limit(), KeyboardInterrupt()], ids=repr
)
def test_on_sqlite_no_commit_runs_on(error: BaseException) -> None:
    """There is no server: when COMMIT has returned, nothing is under way."""
    with sqlite3.connect(":memory:") as raw:
        assert not may_still_commit(SimpleNamespace(vendor="sqlite", connection=raw), error)  # type: ignore[arg-type]
    raw.close()
