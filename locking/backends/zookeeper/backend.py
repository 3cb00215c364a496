"""The verbs of the contract on ZooKeeper: ephemeral nodes in a line, each waiter watching the one before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django.core.checks import CheckMessage

from locking.backends.base import Busy, Grant
from locking.backends.capabilities import SessionBound
from locking.backends.lease_expirer import LeaseExpirer, LocalLease
from locking.backends.queue.backend import (
    SUFFIXES,
    Contender,
    QueueBackend,
    QueueEntry,
    admits,
    holders_of,
)
from locking.backends.zookeeper.diagnosis import examine
from locking.backends.zookeeper.heartbeats import FOLDER, HeartbeatNodes
from locking.backends.zookeeper.nodes import decode, encode, guid, node_name, parse, read_data, write_data
from locking.backends.zookeeper.options import read_location, read_options
from locking.backends.zookeeper.session import Request, Session, is_answer, request
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable
from locking.utils.clock import now


class ZooKeeperBackend(SessionBound, HeartbeatNodes, QueueBackend):
    """`"BACKEND": "locking.backends.zookeeper.ZooKeeperBackend"`, `"LOCATION": "zk1:2181,zk2:2181/locks"`.

    OPTIONS: `session_timeout` (seconds, 10), `timeout` (seconds a request may take, 3), `user` and `password`
    (a digest; only this user may touch its nodes); all others go to KazooClient, with `use_ssl` and the files
    `ca`, `certfile` and `keyfile` for TLS.
    """

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        hosts, self._root = read_location(settings)
        self._session = Session(settings.alias, hosts, *read_options(settings))
        self.alone = self._session.alone
        self._holds = LeaseExpirer(self._end, self._session.beat, self._session.pause)
        self._published = {}
        self._closing = False

    # the queue

    def _folder(self, key: str) -> str:
        return f"{self._root}/{encode(key)}{SUFFIXES[self.kind]}"

    def _line(self, key: str) -> Sequence[QueueEntry]:
        return self._session.patiently(lambda: self._read(self._folder(key)))

    def _read(self, folder: str, contender: Contender | None = None) -> list[QueueEntry]:
        """Return the queue as the leader knows it; a semaphore's waiters watch all of it."""
        sent, session = now(), self._session.number
        _, names = self._session.ask(request("sync", folder), self._children(folder, contender))
        self._session.confirm(session, sent)
        return parse(folder, names) if is_answer(names) else []

    def _children(self, folder: str, contender: Contender | None) -> Request:
        return request("get_children", folder, watch=contender if self.kind == "semaphore" else None)

    def _enqueue(self, contender: Contender, queue: bool) -> Any:
        self._closing = False
        step = partial(super()._enqueue, contender, queue)
        return self._granted_again(contender) or self._session.patiently(step)

    def _granted_again(self, contender: Contender) -> Grant | None:
        """Renew what this owner has already."""
        hold, sent = self._holds.get(contender.key, contender.owner), now()
        if hold is None or not self.extend(contender.key, contender.owner, contender.ttl):
            return None
        contender.node = hold.node
        return Grant(hold.token, sent, is_new=False)

    def _queued(self, contender: Contender, queue: bool) -> list[QueueEntry]:
        """Return the queue, with the contender's own node in it if it was enqueued."""
        folder = self._folder(contender.key)
        if contender.asked or not queue:
            line = self._read(folder, contender)
            if self._entry_of(line, contender.owner) or not (queue or admits(line, self.kind, self.permits)):
                return line
        return self._create_node(folder, contender)

    def _create_node(self, folder: str, contender: Contender) -> list[QueueEntry]:
        """Create a node and return the queue: all entries before ours were there when our node came."""
        contender.asked = True
        sent = now()
        path = f"{folder}/{node_name(contender.owner, self.kind, self.permits)}"
        content = write_data(contender.owner, contender.ttl)
        root, node, names = self._session.ask(
            request("create", folder),
            request("create", path, content, ephemeral=True, sequence=True, include_data=True),
            self._children(folder, contender),
        )
        if not is_answer(node):  # the folder went away in between, or was never there
            if not is_answer(root):
                self._session.ask(request("ensure_path", folder))
            return []
        contender.node, figures = node
        contender.token, contender.session = figures.czxid, figures.ephemeralOwner
        self._session.confirm(figures.ephemeralOwner, sent)
        return parse(folder, names) if is_answer(names) else []

    def _entry_of(self, line: Sequence[QueueEntry], owner: str) -> QueueEntry | None:
        prefix = guid(owner)
        return next((each for each in line if each.node.rpartition("/")[2].startswith(prefix)), None)

    def _watch(self, contender: Contender, blockers: Sequence[QueueEntry], line: Any) -> bool:
        if self.kind == "semaphore":
            return True
        # Unlike `exists`, `get` leaves no watch on what isn't there.
        answers = self._session.ask(*(request("get", each.node, watch=contender) for each in blockers))
        return all(map(is_answer, answers))

    def _grant(self, contender: Contender, mine: QueueEntry, sent: float) -> Grant:
        is_new = contender.node == mine.node
        if not is_new:  # its creation's reply was lost
            (found,) = self._session.ask(request("get", mine.node))
            if not is_answer(found):
                raise BackendUnavailable(f"the session with {self._session.hosts} ended while it was asked")
            contender.node = mine.node
            contender.token, contender.session = found[1].czxid, found[1].ephemeralOwner
        hold = LocalLease(mine.node, contender.token, sent + contender.ttl, contender.session)
        self._holds.add(contender.key, contender.owner, hold)
        return Grant(contender.token, sent, is_new=is_new)

    def _busy(self, line: Sequence[QueueEntry]) -> Busy:
        """Return the holder; the remaining time is a hint, for the holder's process ends its lease."""
        (first,) = self._described(holders_of(line)[:1])
        if first is None:
            return Busy(retry_after=0.001)
        left = self._remaining(first)
        return Busy(holder=first.owner, retry_after=None if left is None else max(left, 0.05))

    def poll_interval(self, contender: Contender) -> float:
        """See `QueueBackend`; watches end with the connection, and then wake."""
        return 30.0

    # holding

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._holds.extend(key, owner, ttl, partial(self._rewritten, owner))

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self._holds.extend(key, owner, ttl, partial(self._rewritten, owner), exactly=True)

    def _rewritten(self, owner: str, hold: LocalLease, ttl: float) -> bool:
        """Write the node again; False when it has ended."""
        (answer,) = self._session.ask_patiently(request("set", hold.node, write_data(owner, ttl)))
        return is_answer(answer)

    def release(self, key: str, owner: str) -> bool:
        """See the base class; a node of this owner that only waits, or came late, is taken away too."""
        hold = self._holds.get(key, owner)
        if hold is None:
            mine = self._entry_of(self._line(key), owner)
            return mine is not None and self._withdraw(mine)
        held = self._delete(hold.node)
        self._holds.pop(key, owner)
        self._stop_if_closing()
        return held

    def _withdraw(self, entry: QueueEntry) -> bool:
        return self._delete(entry.node)

    def _delete(self, node: str) -> bool:
        """Delete a node, and its folder if it is empty; False when it wasn't there."""
        tries, session = 0, self._session.number

        def step() -> bool:
            nonlocal tries
            tries += 1
            gone, _ = self._session.ask(request("delete", node), request("delete", node.rpartition("/")[0]))
            # A first try whose reply was lost may have done it, unless the node ended with its session.
            return is_answer(gone) or (tries > 1 and self._session.number == session)

        return self._session.patiently(step)

    def _end(self, key: str, hold: LocalLease) -> None:
        """Delete what has outlived its ttl, unless it went with its session; fails without a connection."""
        if self._session.may_live(hold.session):
            self._delete(hold.node)
        if len(self._holds) <= 1:
            self._stop_if_closing(last=True)

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with the session, as long as it may be believed in."""
        hold = self._holds.get(key, owner)
        return 0.0 if hold is None else self._session.believed_until(hold.session)

    def in_touch(self) -> bool:
        return self._session.connected()

    # listing

    def _described(self, entries: Sequence[QueueEntry]) -> list[QueueEntry | None]:
        answers = self._session.ask_patiently(*(request("get", entry.node) for entry in entries))
        return [
            _with_data(entry, *answer) if is_answer(answer) else None
            for entry, answer in zip(entries, answers, strict=True)
        ]

    def _remaining(self, entry: QueueEntry) -> float | None:
        """See `QueueBackend`: a hint, by the servers' clock and this one."""
        if entry.ttl is None:
            return None
        return min(entry.ttl, max(0.0, entry.renewed + entry.ttl - time.time()))  # noqa: TID251 shown

    def _lines(self, prefix: str) -> list[tuple[str, list[QueueEntry]]]:
        _, names = self._session.ask_patiently(
            request("sync", self._root), request("get_children", self._root)
        )
        locks = [name for name in names if name != FOLDER] if is_answer(names) else []
        folders = [f"{self._root}/{name}" for name in locks if decode(name).startswith(prefix)]
        answers = self._session.ask_patiently(*(request("get_children", folder) for folder in folders))
        return [
            (decode(folder.removeprefix(f"{self._root}/")), parse(folder, answer))
            for folder, answer in zip(folders, answers, strict=True)
            if is_answer(answer)
        ]

    # housekeeping

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        if not live:
            return []
        if self.settings.options.get("use_ssl"):  # a port with TLS doesn't know the four-letter words
            self._line("is-anyone-there")
            return []
        return examine(self._session.hosts, self.alias, self._session.timeout)

    def close(self) -> None:
        """End the session; one that holds locks stays until the last is over, for they would end with it."""
        if self.kind == "lock":  # a variant's is the main backend's
            self._closing = True
            self._stop_if_closing()

    def _stop_if_closing(self, *, last: bool = False) -> None:
        if self._closing and (last or not len(self._holds)):
            self._closing = False
            self._session.stop()


def _with_data(entry: QueueEntry, content: bytes, figures: Any) -> QueueEntry:
    """Return an entry with what its node's data and figures say."""
    owner, ttl = read_data(entry.node, content)
    since, renewed = figures.ctime / 1000, figures.mtime / 1000
    return replace(entry, owner=owner, ttl=ttl, token=figures.czxid, since=since, renewed=renewed)
