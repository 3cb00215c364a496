"""A PostgreSQL of the test's own with a streaming replica, whose replay can be halted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.load.servers import Servers, private_servers
from tests.load.shop import manage
from tests.support.processes import until

PORT = "5433"
SETTINGS = {"DJANGO_SETTINGS_MODULE": "config.settings"}  # those of the tests name the tests' own database


class Replica:
    """A standby of a primary with the shop's tables.

    Args:
        servers: the primary, and a Redis that isn't used.
    """

    def __init__(self, servers: Servers) -> None:
        self._primary = servers.postgres
        host = str(self._primary.home.path)
        self._run("pg_basebackup", "-h", host, "-U", self._primary.name, "-D", "replica", "-R", "-c", "fast")
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        done = self._primary.tool(program, *arguments)
        assert not done.returncode, done.stdout + done.stderr

    def start(self) -> None:
        options = f"{self._primary.options} -p {PORT}"
        self._run("pg_ctl", "start", "-w", "-D", "replica", "-l", "replica.log", "-o", options)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-m", "fast", "-D", "replica")

    def entry(self, port: str = PORT) -> dict[str, Any]:
        """Return the entry of DATABASES that leads to it, or with another port to the primary."""
        name = self._primary.name
        return {"HOST": str(self._primary.home.path), "PORT": port, "NAME": name, "USER": name, "OPTIONS": {}}

    def ask(self, question: str) -> Any:
        """Return the first column of the answer's first row."""
        with self._primary.connect(self._primary.name, port=PORT, autocommit=True) as connection:
            return (connection.execute(psycopg.sql.SQL(question)).fetchone() or (None,))[0]

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Have it receive and not apply: within the block it shows what was."""
        self.ask("SELECT pg_wal_replay_pause()")
        until(lambda: self.ask("SELECT pg_get_wal_replay_pause_state()") == "paused", "the replay is halted")
        try:
            yield
        finally:
            self.ask("SELECT pg_wal_replay_resume()")

    def catch_up(self) -> None:
        """Wait until it has applied all that the primary has committed by now."""
        with self._primary.connect(self._primary.name, autocommit=True) as connection:
            (here,) = connection.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
        until(lambda: self.ask(f"SELECT pg_last_wal_replay_lsn() >= '{here}'"), "the replica catches up")


@contextmanager
def primary_with_replica() -> Iterator[Replica]:
    """Start both, with the shop's tables; stop and delete them with the block."""
    with private_servers() as servers:
        done = manage(servers.environment | SETTINGS, "migrate", "--verbosity", "0")
        assert not done.returncode, done.stderr
        replica = Replica(servers)
        try:
            yield replica
        finally:
            replica.stop()
