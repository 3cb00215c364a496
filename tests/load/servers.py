"""A PostgreSQL and a Redis that belong to one load test: it kills and flushes them, and deletes them."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from config import embedded


@dataclass(frozen=True)
class Servers:
    """Two running servers."""

    postgres: embedded.Postgres
    redis: embedded.Redis

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to work on them."""
        host = quote(str(self.postgres.home.path), safe="")
        name = self.postgres.name
        return {"DATABASE_URL": f"postgres://{name}@{host}/{name}", "REDIS_URL": self.redis.url()}

    def connect(self) -> psycopg.Connection:
        """Open a connection of one's own to the shop's database."""
        return self.postgres.connect(self.postgres.name, autocommit=True)

    def crash(self, server: embedded.Server) -> None:
        """Kill a server in its tracks, with all that it had not written, and start it again."""
        if process := server.process():
            # The parent first: PostgreSQL's would tell the others to go when it sees one of them die.
            victims = [process, *process.children(recursive=True)]
            for victim in victims:
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
            psutil.wait_procs(victims, timeout=30)
        server.start()


class RoomyPostgres(embedded.Postgres):
    """One with room for the connections of several shops."""

    settings = embedded.Postgres.settings | {"max_connections": "600"}


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def private_servers() -> Iterator[Servers]:
    """Start both in a folder of their own; stop and delete them at the end, also on SIGTERM."""
    signal.signal(signal.SIGTERM, _leave)  # by itself it would end this process and leave the servers running
    with tempfile.TemporaryDirectory(prefix="holdfast-load-") as folder:
        checkout = Path(folder)
        _, redis = embedded.servers(checkout)
        servers = Servers(RoomyPostgres(redis.home), embedded.Redis(redis.home))
        try:
            servers.postgres.start()
            servers.redis.start()
            yield servers
        finally:
            embedded.remove(checkout)
