"""The verbs of the contract on ZooKeeper: ephemeral nodes in a line, each waiter watching the one before."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.core.checks import CheckMessage

from locking.backends.base import BaseLockBackend, Busy, Grant, Heartbeat, Held, Outcome, ask_each
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
from locking.backends.zookeeper.diagnosis import examine
from locking.backends.zookeeper.heartbeats import FOLDER, HeartbeatStore
from locking.backends.zookeeper.nodes import (
    SUFFIXES,
    decode,
    encode,
    guid,
    node_name,
    parse,
    read_data,
    write_data,
)
from locking.backends.zookeeper.options import read_location, read_options
from locking.backends.zookeeper.session import (
    Session,
    children,
    created,
    data,
    deleted,
    ensured,
    is_answer,
    synced,
    written,
)
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.clock import now

OUTAGE_PAUSE: Final = 0.25
"""Seconds until a waiter asks again while an ensemble has no leader."""


class ZooKeeperBackend(QueueBackend):
    """`"BACKEND": "locking.backends.zookeeper.ZooKeeperBackend"`, `"LOCATION": "zk1:2181,zk2:2181/locks"`.

    OPTIONS: `session_timeout` (seconds, 10), `timeout` (seconds a request may take, 3), `user` and `password`
    (a digest, whose nodes nobody else may touch); all others go to KazooClient, with `use_ssl` and the files
    `ca`, `certfile` and `keyfile` for TLS.
    """

    bound_to = "the ZooKeeper session of its process (its node is ephemeral)"

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        hosts, self._root = read_location(settings)
        self._session = Session(settings.alias, hosts, *read_options(settings))
        self._holds = LeaseExpirer(self._end, self._session.beat, self._session.pause)
        self._heartbeats = HeartbeatStore(self._session, self._root, settings.key_prefix)
        self._closing = False
        self._variants: dict[tuple[str, int], BaseLockBackend] = {}

    # the queue

    def _folder(self, key: str) -> str:
        return f"{self._root}/{encode(key)}{SUFFIXES[self.kind]}"

    def _line(self, key: str) -> Sequence[QueueEntry]:
        return self._session.patiently(lambda: self._read(self._folder(key)))

    def _read(self, folder: str, contender: Contender | None = None) -> list[QueueEntry]:
        """Return the queue as the leader knows it; a semaphore's waiters watch all of it."""
        sent, session = now(), self._session.number
        watch = contender if self.kind == "semaphore" else None
        _, names = self._session.ask(synced(folder), children(folder, watch))
        self._session.confirm(session, sent)
        return parse(folder, names) if is_answer(names) else []

    def enqueue(self, contender: Contender, *, queue: bool) -> Outcome:
        self._closing = False
        try:
            return self._session.patiently(lambda: self._enqueue(contender, queue))
        except BackendUnavailable as outage:
            if not queue or self._session.alone:
                raise
            return Busy(retry_after=OUTAGE_PAUSE, outage=outage)  # another server may take over

    def _enqueue(self, contender: Contender, queue: bool) -> Outcome:
        if again := self._granted_again(contender):
            return again
        while True:
            sent = now()
            line = self._queued(contender, queue)
            mine = _mine(line, contender.owner)
            if mine is None:  # somebody else has it and we don't queue, or our session is over: begin anew
                if not queue and line:
                    return self._busy(line)
                continue
            blockers = blockers_of(line, mine)
            if not blockers:
                return self._grant(contender, mine, sent)
            if not queue:
                self._delete(mine.node)
                return self._busy(line)
            if self._watching(blockers, contender):
                return self._busy(line)

    def _granted_again(self, contender: Contender) -> Grant | None:
        """Renew what this owner has already."""
        hold, sent = self._holds.get(contender.key, contender.owner), now()
        if hold is None or not self.extend(contender.key, contender.owner, contender.ttl):
            return None
        contender.node = hold.node
        return Grant(hold.token, sent)

    def _queued(self, contender: Contender, queue: bool) -> list[QueueEntry]:
        """Return the queue, with the contender's own node in it if it was enqueued."""
        folder = self._folder(contender.key)
        if contender.asked or not queue:
            line = self._read(folder, contender)
            if _mine(line, contender.owner) or not (queue or admits(line, self.kind, self.permits)):
                return line
        return self._create_node(folder, contender)

    def _create_node(self, folder: str, contender: Contender) -> list[QueueEntry]:
        """Create a node and return the queue: everybody before us was there when our node came."""
        contender.asked = True
        sent = now()
        path = f"{folder}/{node_name(contender.owner, self.kind, self.permits)}"
        watch = contender if self.kind == "semaphore" else None
        root, node, names = self._session.ask(
            created(folder),
            created(path, write_data(contender.owner, contender.ttl), contender=True),
            children(folder, watch),
        )
        if not is_answer(node):  # the folder went away in between, or was never there
            if not is_answer(root):
                self._session.ask(ensured(folder))
            return []
        contender.node, figures = node
        contender.token, contender.session = figures.czxid, figures.ephemeralOwner
        self._session.confirm(figures.ephemeralOwner, sent)
        return parse(folder, names) if is_answer(names) else []

    def _watching(self, blockers: Sequence[QueueEntry], contender: Contender) -> bool:
        """Have the contender woken when a blocker ends; False when one has ended already."""
        if self.kind == "semaphore":
            return True
        answers = self._session.ask(*(data(blocker.node, contender) for blocker in blockers))
        return all(map(is_answer, answers))

    def _grant(self, contender: Contender, mine: QueueEntry, sent: float) -> Grant:
        if contender.node != mine.node:  # its creation's reply was lost
            (found,) = self._session.ask(data(mine.node))
            if not is_answer(found):
                raise BackendUnavailable(f"the session with {self._session.hosts} ended while it was asked")
            contender.node = mine.node
            contender.token, contender.session = found[1].czxid, found[1].ephemeralOwner
        hold = LocalLease(mine.node, contender.token, sent + contender.ttl, contender.session)
        self._holds.add(contender.key, contender.owner, hold)
        return Grant(contender.token, sent)

    def _busy(self, line: Sequence[QueueEntry]) -> Busy:
        """Return the holder; the remaining time is a hint, for the holder's process ends its lease."""
        (found,) = self._session.ask(data(holders_of(line)[0].node))
        if not is_answer(found):
            return Busy(retry_after=0.001)
        owner, left = _owner_and_ttl(holders_of(line)[0].node, *found)
        return Busy(holder=owner, retry_after=None if left is None else max(left, 0.05))

    def poll_interval(self, contender: Contender) -> float:
        """See `QueueBackend`; watches end with the connection, and then wake."""
        return 30.0

    def dequeue(self, contender: Contender) -> None:
        self.release(contender.key, contender.owner)

    # holding

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return _result(self._extended([(key, owner, ttl)])[0])

    def extend_many(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | None]:
        """See the base class; all requests are sent at once."""
        answers = self._extended(leases)
        return ask_each([partial(_result, answer) for answer in answers], seconds=math.inf)

    def _extended(self, leases: Sequence[tuple[str, str, float]]) -> list[bool | BackendError]:
        """Write each hold's node anew; what the servers refused or left unanswered stands as its error."""
        holds = [self._holds.begin(key, owner) for key, owner, _ in leases]
        sent, answers = now(), list[bool | BackendError]([False] * len(leases))
        try:
            asked = [(i, hold) for i, hold in enumerate(holds) if hold is not None]
            written_anew = self._write_anew([(hold, leases[i]) for i, hold in asked])
            for (i, _), answer in zip(asked, written_anew, strict=True):
                answers[i] = answer
        finally:
            for hold, (_, _, ttl), held in zip(holds, leases, answers, strict=True):
                if hold is not None:
                    self._holds.settle(hold, sent + ttl if held is True else None)
        for (key, owner, _), hold, held in zip(leases, holds, answers, strict=True):
            if hold is not None and held is False:
                self._holds.pop(key, owner)
        return answers

    def _write_anew(
        self, holds: Sequence[tuple[LocalLease, tuple[str, str, float]]]
    ) -> list[bool | BackendError]:
        requests = [written(hold.node, write_data(owner, ttl)) for hold, (_, owner, ttl) in holds]
        answers = self._session.patiently(lambda: self._session.ask_each(*requests))
        return [answer if isinstance(answer, BackendError) else is_answer(answer) for answer in answers]

    def release(self, key: str, owner: str) -> bool:
        """See the base class; a node of this owner that only waits, or came late, is taken away too."""
        hold = self._holds.get(key, owner)
        if hold is None:
            mine = _mine(self._line(key), owner)
            return mine is not None and self._delete(mine.node)
        held = self._delete(hold.node)
        self._holds.pop(key, owner)
        self._stop_if_closing()
        return held

    def _delete(self, node: str) -> bool:
        """Delete a node, and its folder if nobody else is in it; False when it wasn't there."""
        tries, session = 0, self._session.number

        def step() -> bool:
            nonlocal tries
            tries += 1
            gone, _ = self._session.ask(deleted(node), deleted(node.rpartition("/")[0]))
            # A first try whose reply was lost may have done it, unless the node ended with its session.
            return is_answer(gone) or (tries > 1 and self._session.number == session)

        return self._session.patiently(step)

    def _end(self, key: str, hold: LocalLease) -> None:
        """Delete what has outlived its ttl."""
        if self._session.number == hold.session:
            self._delete(hold.node)
        if len(self._holds) <= 1:
            self._stop_if_closing(last=True)

    def force_release(self, key: str, expected: str) -> bool:
        for contender in holders_of(self._line(key)):
            (found,) = self._session.patiently(lambda node=contender.node: self._session.ask(data(node)))  # type: ignore[misc]
            if is_answer(found) and _owner_and_ttl(contender.node, *found)[0] == expected:
                self._holds.pop(key, expected)
                return self._delete(contender.node)
        return False

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with the session, as long as it may be believed in."""
        hold = self._holds.get(key, owner)
        return 0.0 if hold is None else self._session.believed_until(hold.session)

    def in_touch(self) -> bool:
        return self._session.connected()

    # listing

    def _holders(self, prefix: str) -> list[tuple[str, QueueEntry, int]]:
        found = [
            (key, holder, len(line) - len(holders_of(line)))
            for key, line in self._lines(prefix)
            for holder in holders_of(line)
        ]
        ages = self._ask_each([holder.node for _, holder, _ in found], data)
        dated = [(age[1].czxid, *hold) for age, hold in zip(ages, found, strict=True) if is_answer(age)]
        return [(key, holder, waiters) for _, key, holder, waiters in sorted(dated, key=lambda hold: hold[0])]

    def _lines(self, prefix: str) -> list[tuple[str, list[QueueEntry]]]:
        """Return the keys that begin with `prefix`, each with its line."""
        _, names = self._session.patiently(
            lambda: self._session.ask(synced(self._root), children(self._root))
        )
        locks = [name for name in names if name != FOLDER] if is_answer(names) else []
        folders = [name for name in locks if decode(name).startswith(prefix)]
        answers = self._ask_each([f"{self._root}/{name}" for name in folders], children)
        return [
            (decode(name), parse(f"{self._root}/{name}", answer))
            for name, answer in zip(folders, answers, strict=True)
            if is_answer(answer)
        ]

    def dequeue_owned(self, owned: Callable[[str], bool]) -> None:
        lines = [line for _, line in self._lines(self.settings.key_prefix)]
        nodes = [waiter.node for line in lines for waiter in line[len(holders_of(line)) :]]
        for node, found in zip(nodes, self._ask_each(nodes, data), strict=True):
            if is_answer(found) and owned(_owner_and_ttl(node, *found)[0]):
                self._delete(node)

    def _ask_each(self, paths: Sequence[str], request: Any) -> list[Any]:
        return self._session.patiently(lambda: self._session.ask(*map(request, paths))) if paths else []

    def _shown(self, key: str, contender: QueueEntry, waiters: int) -> Held:
        (found,) = self._session.patiently(lambda: self._session.ask(data(contender.node)))
        if not is_answer(found):
            return Held(key=key, owner=contender.node.rpartition("/")[2], kind=contender.kind)
        owner, left = _owner_and_ttl(contender.node, *found)
        return Held(
            key=key,
            owner=owner,
            kind=contender.kind,
            remaining=left,
            token=found[1].czxid,
            waiters=waiters,
            since=found[1].ctime / 1000,
        )

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
            self._variants[which] = ZooKeeperVariant(self, *which)
        return self._variants[which]

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        if not live:
            return []
        if self.settings.options.get("use_ssl"):  # a port with TLS doesn't know the four-letter words
            self._line("is-anyone-there")
            return []
        return examine(self._session.hosts, self.alias, self._session.timeout)

    def close(self) -> None:
        """End the session; one that holds locks stays until the last is over, for they would end with it."""
        self._closing = True
        self._stop_if_closing()

    def _stop_if_closing(self, *, last: bool = False) -> None:
        if self._closing and (last or not len(self._holds)):
            self._closing = False
            self._session.stop()


class ZooKeeperVariant(Variant, ZooKeeperBackend):
    """Another kind of lock, in the same session."""

    def __init__(self, main: ZooKeeperBackend, kind: str, permits: int) -> None:
        QueueBackend.__init__(self, main.settings)
        self.alias = f"{main.settings.alias}/{kind}"
        self.kind, self.permits, self.exclusive = kind, permits, kind != "semaphore"
        self._root, self._session, self._holds = main._root, main._session, main._holds
        self._closing, self._variants = False, {}


def _result(answer: bool | BackendError) -> bool:
    if isinstance(answer, BackendError):
        raise answer
    return answer


def _mine(line: Sequence[QueueEntry], owner: str) -> QueueEntry | None:
    prefix = guid(owner)
    return next((each for each in line if each.node.rpartition("/")[2].startswith(prefix)), None)


def _owner_and_ttl(node: str, content: bytes, figures: Any) -> tuple[str, float | None]:
    """Return the owner of a node, and a hint at what is left of its lease, by the servers' and this clock."""
    owner, ttl = read_data(node, content)
    if ttl is None:
        return owner, None
    return owner, min(ttl, max(0.0, figures.mtime / 1000 + ttl - time.time()))  # noqa: TID251 shown
