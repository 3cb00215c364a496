"""A real pgbouncer before PostgreSQL: which forms of the lock it breaks, and that those are refused."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test.utils import override_settings

from locking import LockNotAcquired, LockNotSupported, get_lock, locked_transaction
from locking.core.handler import locks
from locking.testing.contract.base import begin
from tests.backends import ADVISORY, DATABASE

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no pgbouncer on PATH (Debian: pgbouncer)")

TRANSACTION = "locking.backends.database.TransactionLockBackend"
PORT = 6432
PATIENCE = 30.0

CONFIG = """
[databases]
{name} = host={host} port={port} user={user} password={password} dbname={name}
[pgbouncer]
listen_addr =
listen_port = {pool_port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = 5
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
pidfile = {folder}/pid
"""


@contextmanager
def pgbouncer(database: dict[str, Any], mode: str) -> Iterator[dict[str, Any]]:
    """Run one, and yield the entry of DATABASES that leads through it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bouncer") as name:
        folder = Path(name)
        known = {key.lower(): database[key] or "" for key in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
        config = CONFIG.format(
            **{**known, "port": known["port"] or 5432}, pool_port=PORT, folder=folder, mode=mode
        )
        (folder / "ini").write_text(config)
        process = subprocess.Popen([str(PROGRAM), "-q", *_as_another(folder), str(folder / "ini")])
        try:
            _await_socket(folder / f".s.PGSQL.{PORT}")
            yield {**database, "HOST": str(folder), "PORT": str(PORT), "DISABLE_SERVER_SIDE_CURSORS": True}
        finally:
            process.terminate()
            process.wait()


def _as_another(folder: Path) -> list[str]:
    """pgbouncer doesn't run as root."""
    if os.geteuid():
        return []
    user = pwd.getpwnam("nobody")
    folder.chmod(0o755)
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["-u", "nobody"]


def _await_socket(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            return
        time.sleep(0.01)
    raise AssertionError("pgbouncer didn't open its socket")


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
