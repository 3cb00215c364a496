"""The queue on etcd, through the JSON gateway that every server has: a key with a lease for each contender.

    <prefix><name>/<lease in hex>       value: JSON of owner, ttl, kind and permits

as `etcdctl lock` and Go's `concurrency.Mutex` have it. The lowest create revision has the lock, and is its
fencing token. The lease's number is made of the owner, so that a request whose reply was lost may be sent
again, to the next member of the cluster when one fails.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import requests
from django.core.exceptions import ImproperlyConfigured
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from locking.backends import queue
from locking.backends.base import HEARTBEAT_TTL, Heartbeat
from locking.conf import AliasSettings, checked_options, misplaced, own_files, own_login, own_pair
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import after_fork, start_thread
from locking.utils.clock import now

__all__ = ["EtcdBackend"]

TLS: Final = ("ca_cert", "cert_cert", "cert_key")
DEFAULTS: Final = {"prefix": "locks/", "timeout": 3.0, **dict.fromkeys(("user", "password", *TLS))}
"""What `OPTIONS` may hold."""

API: Final = "/v3"
SILENCES: Final = (408, 503, 504)  # a member has no leader, or its leader doesn't answer
NOT_FOUND: Final = 5  # gRPC's code for a lease that is over
UNAUTHENTICATED: Final = 16  # gRPC's for a token that has ended, or that a restarted member has forgotten
PAUSE: Final = 0.05  # seconds between two rounds over all members, as long as none has a leader
CONNECTIONS: Final = 32  # kept to each member

QUIET: Final = 5.0
"""Seconds without an event after which a stream is given up: a member that hangs, or has lost the others,
keeps it open and says nothing. Its waiters ask again, and watch at a member that answers.
"""


def encoded(text: str) -> str:
    """Return a key or value as the gateway wants it."""
    return b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """Return what the gateway sent."""
    return b64decode(text).decode(errors="replace")


def below(prefix: str) -> dict[str, Any]:
    """Return the range of all keys that begin with `prefix`, as the gateway wants it."""
    raw = prefix.encode()
    end = raw[:-1] + bytes([raw[-1] + 1])  # no UTF-8 ends with 0xFF
    return {"key": encoded(prefix), "range_end": b64encode(end).decode()}


def read_urls(settings: AliasSettings) -> list[str]:
    """Return the URLs of the members; ImproperlyConfigured: there is none, or one that isn't an address."""
    urls = queue.read_servers(settings, "['http://etcd1:2379', 'http://etcd2:2379']")
    for url in urls:
        parts, where = urlsplit(url), f"LOCKING[{settings.alias!r}]['LOCATION']"
        if parts.username is not None:  # not shown: it has a password in it
            raise ImproperlyConfigured(f"{where} names a user: say OPTIONS={{'user': …, 'password': …}}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ImproperlyConfigured(f"{where} has {url!r}: write http://host:2379 or https://host:2379")
    return [url.rstrip("/") for url in urls]


class Refused(BackendError):
    """etcd answered with an error."""

    repeated = False  # another member was sent the same request before, and may have carried it out

    def __init__(self, where: str, text: str, code: int | None = None) -> None:
        self.text, self.code = text, code  # what it said, and gRPC's code, where the answer has one
        super().__init__(f"{where} refused: {text}")


class EtcdClient:
    """The members of the cluster that an alias names."""

    def __init__(self, settings: AliasSettings) -> None:
        options = checked_options(settings, DEFAULTS)
        self.alias, self.urls = settings.alias, read_urls(settings)
        self.prefix = str(options["prefix"])
        # Seconds that a request may take, shared out between the members, any of which may hang.
        self.timeout = float(options["timeout"])
        self._login = own_login(settings)
        has_certificate = own_pair(settings, "cert_cert", "cert_key")
        files = own_files(settings, *TLS)
        plain = [url for url in self.urls if not url.startswith("https://")]
        if files and plain:
            raise misplaced(settings, min(files), f"is for https, but LOCATION has {plain[0]!r}")
        self._authority = files.get("ca_cert", True)
        self._certificate = (files["cert_cert"], files["cert_key"]) if has_certificate else None
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Forget all connections: they are the parent's."""
        self.preferred = self.urls[0]  # the member that answered last
        self.session = requests.Session()
        # A proxy, a bundle of CAs or a .netrc of the environment would take the place of what is set here.
        self.session.trust_env = False
        self.session.verify, self.session.cert = self._authority, self._certificate
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer of the first member that has one; `Refused` where that is no."""
        until, repeated = now() + self.timeout, False
        url = first = self.preferred
        while True:
            try:
                answer = self._post(url, path, body)
            except Refused as error:
                error.repeated = repeated
                raise
            except requests.RequestException as error:
                reason = getattr(error.args[0] if error.args else None, "reason", None)
                unsent = isinstance(error, requests.ConnectTimeout) or isinstance(reason, NewConnectionError)
                problem, repeated = error, repeated or not unsent
            else:
                self.preferred = url
                return answer
            if now() >= until or len(self.urls) == 1:
                raise BackendUnavailable(
                    f"etcd at {', '.join(self.urls)} (LOCKING[{self.alias!r}]) doesn't answer within"
                    f" {self.timeout:g} s: {str(problem) or type(problem).__name__}"
                ) from problem
            url = self.urls[(self.urls.index(url) + 1) % len(self.urls)]
            if url == first:
                time.sleep(PAUSE)

    def _post(self, url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request as the user, if there is one; a token that no longer counts is replaced once."""
        if self._login is None:
            return self.send(url, path, body)
        headers = self.session.headers
        if "Authorization" in headers:
            try:
                return self.send(url, path, body)
            except Refused as error:
                if error.code != UNAUTHENTICATED and "auth store is old" not in error.text:
                    raise
        # One member's token counts for all. etcd refuses even a login whose header has one that it forgot.
        named = dict(zip(("name", "password"), self._login, strict=True))
        login = self.send(url, "/auth/authenticate", named, headers={"Authorization": None})
        headers["Authorization"] = login["token"]
        return self.send(url, path, body)

    def send(self, url: str, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return one member's answer; Refused, or an error of requests."""
        timeout = self.timeout / len(self.urls)
        with self.session.post(f"{url}{API}{path}", json=body, timeout=timeout, **more) as answer:
            if answer.status_code in SILENCES:
                raise requests.ConnectionError(answer.text)
            if answer.ok:
                return dict(answer.json())
        try:
            said = answer.json()
            text, code = said["error"], said.get("code")
        except (ValueError, TypeError, KeyError):
            text, code = answer.text, None
        raise Refused(f"etcd at {url} (LOCKING[{self.alias!r}])", text, code)

    # leases, in whole seconds: a key that is bound to one ends with it

    def grant(self, lease: int, ttl: float) -> None:
        """Have the lease, new or as a former try left it: then it must be renewed."""
        try:
            self.ask("/lease/grant", TTL=str(math.ceil(ttl)), ID=str(lease))
        except Refused as error:
            if "already exists" not in error.text:
                raise
            self.renew(lease)

    def renew(self, lease: int) -> bool:
        """Give the lease its full length again; False when it has ended."""
        return int(self.ask("/lease/keepalive", ID=str(lease)).get("result", {}).get("TTL", 0)) > 0

    def revoke(self, lease: int) -> bool:
        """End a lease, which deletes its keys; False when it had ended already."""
        try:
            self.ask("/lease/revoke", ID=str(lease))
        except Refused as error:
            if error.code == NOT_FOUND:
                return error.repeated  # then the member that was asked before has ended it
            raise
        return True

    def left(self, lease: int) -> int:
        """Return the whole seconds that are left of a lease, rounded down; 0 or less when it has ended."""
        return int(self.ask("/lease/timetolive", ID=str(lease)).get("TTL", 0))


class WatchManager:
    """The watch of one backend, on all its keys, for all who wait in this process.

    The end of its stream wakes them, and they ask again; one that says nothing is ended after a while, too.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: threads don't survive a fork."""
        self._mutex = threading.Lock()
        # The nodes whose end each waiter waits for, until it is gone itself.
        self.waiting: WeakKeyDictionary[queue.Contender, frozenset[str]] = WeakKeyDictionary()
        self.listens = False  # a thread reads the stream
        self._seen = 0  # up to which revision it has heard, or need not hear

    def register(self, contender: queue.Contender, nodes: frozenset[str], revision: int) -> None:
        """Wake `contender` when one of `nodes`, seen at `revision`, ends; it may be woken without need."""
        with self._mutex:
            self.waiting[contender] = nodes
            if not self.listens:  # without a thread this waiter asks by the clock, and tries again
                self._seen = revision
                run = partial(self._run, revision + 1)
                self.listens = start_thread("locking-listen-etcd", run) is not None
            missed = self._seen > revision
        if missed:  # something may have ended after the queue was read and before this call, or the watch
            contender.wake()

    def _run(self, revision: int) -> None:
        try:
            # A stream ends in many ways, such as by silence; its waiters ask again, and see why.
            with suppress(requests.RequestException, OSError, ValueError):
                self._listen(revision)
        finally:
            with self._mutex:
                self.listens, waiting = False, list(self.waiting)
            for contender in waiting:
                contender.wake()

    def _listen(self, revision: int) -> None:
        watched = {**below(self._client.prefix), "start_revision": revision, "filters": ["NOPUT"]}
        timeouts = (self._client.timeout, QUIET)  # to connect, and between two events
        url, request = f"{self._client.preferred}{API}/watch", {"create_request": watched}
        with self._client.session.post(url, json=request, stream=True, timeout=timeouts) as response:
            for line in response.iter_lines(chunk_size=None):  # type: ignore[call-overload]  # as it comes
                result = json.loads(line).get("result", {}) if line else {}
                if result.get("canceled"):
                    return
                events = [event["kv"] for event in result.get("events", ())]
                gone = {decoded(kv["key"]) for kv in events}
                with self._mutex:
                    self._seen = max([self._seen, *(int(kv["mod_revision"]) for kv in events)])
                    waiting = list(self.waiting.items())
                for contender, nodes in waiting:
                    if nodes & gone:
                        contender.wake()
                if not waiting:
                    return


# --- the queue --------------------------------------------------------------------------------------------


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
            self._client.session.close()


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
    """Keep a name within its folder: a slash in it must not look like the end of the name."""
    return key.replace("%", "%25").replace("/", "%2F")
