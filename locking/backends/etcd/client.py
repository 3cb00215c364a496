"""Requests to the members of an etcd cluster by its JSON gateway: the next one is asked when one fails.

Every request is one that may be sent twice.
"""

from __future__ import annotations

import json
import math
import threading
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import requests
from django.core.exceptions import ImproperlyConfigured
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from locking.backends.options import checked_options, misplaced, own_files, own_login, own_pair
from locking.backends.queue import Contender, read_servers
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import after_fork, start_thread
from locking.utils.clock import now

TLS: Final = ("ca_cert", "cert_cert", "cert_key")
DEFAULTS: Final[dict[str, Any]] = {
    "prefix": "locks/",
    "timeout": 3.0,
    **dict.fromkeys(("user", "password", *TLS)),
}
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
    """Return the URLs of the members.

    Raises:
        ImproperlyConfigured: there is none, or one that isn't a plain address.
    """
    urls = read_servers(settings, "['http://etcd1:2379', 'http://etcd2:2379']")
    for url in urls:
        parts, where = urlsplit(url), f"LOCKING[{settings.alias!r}]['LOCATION']"
        if parts.username is not None:  # not shown: it has a password in it
            raise ImproperlyConfigured(f"{where} names a user: say OPTIONS={{'user': …, 'password': …}}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ImproperlyConfigured(f"{where} has {url!r}: write http://host:2379 or https://host:2379")
    return [url.rstrip("/") for url in urls]


class Refused(BackendError):
    """etcd answered with an error.

    Attributes:
        text: what it said.
        code: gRPC's code, where the answer has one.
        repeated: another member was sent the same request before, and may have carried it out.
    """

    repeated = False

    def __init__(self, where: str, text: str, code: int | None = None) -> None:
        self.text, self.code = text, code
        super().__init__(f"{where} refused: {text}")


class EtcdClient:
    """The members of the cluster that an alias names.

    Raises:
        ImproperlyConfigured: an option that there isn't, half of a pair, a file that can't be read, or TLS'
            without https.

    Attributes:
        urls: one for each member.
        prefix: of all keys.
        timeout: seconds that a request may take, shared out between the members, any of which may hang.
    """

    def __init__(self, settings: AliasSettings) -> None:
        options = checked_options(settings, DEFAULTS)
        self.alias, self.urls = settings.alias, read_urls(settings)
        self.prefix, self.timeout = str(options["prefix"]), float(options["timeout"])
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

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        self.session.close()

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Return the answer of the first member that has one.

        Raises:
            Refused: the cluster says no. BackendUnavailable: none answered within the time.
        """
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
        """End a lease, which deletes its keys; False when it had ended already.

        The request may have been carried out by a member whose answer was lost before another member was
        asked: that the lease is gone then means that this request ended it.
        """
        try:
            self.ask("/lease/revoke", ID=str(lease))
        except Refused as error:
            if error.code == NOT_FOUND:
                return error.repeated
            raise
        return True

    def left(self, lease: int) -> int:
        """Return the whole seconds that are left of a lease, rounded down; 0 or less when it has ended."""
        return int(self.ask("/lease/timetolive", ID=str(lease)).get("TTL", 0))


class WatchManager:
    """The watch of one backend, on all its keys, for all who wait in this process.

    The end of its stream wakes them, and they ask again; one that says nothing is ended after a while, too.

    Attributes:
        waiting: the nodes whose end each waiter waits for, until it is gone itself.
        listens: a thread reads the stream.
    """

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: threads don't survive a fork."""
        self._mutex = threading.Lock()
        self.waiting: WeakKeyDictionary[Contender, frozenset[str]] = WeakKeyDictionary()
        self.listens, self._seen = False, 0  # up to which revision it has heard, or need not hear

    def register(self, contender: Contender, nodes: frozenset[str], revision: int) -> None:
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
