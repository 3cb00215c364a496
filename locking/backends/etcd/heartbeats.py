"""Heartbeats of processes, each in a key with a lease of its own.

<prefix>%presence/<KEY_PREFIX><client id>    value: JSON

No lock's folder is called that: `escape` leaves no bare percent sign. A sign of life renews the lease, which
is no write; what is left of it tells how long ago the last one was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.capabilities import Heartbeats
from locking.backends.etcd.client import Client
from locking.backends.etcd.entries import escape, lease_of, name_of
from locking.backends.etcd.watches import below, decoded, encoded

FOLDER: Final = "%presence"


class HeartbeatKeys(Heartbeats):
    """Heartbeats of a backend's processes."""

    _client: Client
    _prefix: str

    def _heartbeat_lease(self, client: str) -> int:
        return lease_of(f"{self._prefix}{FOLDER}/", self.key(client))

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        for client, text in records.items():
            lease = self._heartbeat_lease(client)
            if text is None:
                self._client.renew(lease)
            else:
                self._client.grant(lease, HEARTBEAT_TTL)
                key = encoded(f"{self._prefix}{FOLDER}/{escape(self.key(client))}")
                self._client.ask("/kv/put", key=key, value=encoded(text), lease=str(lease))
        for client in forget:
            self._client.revoke(self._heartbeat_lease(client))

    def _heartbeat_texts(self) -> dict[str, str]:
        """Return the records of all processes, by client."""
        folder, prefix = f"{self._prefix}{FOLDER}/", self.settings.key_prefix
        found = self._client.ask("/kv/range", **below(folder))
        named = {name_of(decoded(kv["key"])[len(folder) :]): kv["value"] for kv in found.get("kvs", ())}
        return {
            name.removeprefix(prefix): decoded(value)
            for name, value in named.items()
            if name.startswith(prefix)
        }

    def processes(self) -> dict[str, Heartbeat]:
        return self._as_heartbeats(self._heartbeat_texts())

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        texts = self._heartbeat_texts()
        return self._as_heartbeats({client: texts[client] for client in clients if client in texts})

    def _as_heartbeats(self, texts: Mapping[str, str]) -> dict[str, Heartbeat]:
        """Ask for the age of each record; the leases count in whole seconds."""
        left = {client: self._client.left(self._heartbeat_lease(client)) for client in texts}
        return {
            client: Heartbeat(text, max(0.0, HEARTBEAT_TTL - left[client])) for client, text in texts.items()
        }
