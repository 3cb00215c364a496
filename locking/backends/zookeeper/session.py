"""One session with the ensemble for each process and alias: requests, outages, and how long to believe in it.

A hold is an ephemeral node, so it ends with the session, which the servers end when they have heard nothing
of it for `session_timeout`. This side must know earlier. While anything is held, `sync` is asked through the
leader five times a session timeout, and the session is believed in for two thirds of a timeout after the last
question that was answered: the rest is room for a follower that passes on late what it has heard.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from operator import methodcaller
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState
from kazoo.security import make_digest_acl

from locking.backends.options import checked_options, misplaced, own_files, own_login, own_pair
from locking.backends.queue import read_servers
from locking.conf import AliasSettings
from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import CANNOT_START, after_fork
from locking.utils.clock import now

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
    """Return the servers, as kazoo wants them, and the folder of all locks.

    Raises:
        ImproperlyConfigured: there is no server.
    """
    text = ",".join(read_servers(settings, "'zk1:2181,zk2:2181,zk3:2181/locks'"))
    hosts, _, root = text.removeprefix("zk://").partition("/")
    if not hosts:
        raise ImproperlyConfigured(f"LOCKING[{settings.alias!r}]['LOCATION'] names no server: {text!r}")
    return hosts, f"/{root.strip('/') or 'locks'}"


def kazoo_options(settings: AliasSettings) -> dict[str, Any]:
    """Return the options of an alias as KazooClient takes them.

    Raises:
        ImproperlyConfigured: half of a pair, a file that can't be read, or TLS' without `use_ssl`.
    """
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
    """A kazoo client that starts at its first use, and again in a forked child or after it has given up.

    Attributes:
        hosts: `host:port`, with commas between several.
        root: the folder of all locks.
        timeout: seconds that a request may take.
        is_closing: the backend was closed and not used since: the session ends with its last hold.
    """

    is_closing = False

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
        """Send requests one right after the other, which keep their order, and return their answers; None for
        one that found no node, or an obstacle.

        Raises:
            Dropped: the connection was lost; BackendUnavailable: no answer; BackendError: a refusal.
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
        """Return what `step` returns; repeat it when the connection was lost meanwhile, for a while.

        Each step looks first whether its earlier try took effect.
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
        """The session's number, as long as the servers may know it: kazoo resumes it until they say that it
        is over. 0 without one.
        """
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
