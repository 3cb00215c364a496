"""One session with the ensemble for each process and alias: requests, outages, and how long to believe in it.

A hold is an ephemeral node, so it ends with the session, which the servers end when they have heard nothing
of it for `session_timeout`. This side must know earlier. While anything is held, `sync` is asked through the
leader five times a session timeout, and the session is believed in for two thirds of a timeout after the last
question that was answered: the rest is room for a follower that passes on late what it has heard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from operator import methodcaller
from typing import Any, Final, TypeVar

from kazoo import exceptions as errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KeeperState

from locking.exceptions import BackendError, BackendUnavailable
from locking.utils.background import CANNOT_START, after_fork
from locking.utils.clock import now

T = TypeVar("T")
Request = Callable[[KazooClient], Any]
"""Sends one request on a client and returns kazoo's pending result."""

SESSION_TRUST_RATIO: Final = 2 / 3
"""Share of the session timeout for which an answered question is good."""

BEATS: Final = 5
"""Questions in one session timeout."""

RECONNECT_PAUSE: Final = 0.5
"""Seconds between two rounds over all servers at most, as an outage goes on; kazoo's own pause doubles up to
an hour.
"""

ANSWERS: Final = (errors.NoNodeError, errors.NodeExistsError, errors.NotEmptyError)
"""Errors that are answers; `ask` returns them."""

DROPPED: Final = (
    errors.ConnectionLoss, errors.ConnectionClosedError, errors.SessionExpiredError, errors.SessionMovedError,
    errors.OperationTimeoutError,
)  # fmt: skip


class Dropped(BackendUnavailable):
    """The connection was lost under way: the request may have been carried out or not. Worth a new try."""


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """Knows the session timeout that the servers agreed to, of which kazoo itself keeps the one it asked for,
    and when it must be replaced.
    """

    _session_timeout: int

    has_given_up = False
    """kazoo's loop has ended, as it does where a login fails or breaks off: it never connects again."""

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

    def end(self) -> None:
        """End the session and free everything."""
        self.stop()
        self.close()


class Session:
    """A kazoo client that starts at its first use, and again in a forked child or after it has given up.

    Args:
        alias: in `LOCKING`, for messages.
        hosts: `host:port`, with commas between several.
        session_timeout: seconds after which the servers are to end a session that they don't hear of; they
            have limits, and what they agree to counts.
        timeout: seconds that a request may take.
        options: further arguments of KazooClient, such as `use_ssl`, `ca`, `auth_data`, `default_acl`.

    Attributes:
        is_closing: the backend was closed and not used since: the session ends with its last hold.
    """

    is_closing = False

    def __init__(
        self, alias: str, hosts: str, session_timeout: float, timeout: float, options: dict[str, Any]
    ) -> None:
        self.alias, self.hosts, self.timeout = alias, hosts, timeout
        self.alone = "," not in hosts
        # kazoo gives each server it knows its share of the session to answer a connect. A single one that
        # never does, as may happen while it starts, would cost the session and all its holds: hence thrice.
        known = ",".join([hosts] * 3) if self.alone else hosts
        # A lost connection is looked for without end, by the handler's own sleep, as kazoo insists.
        sleep = (options.get("handler") or SequentialThreadingHandler).sleep_func
        retry = {"max_tries": -1, "max_delay": RECONNECT_PAUSE, "sleep_func": sleep}
        own = {"hosts": known, "timeout": session_timeout, "connection_retry": retry}
        self._arguments: dict[str, Any] = {**own, **options}
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Forget the client: it is the parent's."""
        self._starting = threading.Lock()
        self._client: Client | None = None
        self._belief: tuple[int, float, float] = (0, 0.0, 0.0)

    # the client

    def client(self) -> Client:
        """Return a connected client, or raise BackendUnavailable after `timeout` seconds."""
        client = self._current()
        if not client._live.wait(self.timeout):
            hint = ", by TLS: kazoo's log tells whether a certificate was refused" * client.use_ssl
            raise BackendUnavailable(f"{self._which} isn't there within {self.timeout:g} s{hint}")
        return client

    def _current(self) -> Client:
        """Return the client, connected or not; start one if there is none, or the last has given up."""
        with self._starting:
            if self._client is not None and self._client.has_given_up:
                former, self._client = self._client, None
                former.end()
            if self._client is None:
                made = Client(**self._arguments)
                try:
                    made.start_async()
                except (OSError, *CANNOT_START) as error:  # no descriptor or thread is left, for the moment
                    made.handler._running = True  # one of its two threads may run: kazoo would pass over it
                    made.handler.stop()
                    made.close()
                    raise BackendUnavailable(f"{self._which} can't be asked: {error}") from error
                self._client = made
            return self._client

    def stop(self) -> None:
        """End the session, and with it everything that it holds."""
        with self._starting:
            client, self._client, self._belief = self._client, None, (0, 0.0, 0.0)
        if client is not None:
            client.end()

    def connected(self) -> bool:
        """Whether there is a connection, as far as this side knows."""
        client = self._client
        return client is not None and bool(client.connected)

    # asking

    @property
    def _which(self) -> str:
        return f"ZooKeeper at {self.hosts} (LOCKING[{self.alias!r}])"

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

    def ask(self, *requests: Request) -> list[Any]:
        """Send requests one right after the other, which keep their order, and return their answers.

        Raises:
            Dropped: the connection was lost; BackendUnavailable: no answer; BackendError: a refusal.
        """
        client, answers = self.client(), list[Any]()
        try:
            pending = [send(client) for send in requests]
            until = now() + self.timeout
            for result in pending:
                try:
                    answers.append(result.get(timeout=max(0.001, until - now())))
                except ANSWERS as answer:
                    answers.append(answer)
        except DROPPED as error:
            raise Dropped(f"{self._which}: {type(error).__name__} during a request") from error
        except KazooTimeoutError as error:
            raise BackendUnavailable(f"{self._which} didn't answer within {self.timeout:g} s") from error
        except errors.KazooException as error:
            raise BackendError(f"{self._which} refused: {type(error).__name__} {error}") from error
        return answers

    def ask_patiently(self, *requests: Request) -> list[Any]:
        """`ask`, repeated when the connection was lost; for requests that may be repeated."""
        return self.patiently(lambda: self.ask(*requests)) if requests else []

    # how long the session may be believed in

    @property
    def number(self) -> int:
        """The session's number; 0 without one."""
        client = self._client
        return 0 if client is None or client.client_id is None else int(client.client_id[0])

    def may_live(self, session: int) -> bool:
        """Whether the servers may know `session` still, with or without a connection: kazoo resumes it until
        they say that it is over.
        """
        client = self._client
        return client is not None and client._session_id == session

    def _length(self) -> float:
        """Return the timeout that the servers agreed to, in seconds."""
        client = self._client
        wanted: float = self._arguments["timeout"]
        return wanted if client is None else client._session_timeout / 1000

    def confirm(self, session: int, sent: float) -> None:
        """Note that a question, asked at `sent` while the session was `session`, was answered by the leader.

        It counts only if that session is still the present one: a question may have waited for a connection,
        and been answered in the session that came after.
        """
        length = self._length()  # read first: it isn't that of a session which comes after the comparison
        if session != self.number:
            return
        known, before, _ = self._belief
        self._belief = (session, max(sent, before) if session == known else sent, length)

    def believed_until(self, session: int) -> float:
        """Return the moment until which `session` surely lives; 0.0 for another than the present one.

        A server that the client goes over to may agree to less than the one before.
        """
        known, sent, length = self._belief
        return sent + min(length, self._length()) * SESSION_TRUST_RATIO if session == known else 0.0

    def beat(self) -> None:
        """Ask the leader whether the session lives; doesn't wait for the answer."""
        client, session, sent = self._client, self.number, now()
        if client is None or not session:
            return

        def heard(result: Any) -> None:
            if result.successful():
                self.confirm(session, sent)

        with suppress(errors.KazooException):  # there is no connection
            client.sync_async("/").rawlink(heard)

    def pause(self) -> float:
        """Return the seconds between two beats."""
        return self._length() / BEATS


def request(verb: str, *arguments: Any, **options: Any) -> Request:
    """Return a request that is sent by kazoo's method for `verb`, which doesn't wait for the answer."""
    return methodcaller(f"{verb}_async", *arguments, **options)


def is_answer(answer: Any) -> bool:
    """Whether the request did what it should, instead of being answered by one of `ANSWERS`."""
    return not isinstance(answer, ANSWERS)
