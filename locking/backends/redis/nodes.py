"""Independent servers that are asked all at once, with short time-outs: what Redlock needs of Redis.

A request is sent to every server before the first reply is read. A server that refuses, hangs or fails is
*silent*, whatever the reason, and is left alone for a moment; what it may still do of what it was asked is
undone when it speaks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from locking.backends.redis.backend import RedisBackend
from locking.backends.redis.diagnosis import parse_info
from locking.backends.redis.protocol import Terms, taken_from
from locking.backends.redis.scripts import Request, command
from locking.backends.redis.transport import ThreadConnection, ThreadServer, closed_on_failure, run
from locking.conf import AliasSettings
from locking.utils.clock import now

LEFT_ALONE: Final = 1.0
"""Seconds for which a silent server isn't asked: each caller would wait for it."""

SETTLING: Final = 0.1
"""Seconds after which a server that answers again has processed what it had received before."""

MOST_PENDING: Final = 10_000


class Silence(NamedTuple):
    """In the place of a reply: why there is none."""

    reason: str


class PendingUndo(NamedTuple):
    """A pending undo: sent twice once the server answers, for it handles old requests in any order."""

    request: Request
    due: float
    last: bool


class Sent(NamedTuple):
    """A request on its way."""

    connection: ThreadConnection
    fresh: bool


class Node:
    """One of the servers; as `backend` it is asked alone."""

    def __init__(self, settings: AliasSettings, url: str, timeout: float, restart_delay: float) -> None:
        options = {**settings.options, "socket_timeout": timeout, "socket_connect_timeout": timeout}
        self.backend = RedisBackend(replace(settings, location=url, cache=None, options=options))
        asked_alone = self.backend.calls
        assert isinstance(asked_alone, ThreadServer)
        self.server = ThreadServer(Terms(settings.alias, asked_alone.index), asked_alone.pool)
        self._timeout, self._restart_delay = timeout, restart_delay
        self._pending: deque[PendingUndo] = deque(maxlen=MOST_PENDING)
        self._silent_until = 0.0
        self._why = ""

    def send(self, request: Request) -> Sent | Silence:
        """Send the request, unless the server was silent a moment ago."""
        if now() < self._silent_until:
            return Silence(self._why)
        try:
            idle = taken_from(self.server.idle)
            connection = idle or self._opened(self.server.make())
            with closed_on_failure(connection):
                self._undo_pending(connection)
                connection.send(request.by_digest)
        except (RedisError, OSError) as error:
            return self._fell_silent(error)
        return Sent(connection, fresh=idle is None)

    def read(self, asked: Sent | Silence, request: Request, deadline: float) -> Any:
        """Return the reply, or Silence; `deadline` is shared by all servers."""
        if isinstance(asked, Silence):
            return asked
        try:
            with closed_on_failure(asked.connection):
                reply = self._read(asked, request, deadline)
        except (RedisError, OSError) as error:
            return self._fell_silent(error)
        self.server.idle.append(asked.connection)
        return reply

    def _read(self, asked: Sent, request: Request, deadline: float) -> Any:
        connection = asked.connection
        try:
            return _reply(connection, deadline)
        except NoScriptError:
            connection.send(request.by_source)
            return _reply(connection, deadline)
        except RedisConnectionError:
            if asked.fresh:
                raise
            connection.disconnect()  # it was closed while it was idle: once more
            self._opened(connection).send(request.by_source)
            return request.settled(_reply(connection, deadline))

    def _opened(self, connection: ThreadConnection) -> ThreadConnection:
        """Connect; no connection outlives a restart of its server, so this is where one shows.

        A server that restarted abstains until every lock that it forgot has ended.
        """
        with closed_on_failure(connection):
            run(connection.connect())
            if self._restart_delay:
                info = parse_info(run(connection.exchange(command("INFO", "server").by_digest, None)))
                up = float(info["uptime_in_seconds"])
                if up < self._restart_delay:
                    raise RedisConnectionError(
                        f"it started {up:g} s ago and abstains for {self._restart_delay:g} s, having"
                        " forgotten locks"
                    )
        return connection

    def _fell_silent(self, error: Exception) -> Silence:
        self._why = f"{type(error).__name__}: {error}"
        if not isinstance(error, ResponseError):
            self._silent_until = now() + LEFT_ALONE
        return Silence(self._why)

    # what is to be undone

    def undo_later(self, request: Request) -> None:
        """Undo something as soon as the server speaks again."""
        self._pending.append(PendingUndo(request, 0.0, last=False))

    def cancel(self, request: Request) -> None:
        """Undo this no more."""
        for undo in [undo for undo in list(self._pending) if undo.request == request]:
            with suppress(ValueError):  # another thread has just taken it
                self._pending.remove(undo)

    def _undo_pending(self, connection: ThreadConnection) -> None:
        for _ in range(len(self._pending)):
            try:
                undo = self._pending.popleft()
            except IndexError:
                return
            if now() < undo.due:
                self._pending.append(undo)
                continue
            try:
                connection.send(undo.request.by_source)
                connection.receive(self._timeout, pushed=False)
            except ResponseError:  # an answer about this key, and none about what is asked next
                self._pending.append(undo._replace(due=now() + LEFT_ALONE))
                continue
            except BaseException:
                self._pending.append(undo)
                raise
            if not undo.last:
                self._pending.append(PendingUndo(undo.request, now() + SETTLING, last=True))

    def close(self) -> None:
        """Close the idle sockets."""
        run(self.server.shutdown())
        self.backend.close()


def _reply(connection: ThreadConnection, deadline: float) -> Any:
    return connection.receive(max(0.001, deadline - now()), pushed=False)


def ask_all(nodes: Sequence[Node], request: Request, timeout: float) -> list[Any]:
    """Return the reply of every node, or its Silence, after at most `timeout` seconds for all of them."""
    asked: deque[Sent | Silence] = deque()
    try:
        for node in nodes:
            asked.append(node.send(request))
        deadline = now() + timeout
        return [node.read(asked.popleft(), request, deadline) for node in nodes]
    finally:
        for each in asked:  # interrupted: their answers would be taken for those to other requests
            if isinstance(each, Sent):
                each.connection.disconnect()
