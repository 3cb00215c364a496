"""The queue on etcd: under the lock's name a key for each contender, with a lease of its own.

    <prefix><name>/<lease in hex>       value: JSON of owner, ttl and kind

as `etcdctl lock` and Go's `concurrency.Mutex` have it. The lowest create revision has the lock, and is its
fencing token. The lease's number is made of the owner, so that a request whose reply was lost may be sent
again.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import requests

from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.backends.etcd.client import NOT_FOUND, Client, Refused
from locking.backends.etcd.entries import Queue, below, decoded, encoded, escape, lease_of, queue_of, value_of
from locking.backends.etcd.options import read_location, read_options
from locking.backends.etcd.watches import WatchManager
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.backends.queue.backend import (
    HEARTBEATS,
    SUFFIXES,
    Contender,
    Line,
    QueueBackend,
    QueueEntry,
    Status,
    key_of,
)
from locking.conf import AliasSettings


class EtcdBackend(QueueBackend):
    """`"BACKEND": "locking.backends.etcd.EtcdBackend"`, with `"LOCATION": ["http://etcd1:2379", …]`.

    OPTIONS: `prefix` of all keys ("locks/"), `timeout` (seconds a request may take, 3), `user` and
    `password`, and for TLS `ca_cert`, `cert_cert`, `cert_key` (paths).
    """

    engine = "etcd"
    floor = "3.4"  # the oldest version whose gateway speaks `/v3/`

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        urls = read_location(settings)
        self._prefix, timeout, tls, login = read_options(settings, urls)
        self.alone, self._client = len(urls) == 1, Client(settings.alias, urls, timeout, tls, login)
        self._watches = WatchManager(self._client, self._prefix)
        self._holds = LeaseExpirer(self._end)

    # the queue

    def _folder(self, key: str) -> str:
        return f"{self._prefix}{escape(key)}{SUFFIXES[self.kind]}/"

    def _read(self, folder: str, contender: Contender | None = None) -> Queue:
        answer = self._client.ask("/kv/range", **_range(folder))
        return queue_of(answer, answer)

    def _keep(self, contender: Contender) -> bool:
        """See `QueueBackend`.

        The queue is read after this, and is only believed if this went well: etcd 3.4.3's own lock was
        granted to leases that had ended in the queue. Source: Jepsen, "etcd 3.4.3", 2020.
        """
        if self._client.renew(lease_of(self._folder(contender.key), contender.owner)):
            return True
        contender.hold = None
        return False

    def _create(self, folder: str, contender: Contender) -> Queue:
        lease, ttl = lease_of(folder, contender.owner), contender.ttl
        node, read = f"{folder}{lease:x}", {"request_range": _range(folder)}
        self._client.grant(lease, ttl)
        put = _put(node, value_of(contender.owner, ttl, self.kind, self.permits), lease)
        try:
            absent = [_made(node, 0)]
            answer = self._client.ask("/kv/txn", compare=absent, success=[put, read], failure=[read])
        except Refused as error:
            if error.code == NOT_FOUND:  # the lease ended before its key came
                return Queue()
            raise
        line = queue_of(answer, answer["responses"][-1]["response_range"])
        if answer.get("succeeded") and (mine := self._entry_of(line, contender.owner)) is not None:
            contender.hold = LocalLease(node, mine.order, 0.0, lease, math.ceil(ttl), mine.permits)
        return line

    def _owns(self, entry: QueueEntry, owner: str) -> bool:
        return entry.owner == owner

    def _adopt(self, contender: Contender, mine: QueueEntry) -> LocalLease | None:
        """See `QueueBackend`: with a lease of the contender's own, for the former one has another length, and
        may be ended by the process that made it.
        """
        hold = LocalLease(mine.node, mine.order, 0.0, mine.lease, permits=mine.permits)
        return hold if self._extended(contender.owner, hold, contender.ttl) else None

    def _watch(self, contender: Contender, blockers: Line, line: Any) -> bool:
        nodes = frozenset(blocker.node for blocker in blockers)
        self._watches.register(contender, nodes, line.revision)
        return True

    def poll_interval(self, contender: Contender) -> float:
        """See `QueueBackend`: a third of the lease, which lives on only because its waiter asks."""
        return math.ceil(contender.ttl) / 3

    # holding

    def _extended(self, owner: str, hold: LocalLease, ttl: float) -> bool:
        """Renew the lease, or put another under the key: a lease on etcd keeps the length that it began with.

        The key must be the very one that was granted; a living lease alone doesn't tell that. One request at
        a time per hold: bound to the old lease by one while the other revokes that, the key would be deleted.
        """
        if not self._client.renew(hold.session):
            return False
        length = math.ceil(ttl)
        if length <= hold.length:
            return self._rewritten(hold, owner, ttl, hold.session)
        lease, former = secrets.randbits(62) + 1, hold.session
        self._client.grant(lease, ttl)
        if not self._rewritten(hold, owner, ttl, lease):
            self._client.revoke(lease)
            return False
        hold.session, hold.length = lease, length
        self._client.revoke(former)
        return True

    def _rewritten(self, hold: LocalLease, owner: str, ttl: float, lease: int) -> bool:
        """Write the key again, bound to `lease`, if it is still the one with our token."""
        put = _put(hold.node, value_of(owner, ttl, self.kind, hold.permits), lease)
        same = [_made(hold.node, hold.token)]
        return bool(self._client.ask("/kv/txn", compare=same, success=[put], failure=[]).get("succeeded"))

    def _withdraw(self, node: str, lease: int) -> bool:
        if lease:
            return self._client.revoke(lease)
        return int(self._client.ask("/kv/deleterange", key=encoded(node)).get("deleted", 0)) > 0

    def _forestall(self, key: str, owner: str) -> bool:
        return self._client.revoke(lease_of(self._folder(key), owner))

    # listing

    def _lines(self, prefix: str) -> Iterator[tuple[str, Line]]:
        """See `QueueBackend`: one read of all keys, sorted into locks."""
        lines: dict[str, list[QueueEntry]] = {}
        for entry in self._read(self._prefix):
            lines.setdefault(entry.node.rpartition("/")[0].removeprefix(self._prefix), []).append(entry)
        lines.pop(HEARTBEATS, None)
        return ((key_of(each), lines[each]) for each in lines if key_of(each).startswith(prefix))

    def _remaining(self, entry: QueueEntry) -> float | None:
        """Return the seconds left at most: etcd tells whole ones, rounded down."""
        if not entry.lease:
            return None
        left = self._client.left(entry.lease) + 1
        return float(left if entry.ttl is None else min(left, entry.ttl))

    # heartbeats: <prefix>%presence/<KEY_PREFIX><client id>, with a lease of its own, whose renewal is no
    # write; what is left of it tells how long ago the last one was

    def _heartbeat_lease(self, client: str) -> int:
        return lease_of(f"{self._prefix}{HEARTBEATS}/", self.key(client))

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        for client, text in records.items():
            lease = self._heartbeat_lease(client)
            if text is None:
                self._client.renew(lease)
            else:
                self._client.grant(lease, HEARTBEAT_TTL)
                key = encoded(f"{self._prefix}{HEARTBEATS}/{escape(self.key(client))}")
                self._client.ask("/kv/put", key=key, value=encoded(text), lease=str(lease))
        for client in forget:
            self._client.revoke(self._heartbeat_lease(client))

    def _heartbeats_of(self, wanted: Callable[[str], bool]) -> dict[str, Heartbeat]:
        """See `QueueBackend`; the leases, which tell the age of each record, count in whole seconds."""
        folder = f"{self._prefix}{HEARTBEATS}/"
        answer = self._client.ask("/kv/range", **below(folder))
        texts = {decoded(kv["key"])[len(folder) :]: decoded(kv["value"]) for kv in answer.get("kvs", ())}
        return {
            client: Heartbeat(
                texts[name], max(0.0, HEARTBEAT_TTL - self._client.left(self._heartbeat_lease(client)))
            )
            for name, client in self._clients(texts, wanted).items()
        }

    # housekeeping

    def _statuses(self) -> tuple[Mapping[str, Status | None], bool]:
        statuses = {url: self._status(url) for url in self._client.urls}
        answers = any(statuses.values())
        return statuses, answers and len(self._client.ask("/cluster/member/list").get("members", ())) <= 1

    def _status(self, url: str) -> Status | None:
        try:
            said = self._client.send(url, "/maintenance/status", {})
        except (requests.RequestException, Refused):
            return None
        return Status(str(said.get("version", "")), said.get("leader", "0") != "0")

    def close(self) -> None:
        """Close all connections; leases live on, and the next use opens new ones."""
        if self.kind == "lock":  # a variant's are the main backend's
            self._client.close()


def _range(prefix: str) -> dict[str, Any]:
    """Return what asks for the keys below a prefix, the oldest first."""
    return {**below(prefix), "sort_order": "ASCEND", "sort_target": "CREATE"}


def _put(node: str, value: str, lease: int) -> dict[str, Any]:
    """Return a part of a transaction that writes a key and binds it to a lease."""
    return {"request_put": {"key": encoded(node), "value": value, "lease": str(lease)}}


def _made(node: str, revision: int) -> dict[str, str]:
    """Return the condition that a key was created at this revision; 0: that there is none."""
    return {"key": encoded(node), "target": "CREATE", "result": "EQUAL", "create_revision": str(revision)}
