"""Heartbeats of processes, in a table: one row each, by the database's clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.capabilities import Heartbeats
from locking.backends.database.connection_pool import ConnectionPool
from locking.backends.database.sql import Statements
from locking.utils.databases import fence_name


class HeartbeatRows(Heartbeats):
    """Heartbeats of a backend's processes."""

    _pool: ConnectionPool
    sql: Statements

    def _heartbeat_id(self, client: str) -> str:
        return fence_name(self.key(client), self._pool.vendor)

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        def step(cursor: Any, _: int) -> None:
            for client, text in records.items():
                statement = self.sql["tell_same" if text is None else "tell"]
                cursor.execute(statement, {"id": self._heartbeat_id(client), "text": text})
            for client in forget:
                cursor.execute(self.sql["forget"], {"id": self._heartbeat_id(client)})

        self._pool.run(step)

    def processes(self) -> dict[str, Heartbeat]:
        prefix, rows = self.settings.key_prefix, self._pool.fetch(self.sql["all_told"])
        return {row[0].removeprefix(prefix): _heartbeat(*row) for row in rows if row[0].startswith(prefix)}

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        asked = {f"c{number}": self._heartbeat_id(client) for number, client in enumerate(clients)}
        statement = self.sql["heartbeats"].replace("CLIENTS", ", ".join(f"%({name})s" for name in asked))
        known = {row[0]: _heartbeat(*row) for row in self._pool.fetch(statement, asked)}
        return {client: known[key] for client in clients if (key := self._heartbeat_id(client)) in known}

    def tidy(self) -> None:
        """Delete the records of processes that stopped long ago."""
        self._pool.run(
            lambda cursor, _: cursor.execute(self.sql["tidy"], {"kept": HEARTBEAT_TTL * 1_000_000})
        )


def _heartbeat(_id: str, text: str, silent: int) -> Heartbeat:
    return Heartbeat(text, max(0, silent) / 1e6)
