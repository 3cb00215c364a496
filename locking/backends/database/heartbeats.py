"""Heartbeats of processes, in a table: one row each, by the database's clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.database.connection_pool import ConnectionPool
from locking.backends.database.sql import BY_VENDOR, ProcessStatements
from locking.utils.databases import fence_name


class HeartbeatStore:
    """The records of one alias."""

    def __init__(self, pool: ConnectionPool, key_prefix: str) -> None:
        self._pool, self._prefix = pool, key_prefix

    @property
    def _sql(self) -> ProcessStatements:
        return BY_VENDOR[self._pool.vendor].presence

    def _id(self, client: str) -> str:
        return fence_name(self._prefix + client, self._pool.vendor)

    def publish(self, records: Mapping[str, str | None], forget: Collection[str]) -> None:
        """Store heartbeats; see `BaseLockBackend.publish_heartbeats`."""

        def step(cursor: Any, _: int) -> None:
            for client, text in records.items():
                statement = self._sql.same if text is None else self._sql.tell
                cursor.execute(statement, {"id": self._id(client), "text": text})
            for client in forget:
                cursor.execute(self._sql.forget, {"id": self._id(client)})

        self._pool.run(step)

    def read_all(self) -> dict[str, Heartbeat]:
        """Return every record of this alias."""

        def step(cursor: Any, _: int) -> list[Any]:
            cursor.execute(self._sql.read_all)
            return list(cursor.fetchall())

        rows = [row for row in self._pool.run(step) if row[0].startswith(self._prefix)]
        return {name.removeprefix(self._prefix): _heartbeats(text, silent) for name, text, silent in rows}

    def read(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        """Return what is known of these clients."""
        asked = {f"c{number}": self._id(client) for number, client in enumerate(clients)}
        statement = self._sql.read.replace("CLIENTS", ", ".join(f"%({name})s" for name in asked))

        def step(cursor: Any, _: int) -> list[Any]:
            cursor.execute(statement, asked)
            return list(cursor.fetchall())

        known = {each: _heartbeats(text, silent) for each, text, silent in self._pool.run(step)}
        return {client: known[key] for client in clients if (key := self._id(client)) in known}

    def tidy(self) -> None:
        """Delete the records of processes that stopped long ago."""
        self._pool.run(lambda cursor, _: cursor.execute(self._sql.tidy, {"kept": HEARTBEAT_TTL * 1_000_000}))


def _heartbeats(text: str, silent: int) -> Heartbeat:
    return Heartbeat(text, max(0, silent) / 1e6)
