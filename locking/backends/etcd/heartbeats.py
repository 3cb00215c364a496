"""Heartbeats of processes, each in a key with a lease of its own.

<prefix>%presence/<KEY_PREFIX><client id>    value: JSON

No lock's folder is called that: `escape` leaves no bare percent sign. A sign of life renews the lease, which
is no write; what is left of it tells how long ago the last one was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.etcd.client import Client
from locking.backends.etcd.entries import escape, lease_of, name_of
from locking.backends.etcd.leases import Leases
from locking.backends.etcd.watches import decoded, encoded, range_end

FOLDER: Final = "%presence"


class HeartbeatStore:
    """The records of one alias."""

    def __init__(self, client: Client, leases: Leases, prefix: str, key_prefix: str) -> None:
        self._client, self._leases = client, leases
        self._folder, self._prefix = f"{prefix}{FOLDER}/", key_prefix

    def _key(self, client: str) -> str:
        return self._folder + escape(self._prefix + client)

    def _lease(self, client: str) -> int:
        return lease_of(self._folder, self._prefix + client)

    def publish(self, records: Mapping[str, str | None], forget: Collection[str]) -> None:
        """Store heartbeats; see `BaseLockBackend.publish_heartbeats`."""
        for client, text in records.items():
            if text is None:
                self._leases.renew(self._lease(client))
            else:
                self._write(client, text)
        for client in forget:
            self._leases.revoke(self._lease(client))

    def _write(self, client: str, text: str) -> None:
        lease = self._lease(client)
        self._leases.grant(lease, HEARTBEAT_TTL)
        self._client.ask("/kv/put", key=encoded(self._key(client)), value=encoded(text), lease=str(lease))

    def _texts(self) -> dict[str, str]:
        """Return all records, of every alias, by key."""
        found = self._client.ask("/kv/range", key=encoded(self._folder), range_end=range_end(self._folder))
        return {decoded(kv["key"]): decoded(kv["value"]) for kv in found.get("kvs", ())}

    def read_all(self) -> dict[str, Heartbeat]:
        """Return every record of this alias."""
        names = [name_of(key.removeprefix(self._folder)) for key in self._texts()]
        return self.read([name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)])

    def read(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        """Return what is known of these clients; their leases count in whole seconds."""
        texts = self._texts()
        return {
            client: Heartbeat(text, max(0.0, HEARTBEAT_TTL - self._leases.left(self._lease(client))))
            for client in clients
            if (text := texts.get(self._key(client))) is not None
        }
