"""A real pgbouncer before a test's PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orders.lab.race.process_guard import guarded
from tests.support.processes import until

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="no pgbouncer on PATH (Debian: pgbouncer)")
PORT = 6432

CONFIG = """
[databases]
{name} = host={host} port={port} user={user} password={password} dbname={name}
[pgbouncer]
listen_addr =
listen_port = {pool_port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
ignore_startup_parameters = extra_float_digits,options
logfile = {folder}/log
pidfile = {folder}/pid
"""


def version() -> tuple[int, ...]:
    """Return the version of the one that is installed."""
    said = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[1].split(".")[:2])


@contextmanager
def pgbouncer(database: dict[str, Any], mode: str, size: int = 5) -> Iterator[dict[str, Any]]:
    """Run one, and yield the entry of DATABASES that leads through it.

    Args:
        database: the entry that leads to PostgreSQL.
        mode: `pool_mode`: session, transaction or statement.
        size: connections that it keeps to PostgreSQL.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bouncer") as name:
        folder = Path(name)
        known = {key.lower(): database[key] or "" for key in ("NAME", "HOST", "PORT", "USER", "PASSWORD")}
        known |= {"port": known["port"] or 5432}
        (folder / "ini").write_text(
            CONFIG.format(**known, pool_port=PORT, folder=folder, mode=mode, size=size)
        )
        process = subprocess.Popen([str(PROGRAM), "-q", *_as_another(folder), str(folder / "ini")])
        with guarded(process):
            try:
                door = str(folder / f".s.PGSQL.{PORT}")
                until(lambda: _opens(door), "pgbouncer opens its socket", despite=(OSError,))
                yield {**database, "HOST": name, "PORT": str(PORT), "DISABLE_SERVER_SIDE_CURSORS": True}
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


def _opens(door: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(door)
    return True
