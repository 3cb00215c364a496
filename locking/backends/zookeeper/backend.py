"""The queue on ZooKeeper: a folder for each name, in it an ephemeral node for each contender.

    <root>/<name>/_c_<uuid>-lock-<number>               Curator's InterProcessMutex
    <root>/<name>%rw/_c_<uuid>-__lock__<number>         kazoo's WriteLock
    <root>/<name>%rw/_c_<uuid>-__rlock__<number>        kazoo's ReadLock
    <root>/<name>%semaphore/_c_<uuid>-<permits>-lease-<number>

The uuid is made of the owner, so a creation whose reply was lost is found again. The data is JSON: owner,
ttl. Sources: Curator's LockInternals and its protection mode; kazoo.recipe.lock.
"""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from django.core.checks import CheckMessage

from locking.backends import queue
from locking.backends.base import Heartbeat, Outcome
from locking.backends.capabilities import SessionBound
from locking.backends.zookeeper.session import Dropped, ZooKeeperSession, request
from locking.conf import AliasSettings
from locking.utils.clock import now

TAGS: Final = {"lock": "lock-", "read": "__rlock__", "write": "__lock__", "semaphore": "lease-"}
KINDS: Final = {tag: kind for kind, tag in TAGS.items()}
NODE: Final = re.compile(
    r".*?(?:(?P<permits>\d+)-)?(?P<tag>lock-|__rlock__|__lock__|lease-)(?P<order>-?\d{10})", re.DOTALL
)
FORBIDDEN: Final = re.compile(r"[^\x20-\uD7FF]|[/%\x7F-\x9F]")
"""What a node's name may not contain, or the encoding needs; beyond U+D7FF Java sees surrogates."""


class ZooKeeperBackend(SessionBound, queue.QueueBackend):
    """`"BACKEND": "locking.backends.zookeeper.ZooKeeperBackend"`, `"LOCATION": "zk1:2181,zk2:2181/locks"`.

    OPTIONS: `session_timeout` (seconds, 10), `timeout` (seconds a request may take, 3), `user` and `password`
    (a digest; only this user may touch its nodes); all others go to KazooClient, with `use_ssl` and the files
    `ca`, `certfile` and `keyfile` for TLS.
    """

    engine = "ZooKeeper"
    floor = (3, 5)

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._session = ZooKeeperSession(settings)
        self._root, self.addresses = self._session.root, self._session.hosts.split(",")
        self._holds = queue.LeaseExpirer(self._withdraw, self._session.beat, self._rest)
        self._published: dict[str, tuple[int, str]] = {}

    # the queue

    def _folder(self, key: str) -> str:
        return f"{self._root}/{encode(key)}{queue.SUFFIXES[self.kind]}"

    def _enqueue(self, contender: queue.Contender, queue: bool) -> Outcome:
        self._session.is_closing = False
        return self._session.patiently(partial(super()._enqueue, contender, queue))

    def _read(self, key: str) -> queue.Line:
        """See `QueueBackend`: as the leader knows it."""
        folder, sent, session = self._folder(key), now(), self._session.number
        _, names = self._session.ask_patiently(request("sync", folder), request("get_children", folder))
        self._session.confirm(session, sent)
        return parse(folder, names or ())

    def _create(self, contender: queue.Contender) -> queue.Line:
        """See `QueueBackend`: all entries before ours were there when our node came."""
        folder, sent = self._folder(contender.key), now()
        permits = f"{self.permits}-" if self.kind == "semaphore" else ""
        path = f"{folder}/{guid(contender.owner)}{permits}{TAGS[self.kind]}"
        content = write_data(contender.owner, contender.ttl)
        _, made, names = self._session.ask(
            request("create", folder),
            request("create", path, content, ephemeral=True, sequence=True, include_data=True),
            request("get_children", folder),
        )
        if made is None:  # the folder went away in between, or the root isn't there yet
            self._session.ask(request("ensure_path", folder))
            return ()
        node, figures = made
        contender.hold = queue.QueueEntry(node, 0, token=figures.czxid, lease=figures.ephemeralOwner)
        self._session.confirm(figures.ephemeralOwner, sent)
        return parse(folder, names or ())

    def _owns(self, entry: queue.QueueEntry, owner: str) -> bool:
        return entry.node.rpartition("/")[2].startswith(guid(owner))

    def _watch(self, contender: queue.Contender, blockers: queue.Line, line: queue.Line) -> bool:
        # Unlike `exists`, `get` leaves no watch on what isn't there.
        answers = self._session.ask(*(request("get", each.node, watch=contender) for each in blockers))
        return None not in answers

    # holding

    def _extended(self, owner: str, hold: queue.QueueEntry, ttl: float) -> bool:
        (figures,) = self._session.ask_patiently(request("set", hold.node, write_data(owner, ttl)))
        if figures is not None:
            hold.token, hold.lease = figures.czxid, figures.ephemeralOwner
        return figures is not None

    def _withdraw(self, entry: queue.QueueEntry) -> bool:
        """See `QueueBackend`: delete a node, and its folder if it is empty. What went with its session isn't
        asked for; without a connection this fails.
        """
        session = self._session.number
        if entry.lease not in (0, session):
            return False
        requests = request("delete", entry.node), request("delete", entry.node.rpartition("/")[0])
        try:
            gone, _ = self._session.ask(*requests)
            return bool(gone)
        except Dropped:  # this try may have done it, unless the node ended with its session
            gone, _ = self._session.ask_patiently(*requests)
            return bool(gone) or self._session.number == session

    def hold_ends(self, key: str, owner: str) -> float:
        """See the base class: with the session, as long as it may be believed in."""
        hold = self._holds.get(key, owner)
        return 0.0 if hold is None else self._session.believed_until(hold.lease)

    def in_touch(self) -> bool:
        return self._session.connected()

    # listing

    def _described(self, entries: queue.Line) -> list[queue.QueueEntry | None]:
        answers = self._session.ask_patiently(*(request("get", entry.node) for entry in entries))
        return [
            None if answer is None else described(entry, *answer)
            for entry, answer in zip(entries, answers, strict=True)
        ]

    def _remaining(self, entry: queue.QueueEntry) -> float | None:
        """See `QueueBackend`: a hint, by the servers' clock and this one; the holder ends its lease."""
        if entry.ttl is None:
            return None
        return min(entry.ttl, max(0.0, entry.renewed + entry.ttl - time.time()))  # noqa: TID251 shown

    def _lines(self, prefix: str) -> list[tuple[str, queue.Line]]:
        """See `QueueBackend`; in the folder of heartbeats is no contender."""
        root = self._root
        _, names = self._session.ask_patiently(request("sync", root), request("get_children", root))
        locks = [name for name in names or () if queue.key_of(name).startswith(prefix)]
        answers = self._session.ask_patiently(*(request("get_children", f"{root}/{name}") for name in locks))
        found = zip(locks, answers, strict=True)
        return [(queue.key_of(name), parse(f"{root}/{name}", answer or ())) for name, answer in found]

    # heartbeats: <root>/%presence/<KEY_PREFIX><client id>, an ephemeral node: while it is there, the session
    # lives, so that a sign of life takes no request of its own

    def _heartbeat_node(self, client: str) -> str:
        return f"{self._root}/{queue.HEARTBEATS}/{encode(self.key(client))}"

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

    def heartbeats(self, clients: Collection[str] | None = None) -> dict[str, Heartbeat]:
        folder = f"{self._root}/{queue.HEARTBEATS}"
        (names,) = self._session.ask_patiently(request("get_children", folder))
        wanted = self._clients(names or (), clients)
        answers = self._session.ask_patiently(*(request("get", f"{folder}/{name}") for name in wanted))
        found = zip(wanted.values(), answers, strict=True)
        return {client: Heartbeat(each[0].decode(), None) for client, each in found if each is not None}

    # housekeeping

    def check(self, *, live: bool = False) -> list[CheckMessage]:
        """See the base class; a port with TLS knows no four-letter words: it is only asked for something."""
        if not self.settings.options.get("use_ssl"):
            return super().check(live=live)
        if live:
            self._read("is-anyone-there")
        return []

    def _status(self, address: str) -> queue.Status | None:
        if not (answer := four_letters(address, b"srvr", self._session.timeout)):
            return None
        serves = "not currently serving" not in answer
        return queue.Status(queue.version_of(answer), serves, "Mode: standalone" in answer)

    def close(self) -> None:
        """End the session, at once or with its last hold: what it holds would end with it."""
        if self.kind == "lock":  # a variant's is the main backend's
            self._session.is_closing = True
            self._rest()

    def _rest(self) -> None:
        if self._session.is_closing and not len(self._holds):
            self._session.stop()


def four_letters(host: str, word: bytes, timeout: float) -> str:
    """Return a server's answer to one of its four-letter words; empty: there is none."""
    name, _, port = host.rpartition(":")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=timeout) as connection:
            connection.sendall(word)
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def encode(key: str) -> str:
    """Return the name of a key's folder: readable where ZooKeeper allows it, percent-encoded elsewhere.

    Example:
        >>> encode("order:42/订单")
        'order:42%2F订单'
    """
    text = FORBIDDEN.sub(lambda match: quote(match[0], safe=""), key)
    return text.replace(".", "%2E") if text in (".", "..", "zookeeper") else text


def guid(owner: str) -> str:
    """Return what begins the node of an owner, Curator's protection prefix."""
    return f"_c_{uuid.uuid5(uuid.NAMESPACE_OID, owner)}-"


def parse(folder: str, children: Iterable[str]) -> list[queue.QueueEntry]:
    """Return the contenders of a folder in the order of their numbers; other children are passed over."""
    line = [
        queue.QueueEntry(
            f"{folder}/{child}", int(match["order"]), KINDS[match["tag"]], int(match["permits"] or 0), child
        )
        for child in children
        if (match := NODE.fullmatch(child)) is not None
    ]
    return sorted(line, key=lambda contender: contender.order)


def write_data(owner: str, ttl: float) -> bytes:
    """Return the data of a node."""
    return json.dumps({"owner": owner, "ttl": ttl}, separators=(",", ":")).encode()


def described(entry: queue.QueueEntry, data: bytes, figures: Any) -> queue.QueueEntry:
    """Return an entry with what its node says; another client's is its own owner, without a ttl."""
    entry.token, entry.since, entry.renewed = figures.czxid, figures.ctime / 1000, figures.mtime / 1000
    with suppress(ValueError, TypeError, KeyError):
        fields = json.loads(data)
        entry.owner, entry.ttl = str(fields["owner"]), float(fields["ttl"])
    return entry
