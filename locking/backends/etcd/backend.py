"""The verbs of the contract on etcd: under the lock's name a key for each contender, with a lease of its own.

    <prefix><name>/<lease in hex>       value: JSON of owner, ttl and kind

as `etcdctl lock` and Go's `concurrency.Mutex` have it. The lowest create revision has the lock, and is its
fencing token. The lease's number is made of the owner, so that a request whose reply was lost may be sent
again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from django.core.checks import CheckMessage

from locking.backends.base import Busy, Grant, ask_each, renewal_time
from locking.backends.etcd.client import NOT_FOUND, Client, Refused
from locking.backends.etcd.diagnosis import examine
from locking.backends.etcd.entries import (
    Queue,
    escape,
    lease_of,
    name_of,
    new_lease,
    queue_of,
    value_of,
)
from locking.backends.etcd.heartbeats import FOLDER, HeartbeatKeys
from locking.backends.etcd.options import read_location, read_options
from locking.backends.etcd.watches import WatchManager, below, encoded
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.backends.queue.backend import SUFFIXES, Contender, QueueBackend, QueueEntry, admits
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable
from locking.utils.clock import now

ELECTION: Final = 15.0
"""Seconds within which a cluster is given time to elect a leader, as long as the lease in question lasts."""


class EtcdBackend(HeartbeatKeys, QueueBackend):
    """`"BACKEND": "locking.backends.etcd.EtcdBackend"`, with `"LOCATION": ["http://etcd1:2379", …]`.

    OPTIONS: `prefix` of all keys ("locks/"), `timeout` (seconds a request may take, 3), `user` and
    `password`, and for TLS `ca_cert`, `cert_cert`, `cert_key` (paths).
    """

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        urls = read_location(settings)
        self._prefix, timeout, tls, login = read_options(settings, urls)
        self.alone, self._client = len(urls) == 1, Client(settings.alias, urls, timeout, tls, login)
        self._watches = WatchManager(self._client)
        self._holds = LeaseExpirer(self._end)

    def _folder(self, key: str) -> str:
        return f"{self._prefix}{escape(key)}{SUFFIXES[self.kind]}/"

    # the queue

    def _line(self, key: str) -> Queue:
        return self._read(self._folder(key))

    def _read(self, prefix: str) -> Queue:
        answer = self._client.ask("/kv/range", **_range(prefix))
        return queue_of(answer, answer)

    def _queued(self, contender: Contender, queue: bool) -> Queue:
        """See `QueueBackend`.

        After a wait the lease is renewed before the queue is read, and that is only believed if that went
        well: etcd 3.4.3's own lock was granted to leases that had ended in the queue. Source: Jepsen, "etcd
        3.4.3", 2020.
        """
        folder = self._folder(contender.key)
        if not queue:
            line = self._read(folder)
            if line.by(contender.owner) is None and not admits(line, self.kind, self.permits):
                return line
        if contender.node is not None and self._client.renew(contender.session):
            line = self._read(folder)
            if line.by(contender.owner) is not None:
                return line
        contender.session = lease_of(folder, contender.owner)
        contender.node = f"{folder}{contender.session:x}"
        return self._create_node(contender, folder, contender.node)

    def _create_node(self, contender: Contender, folder: str, node: str) -> Queue:
        """Create a key, bound to its lease, unless it exists; return the queue."""
        self._client.grant(contender.session, contender.ttl)
        read = {"request_range": _range(folder)}
        value = value_of(contender.owner, contender.ttl, self.kind, self.permits)
        put = _put(node, value, contender.session)
        try:
            absent = [_made(node, 0)]
            answer = self._client.ask("/kv/txn", compare=absent, success=[put, read], failure=[read])
        except Refused as error:
            if error.code == NOT_FOUND:  # the lease ended before its key came
                return Queue()
            raise
        line = queue_of(answer, answer["responses"][-1]["response_range"])
        contender.created |= bool(answer.get("succeeded"))
        mine = line.by(contender.owner)
        return line if answer.get("succeeded") or mine is None else self._taken_over(contender, mine)

    def _taken_over(self, contender: Contender, mine: QueueEntry) -> Queue:
        """Put a lease of the contender's own under a key that its owner has already; return the queue.

        The former lease has another length, and may be ended by the process that made it.
        """
        hold = LocalLease(mine.node, mine.order, 0.0, mine.lease, permits=mine.permits)
        if not self._prolonged(contender.owner, hold, contender.ttl):
            return Queue()
        contender.session = hold.session
        return self._read(self._folder(contender.key))

    def _entry_of(self, line: Queue, owner: str) -> QueueEntry | None:
        return line.by(owner)

    def _grant(self, contender: Contender, mine: QueueEntry, sent: float) -> Grant:
        self._watches.forget(self._folder(contender.key), contender)
        length = math.ceil(contender.ttl)
        hold = LocalLease(
            mine.node, mine.order, sent + contender.ttl, mine.lease, length, permits=mine.permits
        )
        self._holds.add(contender.key, contender.owner, hold)
        return Grant(mine.order, sent, is_new=contender.created)

    def _busy(self, line: Queue) -> Busy:
        first = line[0]  # of all who hold it, the oldest
        return Busy(holder=first.owner, retry_after=self._remaining(first) or 0.05)

    def _watch(self, contender: Contender, blockers: Sequence[QueueEntry], line: Queue) -> bool:
        nodes = frozenset(blocker.node for blocker in blockers)
        self._watches.register(self._folder(contender.key), contender, nodes, line.revision)
        return True

    def poll_interval(self, contender: Contender) -> float:
        """See `QueueBackend`: a third of the lease, which lives on only because its waiter asks."""
        return math.ceil(contender.ttl) / 3

    def dequeue(self, contender: Contender) -> None:
        self._watches.forget(self._folder(contender.key), contender)
        super().dequeue(contender)

    # holding

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        """See the base class; an election may take longer than one request: the members are asked again."""
        hold = self._holds.get(key, owner)
        until = now() + ELECTION
        if hold is not None:
            until = min(until, hold.deadline)
        while True:
            try:
                return self._extend(key, owner, ttl)
            except BackendUnavailable:
                if self.alone or now() >= until:
                    raise

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class; asks once: the watchdog has its own pauses, and other leases to renew."""
        return ask_each([partial(self._extend, *lease) for lease in leases], seconds=renewal_time(leases))

    def _extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._holds.extend(key, owner, ttl, partial(self._prolonged, owner))

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self._holds.extend(key, owner, ttl, partial(self._prolonged, owner), exactly=True)

    def _prolonged(self, owner: str, hold: LocalLease, ttl: float) -> bool:
        """Renew the lease, or put another under the key: a lease on etcd keeps the length that it began with.

        The key must be the very one that was granted; a living lease alone doesn't tell that. One request at
        a time per hold: bound to the old lease by one while the other revokes that, the key would be deleted.
        """
        if not self._client.renew(hold.session):
            return False
        length = math.ceil(ttl)
        if length <= hold.length:
            return self._rewritten(hold, owner, ttl, hold.session)
        lease, former = new_lease(), hold.session
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
        answer = self._client.ask(
            "/kv/txn", compare=[_made(hold.node, hold.token)], success=[put], failure=[]
        )
        return bool(answer.get("succeeded"))

    def release(self, key: str, owner: str) -> bool:
        """See the base class; a key of this owner that only waits, or came late, is taken away too."""
        hold = self._holds.get(key, owner)
        if hold is not None:
            with hold.mutex:  # an extension under way may be about to put another lease under the key
                held = self._client.revoke(hold.session)
            self._holds.pop(key, owner)
            if held:
                return True
        # A late request, another process's work, or a hold that another process has taken over.
        folder = self._folder(key)
        mine = self._read(folder).by(owner)
        return self._client.revoke(lease_of(folder, owner) if mine is None else mine.lease)

    def _end(self, key: str, hold: LocalLease) -> None:
        """End what has outlived its ttl, to the fraction of a second, which etcd's own leases don't know."""
        self._client.revoke(hold.session)

    def _withdraw(self, entry: QueueEntry) -> bool:
        if entry.lease:
            return self._client.revoke(entry.lease)
        return int(self._client.ask("/kv/deleterange", key=encoded(entry.node)).get("deleted", 0)) > 0

    # listing

    def _described(self, entries: Sequence[QueueEntry]) -> Sequence[QueueEntry]:
        return entries  # a range has them whole

    def _lines(self, prefix: str) -> list[tuple[str, list[QueueEntry]]]:
        """See `QueueBackend`: one read of all keys, sorted into locks."""
        lines: dict[str, list[QueueEntry]] = {}
        for entry in self._read(self._prefix):
            lines.setdefault(entry.node.rpartition("/")[0], []).append(entry)
        lines.pop(self._prefix + FOLDER, None)
        named = [(name_of(folder.removeprefix(self._prefix)), line) for folder, line in lines.items()]
        return [(name, line) for name, line in named if name.startswith(prefix)]

    def _remaining(self, entry: QueueEntry) -> float | None:
        """Return the seconds left at most: etcd tells whole ones, rounded down."""
        if not entry.lease:
            return None
        left = self._client.left(entry.lease) + 1
        return float(left if entry.ttl is None else min(left, entry.ttl))

    # housekeeping

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        return examine(self._client, self.alias) if live else []

    def close(self) -> None:
        """Close all connections; leases live on, and the next use opens new ones."""
        if self.kind == "lock":  # a variant's are the main backend's
            self._watches.close()
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
