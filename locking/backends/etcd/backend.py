"""The queue on etcd: under the lock's name a key for each contender, with a lease of its own.

    <prefix><name>/<lease in hex>       value: JSON of owner, ttl, kind and permits

as `etcdctl lock` and Go's `concurrency.Mutex` have it. The lowest create revision has the lock, and is its
fencing token. The lease's number is made of the owner, so that a request whose reply was lost may be sent
again.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import requests

from locking.backends import queue
from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.etcd.client import NOT_FOUND, EtcdClient, Refused, WatchManager, below, decoded, encoded
from locking.conf import AliasSettings


class EtcdBackend(queue.QueueBackend):
    """`"BACKEND": "locking.backends.etcd.EtcdBackend"`, with `"LOCATION": ["http://etcd1:2379", …]`.

    OPTIONS: `prefix` of all keys ("locks/"), `timeout` (seconds a request may take, 3), `user` and
    `password`, and for TLS `ca_cert`, `cert_cert`, `cert_key` (paths).
    """

    engine = "etcd"
    floor = (3, 4)  # the oldest version whose gateway speaks `/v3/`

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._client = EtcdClient(settings)
        self._prefix, self.addresses = self._client.prefix, self._client.urls
        self._records = f"{self._prefix}{queue.HEARTBEATS}/"
        self._watches = WatchManager(self._client)
        self._holds = queue.LeaseExpirer(self._withdraw)

    # the queue

    def _folder(self, key: str) -> str:
        return f"{self._prefix}{escape(key)}{queue.SUFFIXES[self.kind]}/"

    def _read(self, key: str) -> Queue:
        return self._below(self._folder(key))

    def _below(self, folder: str) -> Queue:
        answer = self._client.ask("/kv/range", **in_order(folder))
        return Queue(answer, answer)

    def _keep(self, contender: queue.Contender) -> bool:
        """See `QueueBackend`: the queue is read after this, and only believed if this went well. etcd 3.4.3's
        own lock was granted to leases that had ended in the queue. Source: Jepsen, "etcd 3.4.3", 2020.
        """
        if self._client.renew(lease_of(self._folder(contender.key), contender.owner)):
            return True
        contender.hold = None
        return False

    def _create(self, contender: queue.Contender) -> queue.Line:
        folder, owner, ttl = self._folder(contender.key), contender.owner, contender.ttl
        lease = lease_of(folder, owner)
        self._client.grant(lease, ttl)
        made = queue.QueueEntry(f"{folder}{lease:x}", 0, permits=self.permits)
        try:
            answer = self._write(made, owner, ttl, lease, {"request_range": in_order(folder)})
        except Refused as error:
            if error.code == NOT_FOUND:  # the lease ended before its key came
                return ()
            raise
        line = Queue(answer, answer["responses"][-1]["response_range"])
        if answer.get("succeeded"):
            made.token, made.lease, made.length = line.revision, lease, math.ceil(ttl)
            contender.hold = made
        return line

    def _write(self, hold: queue.QueueEntry, owner: str, ttl: float, lease: int, *reads: Any) -> Any:
        """Write a hold's key, bound to `lease`, if it is the one with its token; 0: if there is none."""
        key = encoded(hold.node)
        same = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": str(hold.token)}
        value = json.dumps({"owner": owner, "ttl": ttl, "kind": self.kind, "permits": hold.permits})
        put = {"request_put": {"key": key, "value": encoded(value), "lease": str(lease)}}
        return self._client.ask("/kv/txn", compare=[same], success=[put, *reads], failure=[*reads])

    def _owns(self, entry: queue.QueueEntry, owner: str) -> bool:
        return entry.owner == owner

    def _watch(self, contender: queue.Contender, blockers: queue.Line, line: Any) -> bool:
        nodes = frozenset(blocker.node for blocker in blockers)
        self._watches.register(contender, nodes, line.revision)
        return True

    def poll_interval(self, contender: queue.Contender) -> float:
        """See `QueueBackend`: a third of the lease, which lives on only because its waiter asks."""
        return math.ceil(contender.ttl) / 3

    # holding

    def _extended(self, owner: str, hold: queue.QueueEntry, ttl: float) -> bool:
        """Renew the lease, or put another under the key: a lease on etcd keeps the length that it began with,
        and another process's may be ended by that.

        The key must be the very one that was granted; a living lease alone doesn't tell that. One request at
        a time per hold: bound to the old lease by one while the other revokes that, the key would be deleted.
        """
        if not self._client.renew(hold.lease):
            return False
        if math.ceil(ttl) <= hold.length:
            return bool(self._write(hold, owner, ttl, hold.lease).get("succeeded"))
        lease = secrets.randbits(62) + 1
        self._client.grant(lease, ttl)
        written = bool(self._write(hold, owner, ttl, lease).get("succeeded"))
        if written:
            hold.lease, lease, hold.length = lease, hold.lease, math.ceil(ttl)
        self._client.revoke(lease)  # the one without a key
        return written

    def _withdraw(self, entry: queue.QueueEntry) -> bool:
        if entry.lease:
            return self._client.revoke(entry.lease)
        return int(self._client.ask("/kv/deleterange", key=encoded(entry.node)).get("deleted", 0)) > 0

    def release(self, key: str, owner: str) -> bool:
        """See `QueueBackend`; a request that is still under way shall find no lease, and enqueue nothing."""
        return super().release(key, owner) or self._client.revoke(lease_of(self._folder(key), owner))

    # listing

    def _lines(self, prefix: str) -> Iterator[tuple[str, queue.Line]]:
        """See `QueueBackend`: one read of all keys, sorted into locks."""
        lines: dict[str, list[queue.QueueEntry]] = {}
        for entry in self._below(self._prefix):
            lines.setdefault(entry.node.rpartition("/")[0].removeprefix(self._prefix), []).append(entry)
        lines.pop(queue.HEARTBEATS, None)
        return ((queue.key_of(each), lines[each]) for each in lines if queue.key_of(each).startswith(prefix))

    def _remaining(self, entry: queue.QueueEntry) -> float | None:
        """Return the seconds left at most: etcd tells whole ones, rounded down."""
        if not entry.lease:
            return None
        left = self._client.left(entry.lease) + 1
        return float(left if entry.ttl is None else min(left, entry.ttl))

    # heartbeats: <prefix>%presence/<KEY_PREFIX><client id>, with a lease of its own, whose renewal is no
    # write; what is left of it, in whole seconds, tells how long ago the last one was

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        for client, text in records.items():
            lease = lease_of(self._records, self.key(client))
            if text is None:
                self._client.renew(lease)
            else:
                self._client.grant(lease, HEARTBEAT_TTL)
                key = encoded(self._records + escape(self.key(client)))
                self._client.ask("/kv/put", key=key, value=encoded(text), lease=str(lease))
        for client in forget:
            self._client.revoke(lease_of(self._records, self.key(client)))

    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        kvs = self._client.ask("/kv/range", **below(self._records)).get("kvs", ())
        texts = {decoded(kv["key"]).removeprefix(self._records): decoded(kv["value"]) for kv in kvs}
        found = dict[str, Heartbeat]()
        for name, client in self._clients(texts, clients).items():
            left = self._client.left(lease_of(self._records, self.key(client)))
            found[client] = Heartbeat(texts[name], max(0.0, HEARTBEAT_TTL - left))
        return found

    # housekeeping

    def _status(self, address: str) -> queue.Status | None:
        try:
            said = self._client.send(address, "/maintenance/status", {})
        except (requests.RequestException, Refused):
            return None
        leads = said.get("leader", "0") != "0"
        is_alone = leads and len(self._client.ask("/cluster/member/list").get("members", ())) <= 1
        return queue.Status(queue.version_of(said.get("version", "")), leads, is_alone)

    def close(self) -> None:
        """Close all connections; leases live on, and the next use opens new ones."""
        if self.kind == "lock":  # a variant's are the main backend's
            self._client.close()


class Queue(list[queue.QueueEntry]):
    """All who have a lock or want it, at one revision of the cluster."""

    def __init__(self, answer: dict[str, Any], found: dict[str, Any]) -> None:
        super().__init__(map(_entry, found.get("kvs", ())))
        self.revision = int(answer["header"]["revision"])


def _entry(kv: dict[str, Any]) -> queue.QueueEntry:
    node = decoded(kv["key"])
    try:
        fields = json.loads(decoded(kv.get("value", "")))
        owner, ttl = str(fields["owner"]), float(fields["ttl"])
        kind, permits = str(fields["kind"]), int(fields["permits"])
    except (ValueError, TypeError, KeyError):  # another client's: etcdctl's, Go's
        owner, ttl, kind, permits = node.rpartition("/")[2], None, "lock", 0
    created, lease = int(kv["create_revision"]), int(kv.get("lease", 0))
    return queue.QueueEntry(node, created, kind, permits, owner, ttl, token=created, lease=lease)


def in_order(folder: str) -> dict[str, Any]:
    """Return what asks for the keys of a folder, the oldest first."""
    return {**below(folder), "sort_order": "ASCEND", "sort_target": "CREATE"}


def lease_of(folder: str, owner: str) -> int:
    """Return the number of an owner's lease: always the same, so that a request may be repeated."""
    digest = hashlib.sha256(f"{folder}\0{owner}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 1) or 1


def escape(key: str) -> str:
    """Keep a name within its folder: a slash in it must not look like the end of the name.

    Example:
        >>> queue.key_of(escape("order:42/a") + "%rw")
        'order:42/a'
    """
    return key.replace("%", "%25").replace("/", "%2F")
