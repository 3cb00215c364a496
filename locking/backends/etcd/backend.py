"""The verbs of the contract on etcd: under the lock's name a key for each contender, with a lease of its own.

    <prefix><name>/<lease in hex>       value: JSON of owner, ttl and kind

as `etcdctl lock` and Go's `concurrency.Mutex` have it. The lowest create revision has the lock, and is its
fencing token. The lease's number is made of the owner, so that a request whose reply was lost may be sent
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from django.core.checks import CheckMessage

from locking.backends.base import (
    BaseLockBackend,
    Busy,
    Grant,
    Heartbeat,
    Held,
    Outcome,
    ask_each,
    renewal_time,
)
from locking.backends.etcd.client import NOT_FOUND, Client, Refused
from locking.backends.etcd.diagnosis import examine
from locking.backends.etcd.entries import (
    SUFFIXES,
    Entry,
    Queue,
    escape,
    lease_of,
    name_of,
    new_lease,
    queue_of,
    value_of,
)
from locking.backends.etcd.heartbeats import FOLDER, HeartbeatStore
from locking.backends.etcd.leases import Leases
from locking.backends.etcd.options import read_location, read_options
from locking.backends.etcd.watches import WatchManager, encoded, range_end
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.backends.queue.backend import (
    Contender,
    QueueBackend,
    QueueEntry,
    Variant,
    admits,
    blockers_of,
    holders_of,
)
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable
from locking.utils.clock import now

ELECTION: Final = 15.0
"""Seconds within which a cluster is given time to elect a leader, as long as the lease in question lasts."""

OUTAGE_PAUSE: Final = 0.25
"""Seconds until a waiter asks again while a cluster has no leader."""

_ASCENDING_BY_CREATION: Final = {"sort_order": "ASCEND", "sort_target": "CREATE"}


@dataclass(slots=True, eq=False)
class EtcdHold(LocalLease):
    """A hold, and what its key's value says of the semaphore: each renewal writes the same again."""

    permits: int = 0


class EtcdBackend(QueueBackend):
    """`"BACKEND": "locking.backends.etcd.EtcdBackend"`, with `"LOCATION": ["http://etcd1:2379", …]`.

    OPTIONS: `prefix` of all keys ("locks/"), `timeout` (seconds a request may take, 3), `user` and
    `password`, and for TLS `ca_cert`, `cert_cert`, `cert_key` (paths).
    """

    supports_handover = True

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        urls = read_location(settings)
        options = read_options(settings, urls)
        self._prefix = options.prefix
        self._client = Client(settings.alias, urls, options.timeout, options.tls, options.login)
        self._leases = Leases(self._client)
        self._heartbeats = HeartbeatStore(self._client, self._leases, self._prefix, settings.key_prefix)
        self._watches = WatchManager(self._client)
        self._holds = LeaseExpirer[EtcdHold](self._end)
        self._variants: dict[tuple[str, int], BaseLockBackend] = {}

    def _folder(self, key: str) -> str:
        return f"{self._prefix}{escape(key)}{SUFFIXES[self.kind]}/"

    def _node(self, key: str, owner: str) -> str:
        folder = self._folder(key)
        return f"{folder}{lease_of(folder, owner):x}"

    # the queue

    def _line(self, key: str) -> Sequence[Entry]:
        return self._read(self._folder(key)).entries

    def _read(self, prefix: str) -> Queue:
        answer = self._client.ask(
            "/kv/range", key=encoded(prefix), range_end=range_end(prefix), **_ASCENDING_BY_CREATION
        )
        return queue_of(answer, answer)

    def enqueue(self, contender: Contender, *, queue: bool) -> Outcome:
        try:
            return self._enqueue(contender, queue)
        except BackendUnavailable as outage:
            if not queue or len(self._client.urls) == 1:
                raise
            return Busy(retry_after=OUTAGE_PAUSE, outage=outage)  # another member may take over

    def _enqueue(self, contender: Contender, queue: bool) -> Outcome:
        node, folder = self._node(contender.key, contender.owner), self._folder(contender.key)
        while True:
            sent = now()
            line = self._queued(contender, folder, node, queue)
            mine = line.of(node)
            if mine is None:  # somebody else has it and we don't queue, or our lease is over: begin anew
                if not queue and line.entries:
                    return self._busy(line)
                continue
            blockers = blockers_of(line.entries, mine)
            if not blockers:
                self._watches.forget(folder, contender)
                return self._grant(contender, mine, sent)
            if not queue:
                self._leases.revoke(mine.lease)
            else:
                nodes = frozenset(blocker.node for blocker in blockers)
                self._watches.register(folder, contender, nodes, line.revision)
            return self._busy(line)

    def _queued(self, contender: Contender, folder: str, node: str, queue: bool) -> Queue:
        """Return the queue, with the contender's own key in it if it was enqueued.

        After a wait the lease is renewed before the queue is read, and that is only believed if that went
        well: etcd 3.4.3's own lock was granted to leases that had ended in the queue. Source: Jepsen, "etcd
        3.4.3", 2020.
        """
        if not queue:
            line = self._read(folder)
            if line.of(node) is None and not admits(line.entries, self.kind, self.permits):
                return line
        if contender.node is not None and self._leases.renew(lease_of(folder, contender.owner)):
            line = self._read(folder)
            if line.of(node) is not None:
                return line
        contender.node = node
        return self._create_node(contender, folder, node)

    def _create_node(self, contender: Contender, folder: str, node: str) -> Queue:
        """Create a key, bound to its lease, unless it exists; return the queue."""
        lease = lease_of(folder, contender.owner)
        self._leases.grant(lease, contender.ttl)
        read = {
            "request_range": {
                "key": encoded(folder),
                "range_end": range_end(folder),
                **_ASCENDING_BY_CREATION,
            }
        }
        put = {
            "request_put": {
                "key": encoded(node),
                "value": value_of(contender.owner, contender.ttl, self.kind, self.permits),
                "lease": str(lease),
            }
        }
        absent = {"key": encoded(node), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        try:
            answer = self._client.ask("/kv/txn", compare=[absent], success=[put, read], failure=[read])
        except Refused as error:
            if error.code == NOT_FOUND:  # the lease ended before its key came
                return Queue()
            raise
        return queue_of(answer, answer["responses"][-1]["response_range"])

    def _grant(self, contender: Contender, mine: Entry, sent: float) -> Grant:
        length = math.ceil(contender.ttl)
        hold = EtcdHold(mine.node, mine.order, sent + contender.ttl, mine.lease, length, permits=mine.permits)
        self._holds.add(contender.key, contender.owner, hold)
        return Grant(mine.order, sent)

    def _busy(self, line: Queue) -> Busy:
        first = line.entries[0]  # of all who hold it, the oldest
        return Busy(holder=first.owner, retry_after=self._remaining(first) or 0.05)

    def poll_interval(self, contender: Contender) -> float:
        """See `QueueBackend`: a third of the lease, which lives on only because its waiter asks."""
        return math.ceil(contender.ttl) / 3

    def dequeue(self, contender: Contender) -> None:
        self._watches.forget(self._folder(contender.key), contender)
        self.release(contender.key, contender.owner)

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
                if len(self._client.urls) == 1 or now() >= until:
                    raise

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class; asks once: the watchdog has its own pauses, and other leases to renew."""
        return ask_each([partial(self._extend, *lease) for lease in leases], seconds=renewal_time(leases))

    def _extend(self, key: str, owner: str, ttl: float) -> bool:
        hold = self._holds.begin(key, owner)
        if hold is None:
            return False
        sent, held = now(), False
        try:
            with hold.mutex:
                held = self._prolonged(hold, owner, ttl)
        finally:
            self._holds.settle(hold, sent + ttl if held else None)
        if not held:
            self._holds.discard(key, owner, hold)
        return held

    def _prolonged(self, hold: EtcdHold, owner: str, ttl: float) -> bool:
        """Renew the lease, or put another under the key: a lease on etcd keeps the length that it began with.

        The key must be the very one that was granted; a living lease alone doesn't tell that. One request at
        a time per hold: bound to the old lease by one while the other revokes that, the key would be deleted.
        """
        if not self._leases.renew(hold.session):
            return False
        length = math.ceil(ttl)
        if length <= hold.length:
            return self._rewritten(hold, owner, ttl, hold.session)
        lease, former = new_lease(), hold.session
        self._leases.grant(lease, ttl)
        if not self._rewritten(hold, owner, ttl, lease):
            self._leases.revoke(lease)
            return False
        hold.session, hold.length = lease, length
        self._leases.revoke(former)
        return True

    def _rewritten(self, hold: EtcdHold, owner: str, ttl: float, lease: int) -> bool:
        """Write the key anew, bound to `lease`, if it is still the one with our token."""
        token = str(hold.token)
        same = {"key": encoded(hold.node), "target": "CREATE", "result": "EQUAL", "create_revision": token}
        put = {
            "request_put": {
                "key": encoded(hold.node),
                "value": value_of(owner, ttl, self.kind, hold.permits),
                "lease": str(lease),
            }
        }
        answer = self._client.ask("/kv/txn", compare=[same], success=[put], failure=[])
        return bool(answer.get("succeeded"))

    def detach(self, key: str, owner: str, ttl: float) -> None:
        """See the base class; a lease on etcd that would last longer than the ticket is replaced."""
        hold = self._holds.pop(key, owner)
        if hold is not None and hold.length > math.ceil(ttl):
            with hold.mutex:
                hold.length = 0
                self._prolonged(hold, owner, ttl)

    def adopt(self, key: str, owner: str, token: int, ttl: float) -> bool:
        """See the base class; under a new lease, and the former is revoked: a late renewal finds it gone."""
        sent, node = now(), self._node(key, owner)
        mine = Queue(self._line(key)).of(node)
        if mine is None:
            return False
        hold = EtcdHold(node, token, sent + ttl, mine.lease, permits=mine.permits)
        if not self._prolonged(hold, owner, ttl):
            return False
        self._holds.add(key, owner, hold)
        return True

    def release(self, key: str, owner: str) -> bool:
        """See the base class; a key of this owner that only waits, or came late, is taken away too."""
        hold = self._holds.get(key, owner)
        if hold is None:
            return self._release_unknown(self._folder(key), owner)
        held = self._leases.revoke(hold.session)
        self._holds.pop(key, owner)
        return held

    def _release_unknown(self, folder: str, owner: str) -> bool:
        """Release what this process doesn't know that it holds: a late request, or another process's work."""
        lease = lease_of(folder, owner)
        mine = self._read(folder).of(f"{folder}{lease:x}")
        return self._leases.revoke(lease if mine is None else mine.lease)

    def _end(self, key: str, hold: EtcdHold) -> None:
        """End what has outlived its ttl, to the fraction of a second, which etcd's own leases don't know."""
        self._leases.revoke(hold.session)

    def force_release(self, key: str, expected: str) -> bool:
        line = Queue(self._line(key))
        for contender in holders_of(line.entries):
            entry = line.of(contender.node)
            if entry is not None and entry.owner == expected:
                self._holds.pop(key, expected)
                return self._leases.revoke(entry.lease) if entry.lease else self._deleted(entry.node)
        return False

    def _deleted(self, node: str) -> bool:
        return int(self._client.ask("/kv/deleterange", key=encoded(node)).get("deleted", 0)) > 0

    # listing

    def _holders(self, prefix: str) -> list[tuple[str, QueueEntry, int]]:
        """See `QueueBackend`: one read of all keys, sorted into locks."""
        found = [
            (name_of(folder.removeprefix(self._prefix)), holder, len(line) - len(holders_of(line)))
            for folder, line in self._lines().items()
            for holder in holders_of(line)
        ]
        return sorted((hold for hold in found if hold[0].startswith(prefix)), key=lambda hold: hold[1].order)

    def _lines(self) -> dict[str, list[Entry]]:
        """Return the queue of every lock, by its folder."""
        lines: dict[str, list[Entry]] = {}
        for entry in self._read(self._prefix).entries:
            lines.setdefault(entry.node.rpartition("/")[0], []).append(entry)
        lines.pop(self._prefix + FOLDER, None)
        return lines

    def dequeue_owned(self, owned: Callable[[str], bool]) -> None:
        for line in self._lines().values():
            for waiter in line[len(holders_of(line)) :]:
                if owned(waiter.owner):
                    self._leases.revoke(waiter.lease)

    def _shown(self, key: str, contender: QueueEntry, waiters: int) -> Held:
        entry = contender if isinstance(contender, Entry) else Entry(contender.node, contender.order)
        return Held(
            key=key,
            owner=entry.owner,
            kind=entry.kind,
            remaining=self._remaining(entry),
            token=entry.order,
            waiters=waiters,
        )

    def _remaining(self, entry: Entry) -> float | None:
        """Return the seconds left at most: etcd tells whole ones, rounded down."""
        if not entry.lease:
            return None
        left = self._leases.left(entry.lease) + 1
        return float(left if entry.ttl is None else min(left, entry.ttl))

    # heartbeats

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        self._heartbeats.publish(records, forget)

    def processes(self) -> dict[str, Heartbeat]:
        return self._heartbeats.read_all()

    def heartbeats(self, clients: Sequence[str]) -> dict[str, Heartbeat]:
        return self._heartbeats.read(clients)

    # kinds and housekeeping

    def variant(self, kind: str, **options: int) -> BaseLockBackend:
        """See the base class; one object a kind, because the watchdog renews by backend."""
        if kind not in self.kinds:
            return super().variant(kind)
        if kind == "fair":
            return self  # the ordinary lock is fair here
        which = (kind, options.get("permits", 0))
        if which not in self._variants:
            self._variants[which] = EtcdVariant(self, *which)
        return self._variants[which]

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        return examine(self._client, self.alias) if live else []

    def close(self) -> None:
        """Close all connections; leases live on, and the next use opens new ones."""
        self._watches.close()
        self._client.close()


class EtcdVariant(Variant, EtcdBackend):
    """Another kind of lock, over the same connections."""

    def __init__(self, main: EtcdBackend, kind: str, permits: int) -> None:
        QueueBackend.__init__(self, main.settings)
        self.alias = f"{main.settings.alias}/{kind}"
        self.kind, self.permits, self.exclusive = kind, permits, kind != "semaphore"
        self._prefix, self._client, self._leases, self._watches, self._holds = (
            main._prefix, main._client, main._leases, main._watches, main._holds
        )  # fmt: skip
        self._variants = {}
