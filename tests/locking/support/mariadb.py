"""A private MariaDB for the tests: started on a socket in a folder of its own, gone with the session."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orders.lab.race.process_guard import guarded

READY_WITHIN = 60.0

ATTEMPTS = 3  # of an installation: a machine under load once ended one that succeeds alone
# The machine's AIO requests are few and shared by all its servers.
FRUGAL = ["--innodb-buffer-pool-size=32M", "--innodb-use-native-aio=0"]

MISSING = "needs MariaDB: apt-get install mariadb-server (no running service is used)"


def programs() -> tuple[str, str] | None:
    """Return the server and its installer, where both are there."""
    places = "/usr/sbin:/usr/local/sbin:/usr/libexec"
    server = shutil.which("mariadbd") or shutil.which("mariadbd", path=places)
    installer = shutil.which("mariadb-install-db")
    return (server, installer) if server and installer else None


@contextmanager
def running_mariadb() -> Iterator[str]:
    """Yield the socket of a new, empty server."""
    found = programs()
    assert found is not None
    server, installer = found
    with tempfile.TemporaryDirectory(prefix="holdfast-mariadb-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        user = pwd.getpwuid(os.geteuid()).pw_name
        own = ["--no-defaults", f"--datadir={home / 'data'}", f"--user={user}", *FRUGAL]
        _install([installer, *own], home)
        with (home / "log").open("ab") as log:
            process = subprocess.Popen(
                [
                    server,
                    *own,
                    f"--socket={home / 'socket'}",
                    f"--pid-file={home / 'pid'}",
                    "--skip-networking",
                    "--innodb-flush-log-at-trx-commit=0",  # nothing here crashes it
                    "--character-set-server=utf8mb4",
                ],
                stdout=log,
                stderr=log,
            )
        with guarded(process):
            try:
                _wait_until_ready(process, home)
                yield str(home / "socket")
            finally:
                process.terminate()
                process.wait()


def _install(command: list[str], home: Path) -> None:
    for attempt in range(1, ATTEMPTS + 1):
        shutil.rmtree(home / "data", ignore_errors=True)
        with (home / "log").open("wb") as log:
            options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
            ended = subprocess.run([*command, *options], stdout=log, stderr=log)
        if ended.returncode == 0:
            return
        said = (home / "log").read_text(errors="replace")[-3000:]
        print(f"MariaDB's installation failed, attempt {attempt} of {ATTEMPTS}:\n{said}")
    raise AssertionError(f"MariaDB could not be installed in {home} (exit status {ended.returncode}): {said}")


def _wait_until_ready(process: subprocess.Popen[bytes], home: Path) -> None:
    import pymysql

    deadline = time.monotonic() + READY_WITHIN
    while not (home / "socket").exists():  # made when the server is ready to answer
        alive = process.poll() is None and time.monotonic() < deadline
        assert alive, f"MariaDB did not start: {(home / 'log').read_text()[-2000:]}"
        time.sleep(0.05)  # asks again until the server answers
    with pymysql.connect(unix_socket=str(home / "socket"), user="root") as connection:
        connection.cursor().execute("CREATE DATABASE holdfast CHARACTER SET utf8mb4")
