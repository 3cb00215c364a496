"""The queue on ZooKeeper: ephemeral nodes in a line, each waiter watching the one before."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from django.core.checks import CheckMessage

from locking.backends.base import Heartbeat, Outcome
from locking.backends.capabilities import SessionBound
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
from locking.backends.zookeeper.nodes import encode, guid, node_name, parse, read_data, write_data
from locking.backends.zookeeper.options import read_location, read_options
from locking.backends.zookeeper.session import Request, Session, is_answer, request
from locking.conf import AliasSettings
from locking.utils.clock import now


class ZooKeeperBackend(SessionBound, QueueBackend):
    """`"BACKEND": "locking.backends.zookeeper.ZooKeeperBackend"`, `"LOCATION": "zk1:2181,zk2:2181/locks"`.

    OPTIONS: `session_timeout` (seconds, 10), `timeout` (seconds a request may take, 3), `user` and `password`
    (a digest; only this user may touch its nodes); all others go to KazooClient, with `use_ssl` and the files
    `ca`, `certfile` and `keyfile` for TLS.
    """

    engine = "ZooKeeper"
    floor = "3.5"

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        hosts, self._root = read_location(settings)
        self._session = Session(settings.alias, hosts, *read_options(settings))
        self.alone = self._session.alone
        self._holds = LeaseExpirer(self._end, self._session.beat, self._session.pause, self._rest)
        self._published: dict[str, tuple[int, str]] = {}

    # the queue

    def _folder(self, key: str) -> str:
        return f"{self._root}/{encode(key)}{SUFFIXES[self.kind]}"

    def _enqueue(self, contender: Contender, queue: bool) -> Outcome:
        self._session.is_closing = False
        return self._session.patiently(partial(super()._enqueue, contender, queue))

    def _line(self, key: str) -> Line:
        return self._session.patiently(partial(super()._line, key))

    def _read(self, folder: str, contender: Contender | None = None) -> list[QueueEntry]:
        """See `QueueBackend`: as the leader knows it; a semaphore's waiters watch all of it."""
        sent, session = now(), self._session.number
        _, names = self._session.ask(request("sync", folder), self._children(folder, contender))
        self._session.confirm(session, sent)
        return parse(folder, names) if is_answer(names) else []

    def _children(self, folder: str, contender: Contender | None) -> Request:
        return request("get_children", folder, watch=contender if self.kind == "semaphore" else None)

    def _create(self, folder: str, contender: Contender) -> list[QueueEntry]:
        """See `QueueBackend`: all entries before ours were there when our node came."""
        sent = now()
        path = f"{folder}/{node_name(contender.owner, self.kind, self.permits)}"
        content = write_data(contender.owner, contender.ttl)
        root, made, names = self._session.ask(
            request("create", folder),
            request("create", path, content, ephemeral=True, sequence=True, include_data=True),
            self._children(folder, contender),
        )
        if not is_answer(made):  # the folder went away in between, or was never there
            if not is_answer(root):
                self._session.ask(request("ensure_path", folder))
            return []
        node, figures = made
        contender.hold = LocalLease(node, figures.czxid, 0.0, figures.ephemeralOwner)
        self._session.confirm(figures.ephemeralOwner, sent)
        return parse(folder, names) if is_answer(names) else []

    def _owns(self, entry: QueueEntry, owner: str) -> bool:
        return entry.node.rpartition("/")[2].startswith(guid(owner))

    def _adopt(self, contender: Contender, mine: QueueEntry) -> LocalLease | None:
        content = write_data(contender.owner, contender.ttl)
        (figures,) = self._session.ask(request("set", mine.node, content))
        if not is_answer(figures):
            return None
        return LocalLease(mine.node, figures.czxid, 0.0, figures.ephemeralOwner)

    def _watch(self, contender: Contender, blockers: Line, line: Line) -> bool:
        if self.kind == "semaphore":
            return True
        # Unlike `exists`, `get` leaves no watch on what isn't there.
        answers = self._session.ask(*(request("get", each.node, watch=contender) for each in blockers))
        return all(map(is_answer, answers))

    # holding

    def _extended(self, owner: str, hold: LocalLease, ttl: float) -> bool:
        (answer,) = self._session.ask_patiently(request("set", hold.node, write_data(owner, ttl)))
        return is_answer(answer)

    def _withdraw(self, node: str, lease: int) -> bool:
        """See `QueueBackend`; what went with its session isn't asked for, and fails without a connection."""
        return (not lease or self._session.may_live(lease)) and self._delete(node)

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

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with the session, as long as it may be believed in."""
        hold = self._holds.get(key, owner)
        return 0.0 if hold is None else self._session.believed_until(hold.session)

    def in_touch(self) -> bool:
        return self._session.connected()

    # listing

    def _described(self, entries: Line) -> list[QueueEntry | None]:
        answers = self._session.ask_patiently(*(request("get", entry.node) for entry in entries))
        return [
            _with_data(entry, *answer) if is_answer(answer) else None
            for entry, answer in zip(entries, answers, strict=True)
        ]

    def _remaining(self, entry: QueueEntry) -> float | None:
        """See `QueueBackend`: a hint, by the servers' clock and this one; the holder ends its lease."""
        if entry.ttl is None:
            return None
        return min(entry.ttl, max(0.0, entry.renewed + entry.ttl - time.time()))  # noqa: TID251 shown

    def _lines(self, prefix: str) -> list[tuple[str, list[QueueEntry]]]:
        _, names = self._session.ask_patiently(
            request("sync", self._root), request("get_children", self._root)
        )
        locks = [name for name in names if name != HEARTBEATS] if is_answer(names) else []
        folders = [f"{self._root}/{name}" for name in locks if key_of(name).startswith(prefix)]
        answers = self._session.ask_patiently(*(request("get_children", folder) for folder in folders))
        return [
            (key_of(folder.removeprefix(f"{self._root}/")), parse(folder, answer))
            for folder, answer in zip(folders, answers, strict=True)
            if is_answer(answer)
        ]

    # heartbeats: <root>/%presence/<KEY_PREFIX><client id>, an ephemeral node: while it is there, the session
    # lives, so that a sign of life takes no request of its own

    def _heartbeat_node(self, client: str) -> str:
        return f"{self._root}/{HEARTBEATS}/{encode(self.key(client))}"

    def publish_heartbeats(self, records: Mapping[str, str | None], *, forget: Collection[str] = ()) -> None:
        for client, text in records.items():
            session, known = self._published.get(client, (0, None))
            if text is None and session != self._session.number:
                text = known
            if text is not None:
                node, content = self._heartbeat_node(client), text.encode()
                create = request("create", node, content, ephemeral=True, makepath=True)
                self._session.ask(request("set", node, content), create)
                self._published[client] = self._session.number, text
        for client in forget:
            if self._published.pop(client, (0, ""))[0] == self._session.number != 0:
                self._session.ask(request("delete", self._heartbeat_node(client)))

    def _heartbeats_of(self, wanted: Callable[[str], bool]) -> dict[str, Heartbeat]:
        folder = f"{self._root}/{HEARTBEATS}"
        (names,) = self._session.ask_patiently(request("get_children", folder))
        clients = self._clients(names if is_answer(names) else (), wanted)
        answers = self._session.ask_patiently(*(request("get", f"{folder}/{name}") for name in clients))
        found = zip(clients.values(), answers, strict=True)
        return {client: Heartbeat(each[0].decode(), None) for client, each in found if is_answer(each)}

    # housekeeping

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; a port with TLS knows no four-letter words: it is only asked for something."""
        if not self.settings.options.get("use_ssl"):
            return super().check(live=live)
        if live:
            self._line("is-anyone-there")
        return []

    def _statuses(self) -> tuple[Mapping[str, Status | None], bool]:
        answers = {
            host: four_letters(host, b"srvr", self._session.timeout)
            for host in self._session.hosts.split(",")
        }
        statuses = {
            host: Status(_field(answer, "Zookeeper version"), "not currently serving" not in answer)
            if answer
            else None
            for host, answer in answers.items()
        }
        return statuses, any(_field(answer, "Mode") == "standalone" for answer in answers.values())

    def close(self) -> None:
        """End the session, at once or with its last hold: what it holds would end with it."""
        if self.kind == "lock":  # a variant's is the main backend's
            self._session.is_closing = True
            self._rest()

    def _rest(self) -> None:
        if self._session.is_closing and not len(self._holds):
            self._session.stop()


def _with_data(entry: QueueEntry, content: bytes, figures: Any) -> QueueEntry:
    """Return an entry with what its node's data and figures say."""
    owner, ttl = read_data(entry.node, content)
    since, renewed = figures.ctime / 1000, figures.mtime / 1000
    return replace(entry, owner=owner, ttl=ttl, token=figures.czxid, since=since, renewed=renewed)


def four_letters(host: str, word: bytes, timeout: float) -> str:
    """Return a server's answer to one of its four-letter words; empty: there is none."""
    name, _, port = host.rpartition(":")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=timeout) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _field(answer: str, name: str) -> str:
    lines = (line.partition(":") for line in answer.splitlines())
    return next((value.strip() for key, _, value in lines if key == name), "")
