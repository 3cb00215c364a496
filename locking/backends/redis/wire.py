"""Sockets for threads: one request, one reply, every wait bounded, and nothing sent twice that isn't safe
twice.

Connections come from a redis-py pool, so address, TLS and credentials are the user's own. A connection is
kept in hand after its first use: the pool's check-out and check-in cost as much as the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar
from weakref import WeakSet

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, ConnectionPool
from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from locking.backends.redis.index import Index
from locking.backends.redis.line import shortened, talk
from locking.backends.redis.scripts import Command, Request, pack
from locking.background import after_fork
from locking.exceptions import BackendError, BackendUnavailable, LockError

DEFAULT_TIMEOUT = 5.0
"""Seconds for connecting and for a reply where the pool's own settings name none."""

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)

MOVING = (TryAgainError, ClusterDownError)
"""What a cluster answers while a slot or a master moves: not now."""

MISSED: Final = ResponseError("no reply")
"""Stands for what a pipeline didn't answer."""

ASKING: Final = b"*1\r\n" + pack(b"ASKING")


_Sent = TypeVar("_Sent")


class NotReached(RedisConnectionError):
    """No connection came about, so nothing was sent."""


class Calls(Protocol):
    """What the verbs need of the servers, whether one or many."""

    @property
    def index(self) -> Index:
        """Where they list what is held."""

    @property
    def copies(self) -> Copies | None:
        """What replicas must confirm."""

    @property
    def recovers(self) -> bool:
        """Whether another server takes over when one dies, so that a waiter had better go on asking."""

    def call(self, request: Request | Command) -> Any:
        """See `Wire.call`."""

    def acquire(self, request: Request, undo: Callable[[], Request]) -> Any:
        """See `Wire.acquire`."""

    def command(self, *parts: str | bytes | int) -> Any:
        """See `Wire.command`."""

    def call_many(self, requests: Sequence[Request | Command]) -> list[Any]:
        """See `Wire.call_many`."""

    def servers(self) -> list[Wire]:
        """Return each server that has keys."""

    def slots(self, keys: Sequence[str]) -> list[int]:
        """See `Wire.slots`."""


class KeepsSockets(Protocol):
    """What a forked child must empty: a socket that two processes read mixes up their replies."""

    def forget(self) -> None:
        """Drop the idle sockets; a lock made before the fork then opens its own."""


IDLE_SOCKETS: WeakSet[KeepsSockets] = WeakSet()


def _forget_all() -> None:
    for keeper in list(IDLE_SOCKETS):
        keeper.forget()


after_fork(_forget_all)


class Wire:
    """Requests of all threads to one server, or to whichever is the master of a Sentinel's service."""

    def __init__(
        self,
        pool: ConnectionPool,
        alias: str,
        *,
        index: Index,
        copies: Copies | None = None,
        recovers: bool = False,
    ) -> None:
        self._pool = pool
        self._alias = alias
        self.index = index
        self._idle: deque[AbstractConnection] = deque()
        self.copies = copies
        self.recovers = recovers
        IDLE_SOCKETS.add(self)

    def forget(self) -> None:
        """Drop the idle sockets without a word to the server."""
        self._idle = deque()

    def call(self, request: Request | Command) -> Any:
        """Send a script call and return the reply.

        It is repeated once on a fresh socket when the reply is lost: every script here is safe to repeat.

        Raises:
            BackendUnavailable: no reply; whether the script ran is unknown. BackendError: an error as reply.
        """
        try:
            return self.exchange(request)
        except RedisError as error:
            raise translated(error, self._alias) from error

    def acquire(self, request: Request, undo: Callable[[], Request]) -> Any:
        """`call` for what grants a lock: where copies are asked for, the grant counts once replicas have it.

        Raises:
            TooFewCopies: they don't; the lock was given back by `undo`.
        """
        try:
            return self.exchange(request, copies=self.copies)
        except NotReached as error:
            raise never_sent(error, self._alias) from error
        except RedisError as error:
            raise translated(error, self._alias) from error
        except TooFewCopies:
            with suppress(LockError):
                self.call(undo())
            raise

    def exchange(
        self, request: Request | Command, *, asking: bool = False, copies: Copies | None = None
    ) -> Any:
        """`call` that leaves redis-py's errors as they are; `asking` follows a cluster's ASK."""
        connection = self._take()
        try:
            if asking:
                return _exchange_asking(connection, request)
            reply = _twice(_exchange, connection, request, request.settled)
            if copies is not None and isinstance(reply, int):
                copies.confirm(connection, self._alias)
            return reply
        finally:
            self._idle.append(connection)

    def exchange_many(self, requests: Sequence[Request | Command]) -> list[Any]:
        """Send all, then read all; an error stands in the place of its reply."""
        connection = self._take()
        try:
            connection.send_packed_command([request.by_digest for request in requests], check_health=False)
            return [_reply_or_error(connection) for _ in requests]
        except BaseException as error:
            connection.disconnect()  # the next to use it must not read what is left of these answers
            if isinstance(error, OSError):
                raise RedisConnectionError(str(error)) from error
            raise
        finally:
            self._idle.append(connection)

    def call_many(self, requests: Sequence[Request | Command]) -> list[Any]:
        """`call` for each, in one pipeline; what fails in it is sent once more, alone."""
        try:
            replies = self.exchange_many(requests) if len(requests) > 1 else [MISSED] * len(requests)
        except UNREACHABLE:
            replies = [MISSED] * len(requests)
        return [
            self.call(request) if isinstance(reply, ResponseError) else reply
            for request, reply in zip(requests, replies, strict=True)
        ]

    def servers(self) -> list[Wire]:
        """See `Calls.servers`."""
        return [self]

    def slots(self, keys: Sequence[str]) -> list[int]:
        """Return a number for each key; keys of the same number may stand in one request."""
        return [0] * len(keys)

    def command(self, *parts: str | bytes | int) -> Any:
        """Send an ordinary command; for what isn't on the hot path."""
        try:
            return self.converse(*parts)
        except RedisError as error:
            raise translated(error, self._alias) from error

    def converse(self, *parts: str | bytes | int) -> Any:
        """`command` that leaves redis-py's errors as they are."""
        connection = self._take()
        try:
            return _twice(_ask, connection, parts)
        finally:
            self._idle.append(connection)

    def _take(self) -> AbstractConnection:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self.connection()
        if getattr(connection, "_sock", None) is None:
            # Before anything is sent: a failure then leaves no doubt, and Sentinels are asked where to.
            try:
                _open(connection)
            except UNREACHABLE as error:
                raise NotReached(str(error)) from error
        return connection

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
    kind = BackendUnavailable if isinstance(error, (*UNREACHABLE, *MOVING)) else BackendError
    verb = "doesn't answer" if kind is BackendUnavailable else "refused the request"
    return kind(f"Redis of the lock backend {alias!r} {verb}{_hint(error)}: {error}")


def never_sent(error: NotReached, alias: str) -> BackendError:
    """`translated`, with the certainty that nothing needs undoing."""
    meant = translated(error, alias)
    if isinstance(meant, BackendUnavailable):
        meant.sent = False
    return meant


def _hint(error: Exception) -> str:
    if "WRONGTYPE" in str(error):
        return " (a key of that name is no lock: choose another name, or a KEY_PREFIX)"
    if isinstance(error, (MovedError, ClusterCrossSlotError)):
        return " (it is a node of a cluster: make LOCATION a list of its nodes' URLs)"
    return ""


def as_it_is(reply: Any) -> Any:
    """Return the reply: asked a second time, it means what it would have meant the first time."""
    return reply


def _open(connection: AbstractConnection) -> None:
    """Connect; what is interrupted in its handshake is closed: the next would read what is left of it."""
    try:
        connection.connect()
    except BaseException:
        connection.disconnect()
        raise


def _twice(
    step: Callable[[AbstractConnection, _Sent], Any],
    connection: AbstractConnection,
    what: _Sent,
    settled: Callable[[Any], Any] = as_it_is,
) -> Any:
    """Do `step`, and once more on a fresh socket if the reply is lost: the first may meet one that the server
    closed while it was idle. `settled` says what a second reply means.
    """
    try:
        return step(connection, what)
    except UNREACHABLE:
        connection.disconnect()
    try:
        _open(connection)
        return settled(step(connection, what))
    except UNREACHABLE as error:
        connection.disconnect()
        raise (error if isinstance(error, RedisError) else RedisConnectionError(str(error))) from error


def _reply_or_error(connection: AbstractConnection) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except ResponseError as error:
        return error


def _exchange_asking(connection: AbstractConnection, request: Request | Command) -> Any:
    """ASKING holds for the next command only, so the script is sent whole: there is no second try."""
    connection.send_packed_command((ASKING + request.by_source,), check_health=False)
    connection.read_response(disable_decoding=True)
    return connection.read_response(disable_decoding=True)


class TooFewCopies(BackendUnavailable):
    """Not enough replicas have the lock: it could be lost in a failover, so it isn't given at all."""


@dataclass(frozen=True, slots=True)
class Copies:
    """How many replicas must have an acquisition before it counts.

    Attributes:
        replicas: how many; "auto" = one, if the master has any at that moment.
        timeout_ms: how long to wait for them.
    """

    replicas: int | Literal["auto"]
    timeout_ms: int

    def confirm(self, connection: AbstractConnection, alias: str) -> None:
        """Wait for the replicas; on the connection that wrote, for WAIT counts what was written on it."""
        wanted = self.wanted(_ask(connection, ("ROLE",))) if self.replicas == "auto" else self.replicas
        if wanted:
            self.check(_ask(connection, ("WAIT", wanted, self.timeout_ms)), wanted, alias)

    @staticmethod
    def wanted(role: Any) -> int:
        """Return how many replicas "auto" asks for, from the server's answer to ROLE."""
        return 1 if role[0] == b"master" and role[2] else 0

    def check(self, confirmed: int, wanted: int, alias: str) -> None:
        """Raise TooFewCopies if `confirmed` replicas are fewer than `wanted`."""
        if confirmed < wanted:
            raise TooFewCopies(
                f"{confirmed} of {wanted} replicas confirmed the lock on backend {alias!r} within"
                f" {self.timeout_ms} ms: it was given back, for a failover could have lost it"
            )


def _ask(connection: AbstractConnection, command: tuple[str | bytes | int, ...]) -> Any:
    """One command and its reply."""
    connection.send_command(*command, check_health=False)
    return connection.read_response(disable_decoding=True)


def _exchange(connection: AbstractConnection, request: Request | Command) -> Any:
    """One request and its reply. An interruption between the two closes the socket: the next user of the
    connection must not read an answer that was meant for this one.
    """
    try:
        try:
            return _talk(connection, request.by_digest)
        except NoScriptError:
            return _talk(connection, request.by_source)
    except ResponseError:
        raise  # a whole answer, if not the one that was hoped for
    except BaseException:
        connection.disconnect()
        raise


def _talk(connection: AbstractConnection, packet: bytes) -> Any:
    sock = shortened(connection)
    if sock is not None:
        return talk(connection, sock, packet)
    connection.send_packed_command((packet,), check_health=False)
    return connection.read_response(disable_decoding=True)
