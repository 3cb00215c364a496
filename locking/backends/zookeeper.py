"""The queue on ZooKeeper: a folder for each name, in it an ephemeral node for each contender.

    <root>/<name>/_c_<uuid>-lock-<number>               Curator's InterProcessMutex
    <root>/<name>%rw/_c_<uuid>-__lock__<number>         kazoo's WriteLock
    <root>/<name>%rw/_c_<uuid>-__rlock__<number>        kazoo's ReadLock
    <root>/<name>%semaphore/_c_<uuid>-<permits>-lease-<number>

The uuid is made of the owner, so a creation whose reply was lost is found again. The data is JSON: owner,
ttl. Sources: Curator's LockInternals and its protection mode; kazoo.recipe.lock.

Such a node ends with its session, of which a process has one for each alias, and which the servers end when
they have heard nothing of it for `session_timeout`. This side must know earlier. While anything is held,
`sync` is asked through the leader five times a session timeout, and the session is believed in for two thirds
of a timeout after the last question that was answered: the rest is room for a follower that passes on late
what it has heard.
"""

from __future__ import annotations

import inspect
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from operator import methodcaller
from typing import Any, Final, TypeVar
from urllib.parse import quote

from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import make_digest_acl

from locking.backends import queue
from locking.backends.base import Heartbeat, Outcome
from locking.backends.capabilities import SessionBound
from locking.conf import AliasSettings, checked_options, misplaced, own_files, own_login, own_pair
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import CANNOT_START, after_fork
from locking.utils.clock import now

__all__ = ["ZooKeeperBackend"]

T = TypeVar("T")

DEFAULTS: Final = {"session_timeout": 10.0, "timeout": 3.0, "user": None, "password": None}
"""What `OPTIONS` may hold beside arguments of KazooClient."""

KAZOO_S: Final = set(inspect.signature(KazooClient).parameters) - {"hosts", "client_id", "kwargs", "timeout"}
FILES: Final = ("ca", "certfile", "keyfile")
TLS: Final = (*FILES, "keyfile_password", "verify_certs", "check_hostname")

SESSION_TRUST_RATIO: Final = 2 / 3  # share of the session timeout for which an answered question is good
BEATS: Final = 5  # questions in one session timeout
RECONNECT_PAUSE: Final = 0.5  # seconds between two rounds over all servers; kazoo's own doubles up to an hour
Request = Callable[[KazooClient], Any]  # sends one request on a client, and returns kazoo's pending result
ANSWERS: Final = (errors.NoNodeError, errors.NodeExistsError, errors.NotEmptyError)  # to `ask` they are None
DROPPED: Final = (
    errors.ConnectionLoss, errors.ConnectionClosedError, errors.SessionExpiredError, errors.SessionMovedError,
    errors.OperationTimeoutError,
)  # fmt: skip


class Dropped(BackendUnavailable):
    """The connection was lost under way: the request may have been carried out or not. Worth a new try."""


def request(verb: str, *arguments: Any, **options: Any) -> Request:
    """Return a request that is sent by kazoo's method for `verb`, which doesn't wait for the answer."""
    return methodcaller(f"{verb}_async", *arguments, **options)


def read_location(settings: AliasSettings) -> tuple[str, str]:
    """Return the servers, as kazoo wants them, and the folder of all locks."""
    text = ",".join(queue.read_servers(settings, "'zk1:2181,zk2:2181,zk3:2181/locks'"))
    hosts, _, root = text.removeprefix("zk://").partition("/")
    if not hosts:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['LOCATION'] names no server: {text!r}")
    return hosts, f"/{root.strip('/') or 'locks'}"


def kazoo_options(settings: AliasSettings) -> dict[str, Any]:
    """Return the options of an alias as KazooClient takes them; ImproperlyConfigured: they can't be."""
    given = {name: value for name, value in settings.options.items() if name not in DEFAULTS}
    if (sasl := given.get("sasl_options")) is not None:
        if not (isinstance(sasl, Mapping) and "mechanism" in sasl):
            raise misplaced(settings, "sasl_options", "must be a dict with a 'mechanism', such as DIGEST-MD5")
        if find_spec("puresasl") is None:
            raise misplaced(settings, "sasl_options", "needs kazoo's SASL: pip install 'kazoo[sasl]'")
    if (login := own_login(settings)) is not None:
        if ":" in login[0]:
            raise misplaced(settings, "user", "has a colon, which a digest can't")
        given["auth_data"] = [*given.get("auth_data", ()), ("digest", ":".join(login))]
        # Not CREATOR_ALL_ACL: by TLS the creator is the certificate too, which others may have.
        given.setdefault("default_acl", [make_digest_acl(*login, all=True)])
    if not isinstance(given.setdefault("use_ssl", False), bool):
        raise misplaced(settings, "use_ssl", "must be True or False")
    if not given["use_ssl"]:
        if stray := [name for name in TLS if given.get(name) is not None]:
            raise misplaced(settings, stray[0], "counts only with 'use_ssl': True")
        return given
    own_pair(settings, "certfile", "keyfile")
    verified = given.get("verify_certs", True)
    # Unlike kazoo by itself: the server's name is compared with its certificate unless that is forbidden.
    if given.setdefault("check_hostname", verified) and not verified:
        raise misplaced(settings, "check_hostname", "needs 'verify_certs': True")
    return {**given, **own_files(settings, *FILES)}


class ZooKeeperClient(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """Knows the session timeout that the servers agreed to, and when it must be replaced."""

    _session_timeout: int
    has_given_up = False  # kazoo's loop has ended, as it does where a login fails: it never connects again

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._wanted, self._ask = self._session_timeout, self._connection._invoke
        self._connection._invoke = self._invoke

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Ask for the wanted timeout each time; note what was agreed to before the session is used."""
        if not isinstance(request, Connect):
            return self._ask(timeout, request, xid)
        answer, zxid = self._ask(timeout, request._replace(time_out=self._wanted), xid)
        if answer.time_out > 0:  # not more: the session is over
            self._session_timeout = answer.time_out
        return answer, zxid

    def _session_callback(self, state: str) -> None:
        self.has_given_up = self.has_given_up or state == KeeperState.CLOSED
        super()._session_callback(state)


class ZooKeeperSession:
    """A kazoo client that starts at its first use, and again in a forked child or after it has given up."""

    is_closing = False  # the backend was closed and not used since: the session ends with its last hold

    def __init__(self, settings: AliasSettings) -> None:
        options = checked_options(settings, {**dict.fromkeys(KAZOO_S), **DEFAULTS})
        self.hosts, self.root = read_location(settings)
        self.timeout, self._wanted = float(options["timeout"]), float(options["session_timeout"])
        self._name = f"ZooKeeper at {self.hosts} (LOCKING[{settings.alias!r}])"
        given = kazoo_options(settings)
        self._arguments = {
            # kazoo gives each server it knows its share of the session to answer a connect. A single one
            # that never does, as while it starts, would cost the session and all its holds: hence thrice.
            "hosts": self.hosts if "," in self.hosts else ",".join([self.hosts] * 3),
            "timeout": self._wanted,
            # A lost connection is looked for without end, by the handler's own sleep, as kazoo insists.
            "connection_retry": {
                "max_tries": -1,
                "max_delay": RECONNECT_PAUSE,
                "sleep_func": (given.get("handler") or SequentialThreadingHandler).sleep_func,
            },
            **given,
        }
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Forget the client: it is the parent's."""
        self._starting = threading.Lock()
        self._client: ZooKeeperClient | None = None
        self._belief: tuple[int, float, float] = (0, 0.0, 0.0)

    # the client

    def client(self) -> ZooKeeperClient:
        """Return a connected client, or raise BackendUnavailable after `timeout` seconds."""
        client = self._current()
        if not client._live.wait(self.timeout):
            hint = ", by TLS: kazoo's log tells whether a certificate was refused" * client.use_ssl
            raise BackendUnavailable(f"{self._name} isn't there within {self.timeout:g} s{hint}")
        return client

    def _current(self) -> ZooKeeperClient:
        """Return the client, connected or not; start one if there is none, or the last has given up."""
        with self._starting:
            if self._client is not None and self._client.has_given_up:
                former, self._client = self._client, None
                former.stop()
                former.close()
            if self._client is None:
                made = ZooKeeperClient(**self._arguments)
                try:
                    made.start_async()
                except (OSError, *CANNOT_START) as error:  # no descriptor or thread is left, for the moment
                    made.handler._running = True  # one of its two threads may run: kazoo would pass over it
                    made.handler.stop()
                    made.close()
                    raise BackendUnavailable(f"{self._name} can't be asked: {error}") from error
                self._client = made
            return self._client

    def stop(self) -> None:
        """End the session, and with it everything that it holds."""
        with self._starting:
            client, self._client, self._belief = self._client, None, (0, 0.0, 0.0)
        if client is not None:
            client.stop()
            client.close()

    def connected(self) -> bool:
        """Whether there is a connection, as far as this side knows."""
        client = self._client
        return client is not None and bool(client.connected)

    # asking

    def ask(self, *requests: Request) -> list[Any]:
        """Return the answers to requests that are sent in this order; None: there was no node, or one in the
        way. `Dropped`: the connection was lost.
        """
        client, answers = self.client(), list[Any]()
        try:
            pending, until = [send(client) for send in requests], now() + self.timeout
            for result in pending:
                try:
                    answers.append(result.get(timeout=max(0.001, until - now())))
                except ANSWERS:
                    answers.append(None)
        except DROPPED as error:
            raise Dropped(f"{self._name}: {type(error).__name__} during a request") from error
        except KazooTimeoutError as error:
            raise BackendUnavailable(f"{self._name} didn't answer within {self.timeout:g} s") from error
        except errors.KazooException as error:
            raise BackendError(f"{self._name} refused: {type(error).__name__} {error}") from error
        return answers

    def patiently(self, step: Callable[[], T]) -> T:
        """Return what `step` returns, which is repeated, for a while, when the connection was lost meanwhile:
        it looks first whether its earlier try took effect.
        """
        until = now() + self.timeout
        while True:
            try:
                return step()
            except Dropped:
                if now() >= until:
                    raise

    def ask_patiently(self, *requests: Request) -> list[Any]:
        """`ask`, repeated when the connection was lost; for requests that may be repeated."""
        return self.patiently(lambda: self.ask(*requests)) if requests else []

    # how long the session may be believed in

    @property
    def number(self) -> int:
        """The session's number, until kazoo has heard from the servers that it is over; 0 without one."""
        client = self._client
        return 0 if client is None else client._session_id or 0

    def _length(self) -> float:
        """Return the timeout that the servers agreed to, in seconds."""
        client = self._client
        return self._wanted if client is None else client._session_timeout / 1000

    def confirm(self, session: int, sent: float) -> None:
        """Note that a question, asked at `sent` while the session was `session`, was answered by the leader.

        It counts only if that session is still the present one: a question may have waited for a connection,
        and been answered in the session that came after.
        """
        length = self._length()  # read first: it isn't that of a session which comes after the comparison
        if session == self.number:
            known, before, _ = self._belief
            self._belief = (session, max(sent, before) if session == known else sent, length)

    def believed_until(self, session: int) -> float:
        """Return the moment until which `session` surely lives; 0.0 for another than the present one.

        A server that the client goes over to may agree to less than the one before.
        """
        known, sent, length = self._belief
        return sent + min(length, self._length()) * SESSION_TRUST_RATIO if session == known else 0.0

    def beat(self) -> float:
        """Ask the leader whether the session lives, without waiting; return the seconds until the next."""
        client, session, sent = self._client, self.number, now()

        def heard(result: Any) -> None:
            if result.successful():
                self.confirm(session, sent)

        if client is not None and client.connected:
            with suppress(errors.KazooException):  # the connection is lost just now
                client.sync_async("/").rawlink(heard)
        return self._length() / BEATS


# --- the queue --------------------------------------------------------------------------------------------

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
        """See `QueueBackend`: a folder that is empty goes too; what went with its session isn't asked for."""
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
    """Return the name of a key's folder: readable where ZooKeeper allows it, percent-encoded elsewhere."""
    text = FORBIDDEN.sub(lambda match: quote(match[0], safe=""), key)
    return text.replace(".", "%2E") if text in (".", "..", "zookeeper") else text


def guid(owner: str) -> str:
    """Return what begins the node of an owner, Curator's protection prefix."""
    return f"_c_{uuid.uuid5(uuid.NAMESPACE_OID, owner)}-"


def parse(folder: str, children: Iterable[str]) -> list[queue.QueueEntry]:
    """Return the contenders of a folder in the order of their numbers; other children are passed over."""
    line = list[queue.QueueEntry]()
    for child in children:
        if (match := NODE.fullmatch(child)) is not None:
            order, kind, permits = int(match["order"]), KINDS[match["tag"]], int(match["permits"] or 0)
            line.append(queue.QueueEntry(f"{folder}/{child}", order, kind, permits, child))
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
