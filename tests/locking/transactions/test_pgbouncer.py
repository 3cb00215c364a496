"""A real pgbouncer before PostgreSQL: which forms of the lock it breaks, and that those are refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from django.test.utils import override_settings

from locking import LockNotAcquired, LockNotSupported, get_lock, locked_transaction
from locking.core.handler import locks
from locking.testing.contract.base import begin
from tests.backends import ADVISORY, DATABASE
from tests.support.pgbouncer import needs_pgbouncer, pgbouncer

pytestmark = needs_pgbouncer

TRANSACTION = "locking.backends.database.TransactionLockBackend"
PATIENCE = 30.0


@pytest.fixture
def pooled(request, postgresql_locks, django_db_blocker):
    """Return what makes `LOCKING` on a backend, through a pooler of the test's mode."""
    using = postgresql_locks["OPTIONS"]["using"]
    with django_db_blocker.unblock(), pgbouncer(connections[using].settings_dict, request.param) as entry:
        connections.settings["bounced"] = entry

        def on(backend: str, **options: Any) -> override_settings:
            return override_settings(
                LOCKING={"default": {"BACKEND": backend, "OPTIONS": {"using": "bounced", **options}}}
            )

        yield on
        connections["bounced"].close()
        del connections["bounced"]
        del connections.settings["bounced"]


by_transaction = pytest.mark.parametrize("pooled", ["transaction"], indirect=True)


@by_transaction
def test_session_locks_are_refused_behind_it(pooled):
    """It would give the session, and the lock in it, to the next client: no lock, and the check says so."""
    with pooled(ADVISORY):
        with pytest.raises(LockNotSupported, match="connection pooler"):
            get_lock("a", ttl=30).try_acquire()
        assert [message.id for message in locks["default"].check(live=True)] == ["locking.E111"]


@by_transaction
def test_rows_exclude_through_it(pooled):
    """A row for each lock needs no session: two threads, one holder, tokens that rise."""
    with pooled(DATABASE):
        first = get_lock("a", ttl=30).acquire()
        with pytest.raises(LockNotAcquired):
            begin(get_lock("a", ttl=30, wait=0).acquire).result(timeout=PATIENCE)
        first.release()
        second = begin(get_lock("a", ttl=30, wait=5).acquire).result(timeout=PATIENCE)
        assert second.fencing_token > first.fencing_token
        second.release()
        locks["default"].close()


@by_transaction
def test_locks_of_the_transaction_exclude_through_it(pooled):
    """pg_advisory_xact_lock ends with the transaction, wherever the pooler sends that."""

    def try_it() -> None:
        try:
            with locked_transaction("a", using="bounced", wait=0):
                pass
        finally:
            connections["bounced"].close()

    with pooled(TRANSACTION):
        with (
            locked_transaction("a", using="bounced"),
            pytest.raises(LockNotAcquired),
        ):
            begin(try_it).result(timeout=PATIENCE)
        begin(try_it).result(timeout=PATIENCE)


@pytest.mark.parametrize("pooled", ["session"], indirect=True)
def test_session_locks_hold_behind_one_that_pools_sessions(pooled):
    """With `session_pooling` the lock is taken, excludes, and is free after its release."""
    with pooled(ADVISORY, session_pooling=True):
        lease = get_lock("a", ttl=30).acquire()
        with pytest.raises(LockNotAcquired):
            begin(get_lock("a", ttl=30, wait=0).acquire).result(timeout=PATIENCE)
        lease.release()
        begin(get_lock("a", ttl=30, wait=5).acquire).result(timeout=PATIENCE).release()
        locks["default"].close()
