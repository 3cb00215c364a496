"""Sockets for threads: one request, one reply, every wait bounded, and nothing sent twice that isn't safe
twice.

Connections come from a redis-py pool, so address, TLS and credentials are the user's own. A connection is
kept in hand after its first use: the pool's check-out and check-in cost as much as the request.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Protocol
from weakref import WeakSet

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from locking.backends.redis.scripts import Request
from locking.exceptions import BackendError, BackendUnavailable

DEFAULT_TIMEOUT = 5.0
"""Seconds for connecting and for a reply where the pool's own settings name none."""

ATTEMPTS = 2
"""The first may meet a socket that the server closed while it was idle; the second has a fresh one."""

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)


class KeepsSockets(Protocol):
    """What a forked child must empty: a socket that two processes read mixes up their replies."""

    def forget(self) -> None:
        """Drop the idle sockets; a lock made before the fork then opens its own."""


IDLE_SOCKETS: WeakSet[KeepsSockets] = WeakSet()


def _forget_all() -> None:
    for keeper in list(IDLE_SOCKETS):
        keeper.forget()


os.register_at_fork(after_in_child=_forget_all)


class Wire:
    """Requests of all threads to one server."""

    def __init__(self, pool: ConnectionPool, alias: str) -> None:
        self._pool = pool
        self._alias = alias
        self._idle: deque[AbstractConnection] = deque()
        IDLE_SOCKETS.add(self)

    def forget(self) -> None:
        """Drop the idle sockets without a word to the server."""
        self._idle = deque()

    def call(self, request: Request) -> Any:
        """Send a script call and return the reply.

        It is repeated once on a fresh socket when the reply is lost: every script here is safe to repeat.

        Raises:
            BackendUnavailable: no reply; whether the script ran is unknown. BackendError: an error as reply.
        """
        connection = self._take()
        try:
            reply = self._converse(connection, request)
        except RedisError as error:
            raise translated(error, self._alias) from error
        finally:
            self._idle.append(connection)
        return reply

    def _converse(self, connection: AbstractConnection, request: Request) -> Any:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return request.settled(_exchange(connection, request), attempt)
            except UNREACHABLE as error:
                connection.disconnect()
                if attempt == ATTEMPTS:
                    raise (
                        error if isinstance(error, RedisError) else RedisConnectionError(str(error))
                    ) from error
        raise AssertionError("unreachable")

    def command(self, *parts: str | bytes | int) -> Any:
        """Send an ordinary command; for what isn't on the hot path."""
        connection = self._take()
        try:
            connection.send_command(*parts, check_health=False)
            return connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            raise translated(error, self._alias) from error
        finally:
            self._idle.append(connection)

    def _take(self) -> AbstractConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self.connection()

    def connection(self) -> AbstractConnection:
        """Return a new connection, not yet connected, that gives up in bounded time."""
        # Not by make_connection(): the pool would count it against its limit, even after it was closed.
        connection: Any = self._pool.connection_class(**self._pool.connection_kwargs)
        connection.retry = Retry(NoBackoff(), 0)
        connection.socket_timeout = connection.socket_timeout or DEFAULT_TIMEOUT
        if hasattr(connection, "socket_connect_timeout"):
            connection.socket_connect_timeout = connection.socket_connect_timeout or DEFAULT_TIMEOUT
        return connection  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the idle sockets."""
        while self._idle:
            self._idle.pop().disconnect()


def translated(error: Exception, alias: str) -> BackendError:
    """Return our error for redis-py's: *no answer* and *an error as answer* are two different things."""
    kind = BackendUnavailable if isinstance(error, UNREACHABLE) else BackendError
    verb = "doesn't answer" if kind is BackendUnavailable else "refused the request"
    hint = (
        " (a key of that name is no lock: choose another name, or a KEY_PREFIX)"
        if "WRONGTYPE" in str(error)
        else ""
    )
    return kind(f"Redis of the lock backend {alias!r} {verb}{hint}: {error}")


def _exchange(connection: AbstractConnection, request: Request) -> Any:
    """One request and its reply. An interruption between the two closes the socket: the next user of the
    connection must not read an answer that was meant for this one.
    """
    try:
        connection.send_packed_command((request.by_digest,), check_health=False)
        return connection.read_response(disable_decoding=True)
    except NoScriptError:
        connection.send_packed_command((request.by_source,), check_health=False)
        return connection.read_response(disable_decoding=True)
    except ResponseError:
        raise  # a whole answer, if not the one that was hoped for
    except BaseException:
        connection.disconnect()
        raise
