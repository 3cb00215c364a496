"""The conversation with Redis, without any I/O: every verb is a coroutine, for event loops and for threads.

It awaits methods of connections, subscriptions and servers. Those of `async_transport` await their
sockets. Those of `transport` block: there a verb never suspends, and `transport.run` carries it out on a
thread, without a loop. What holds for every socket is therefore here, once:

- a connection is used again only after a complete exchange; otherwise it is closed,
- a lost reply is asked for once more, on a fresh connection: every script is safe to repeat,
- the server's word (*no*, an error) and its silence are two different errors.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking.backends.redis.scripts import Index, Request, Resent, command
from locking.exceptions import BackendError, BackendUnavailable

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError)
MOVING = (TryAgainError, ClusterDownError)  # a cluster's answers while a slot or a master moves: not now

# It holds for the next command only, so a script is sent whole with it.
ASKING: Final = command("ASKING").by_digest
ROLE: Final = command("ROLE").by_digest
# Sent with a release where others of this process wait. Redis writes first to the client that got an answer
# last: without this the releaser would wake before the waiter that is handed the lock, and run before it.
TIME: Final = command("TIME").by_digest


class Connection(ABC):
    """A connection to one server."""

    @abstractmethod
    async def connect(self) -> None:
        """Open it; a Sentinel's service is looked for here."""

    @abstractmethod
    async def exchange(self, packet: bytes, replies: int | None) -> Any:
        """Send `packet` and return its reply; an error is raised.

        With a number of `replies` return a list of them, in which an error stands in the place of its reply.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Close it at once; it may be connected again."""


class Message(NamedTuple):
    """What was published; an empty channel means that a subscription ended or began."""

    channel: bytes
    payload: bytes


class Subscription(ABC):
    """Receives messages for one waiter, from the lock's server: only there a script can tell who listens."""

    channel: str  # its own, or that of its event loop
    server: Server

    @abstractmethod
    async def listen(self, channel: str) -> bool:
        """Receive the messages of `channel` as well, from before this returns; False: it did so already."""

    @abstractmethod
    async def receive(self, timeout: float) -> Message | None:
        """Return the next message, or None after `timeout` seconds."""

    @abstractmethod
    async def give_back(self) -> None:
        """Keep it for the next waiter."""

    @abstractmethod
    def close(self) -> None:
        """Close its connection: the scripts pass over a waiter whose channel has no subscriber."""


def own_channel() -> str:
    """Return a new channel that wakes waiters of the ordinary lock."""
    return f"holdfast_lock_wake:{secrets.token_hex(8)}"


# errors


class NeverSent(RedisConnectionError):
    """No connection came about, so nothing was sent."""


class NotReplicated(BackendUnavailable):
    """Too few replicas have the lock: a failover could lose it, so it isn't granted at all."""

    is_new = True  # the owner held nothing before, so that the lock may be given back


MISSING: Final = ResponseError("no reply")  # stands for what a pipeline didn't answer


def translated(error: Exception, alias: str) -> BackendError:
    """Return our error for redis-py's: *no answer* and *an error as answer* are two different things."""
    kind = BackendUnavailable if isinstance(error, (*UNREACHABLE, *MOVING)) else BackendError
    verb = "doesn't answer" if kind is BackendUnavailable else "refused the request"
    if re.search("authenticat|password", str(error)):  # by text: the type is lost where nothing was sent
        verb = "refuses this user or password"
    made = kind(f"Redis of the lock backend {alias!r} {verb}{_hint(error)}: {error}")
    if isinstance(error, NeverSent) and isinstance(made, BackendUnavailable):
        made.sent = False  # nothing needs to be released
    return made


def _hint(error: Exception) -> str:
    if "WRONGTYPE" in str(error):
        return " (a key of that name is no lock: choose another name, or a KEY_PREFIX)"
    if "DB index" in str(error):
        return " (it has no database of this number: correct the end of LOCATION)"
    if isinstance(error, (MovedError, ClusterCrossSlotError)):
        return " (it is a node of a cluster: make LOCATION a list of its nodes' URLs)"
    if isinstance(error, NoPermissionError):
        return " (the ACL of this user lacks commands, keys or channels that locks need)"
    return ""


# requests


@dataclass(frozen=True, slots=True)
class ReplicaAck:
    """How many replicas must have an acquisition before it counts, and how long to wait for them."""

    replicas: int | Literal["auto"]  # "auto" = one, if the master has any at that moment
    timeout_ms: int

    async def confirm(self, connection: Connection, alias: str, *, is_new: bool) -> None:
        """Wait for the replicas; on the connection that wrote, because WAIT counts what it has written."""
        wanted = self.replicas
        if wanted == "auto":
            role = await connection.exchange(ROLE, None)
            wanted = 1 if role[0] == b"master" and role[2] else 0
        if not wanted:
            return
        confirmed = await connection.exchange(command("WAIT", wanted, self.timeout_ms).by_digest, None)
        if confirmed < wanted:
            error = NotReplicated(
                f"{confirmed} of {wanted} replicas confirmed the lock on backend {alias!r} within"
                f" {self.timeout_ms} ms, and a failover could lose it: "
                + ("it was released" if is_new else "the hold from before stays until it ends")
            )
            error.is_new = is_new
            raise error


@dataclass(frozen=True, slots=True)
class Terms:
    """What all servers of an alias have in common."""

    alias: str
    index: Index
    replica_ack: ReplicaAck | None = None
    has_failover: bool = False  # another server takes over when one dies: a waiter had better go on asking


class Calls(ABC):
    """The requests of one alias, whether to one server or to a cluster."""

    sleep: Callable[[float], Awaitable[None]]  # do nothing for so many seconds

    def __init__(self, terms: Terms) -> None:
        self.alias, self.index = terms.alias, terms.index
        self.replica_ack, self.has_failover = terms.replica_ack, terms.has_failover

    @abstractmethod
    async def deliver(self, request: Request, replica_ack: ReplicaAck | None = None) -> Any:
        """Return the reply of the server that has the key; errors are redis-py's."""

    @abstractmethod
    def server_of(self, key: str | bytes) -> Server | None:
        """Return the server that has `key`, as far as it is known."""

    @abstractmethod
    async def servers(self) -> list[Server]:
        """Return each server that has keys."""

    @abstractmethod
    def opened(self) -> list[Server]:
        """Return every server that was asked so far."""

    async def call(self, request: Request) -> Any:
        """Return the reply to a request; BackendUnavailable: none, and whether the script ran is unknown."""
        try:
            return await self.deliver(request)
        except (RedisError, OSError) as error:
            raise translated(error, self.alias) from error

    async def command(self, *parts: str | bytes | int) -> Any:
        """`call` for an ordinary command; the second part is the key that tells where it goes."""
        return await self.call(command(*parts))

    async def call_many(self, requests: Sequence[Request]) -> list[Any]:
        """`call` for each; the first error is raised."""
        replies = await self.call_each(requests)
        for reply in replies:
            if isinstance(reply, BackendError):
                raise reply
        return replies

    async def call_each(self, requests: Sequence[Request]) -> list[Any]:
        """`call` for each, in one pipeline per server; an error stands in the place of its reply.

        What fails in a pipeline is sent once more, alone; a server that doesn't answer then is left alone.
        """
        by_server: dict[Server, list[int]] = {}
        for i, request in enumerate(requests if len(requests) > 1 else ()):
            if (server := self.server_of(request.key)) is not None:
                by_server.setdefault(server, []).append(i)
        replies: list[Any] = [MISSING] * len(requests)
        for server, numbers in by_server.items():
            with suppress(*UNREACHABLE):
                answers = await server.pipeline([requests[i] for i in numbers])
                for i, answer in zip(numbers, answers, strict=True):
                    replies[i] = answer
        silent: dict[Server | None, BackendError] = {}
        for i, request in enumerate(requests):
            if isinstance(replies[i], ResponseError):
                try:
                    replies[i] = silent.get(self.server_of(request.key)) or await self.call(request)
                except BackendError as error:
                    replies[i] = error
                    if isinstance(error.__cause__, UNREACHABLE):
                        silent[self.server_of(request.key)] = error
        return replies


class Server(Calls):
    """One server, or whichever is the master of a Sentinel's service, and the connections to it.

    They are shared by the threads of a process, or by the tasks of an event loop.
    """

    has_waiters = False  # someone of this process, or of this event loop, has waited for a lock

    def __init__(self, terms: Terms, make: Callable[[], Any], verbs: tuple[str, ...]) -> None:
        super().__init__(terms)
        self.make = make  # returns a new connection, not yet connected
        self.verbs = verbs  # how to hear what Redisson's clients announce; a cluster has two ways
        self.idle: deque[Any] = deque()  # connected, without an unread reply, and in no request's use

    @abstractmethod
    def idle_subscription(self, owner: str) -> Subscription | None:
        """Return a subscription without any I/O, if there is one; it may have died unseen."""

    @abstractmethod
    async def subscribe(self, owner: str) -> Subscription:
        """Return a new subscription of `owner`, on a new connection if need be."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Close what is idle; a connection that a request uses just now is closed after it."""

    def is_too_old(self, error: ResponseError) -> bool:
        """Whether a server without sharded channels, Redis 6, says so; it is asked for none from now on."""
        if "unknown command" not in str(error):
            return False
        self.verbs = ("SUBSCRIBE",)
        return True

    def server_of(self, key: str | bytes) -> Server:
        return self

    async def servers(self) -> list[Server]:
        return [self]

    def opened(self) -> list[Server]:
        return [self]

    async def deliver(
        self, request: Request, replica_ack: ReplicaAck | None = None, *, asking: bool = False
    ) -> Any:
        """See the base class; `asking` follows a cluster's ASK, and isn't tried twice."""
        idle, complete = self.idle, False
        try:
            connection = idle.pop()
        except IndexError:
            connection = await self._connected()
        try:
            if asking:
                reply = unless_error((await connection.exchange(ASKING + request.by_source, 2))[1])
            else:
                try:
                    if self.has_waiters and request.script is not None and request.script.releases:
                        reply = unless_error((await connection.exchange(TIME + request.by_digest, 2))[1])
                    else:
                        reply = await connection.exchange(request.by_digest, None)
                except (NoScriptError, *UNREACHABLE) as error:
                    reply = await self._asked_again(connection, request, error)
            answer = reply.reply if isinstance(reply, Resent) else reply
            if replica_ack is not None and isinstance(answer, int):
                await replica_ack.confirm(connection, self.alias, is_new=answer > 0)
            complete = True
            return reply
        except ResponseError as error:  # a complete answer, if not the one that was hoped for
            complete = not isinstance(error, ReadOnlyError)
            raise
        finally:
            self.put_back(connection, idle, complete=complete)

    def put_back(self, connection: Connection, idle: deque[Any], *, complete: bool) -> None:
        """Keep it after a complete exchange only: the next must not read what is left of another."""
        if complete and self.idle is idle:  # which it isn't once the backend was closed
            idle.append(connection)
        else:
            connection.disconnect()

    async def _asked_again(self, connection: Connection, request: Request, error: Exception) -> Any:
        """Send a script whole that the server doesn't know, or a request whose reply was lost once more.

        On a fresh socket: the first may meet one that the server closed while it was idle.
        """
        if isinstance(error, NoScriptError):
            with suppress(*UNREACHABLE):
                return await connection.exchange(request.by_source, None)
        connection.disconnect()
        await connection.connect()
        try:
            reply = await connection.exchange(request.by_digest, None)
        except NoScriptError:
            reply = await connection.exchange(request.by_source, None)
        return request.resent(reply)

    async def pipeline(self, requests: Sequence[Request]) -> list[Any]:
        """Send all, then read all, without a second try; an error stands in the place of its reply."""
        idle, complete = self.idle, False
        connection = taken_from(idle) or await self._connected()
        try:
            packet = b"".join([each.by_digest for each in requests])
            replies: list[Any] = await connection.exchange(packet, len(requests))
            complete = True
            return replies
        finally:
            self.put_back(connection, idle, complete=complete)

    async def _connected(self) -> Connection:
        """Connect before anything is sent: a failure leaves no doubt then. Sentinels are asked where to."""
        connection: Connection = self.make()
        try:
            await connection.connect()
        except BaseException as error:
            connection.disconnect()  # the next must not read what is left of a handshake
            if isinstance(error, UNREACHABLE):
                raise NeverSent(str(error)) from error
            raise
        return connection


def taken_from(idle: deque[Any]) -> Any | None:
    """Return what is idle, a connection or a subscription, or None; other threads take some, too."""
    try:
        return idle.pop() if idle else None  # an exception costs more than a look
    except IndexError:
        return None


def unless_error(reply: Any) -> Any:
    """Return a reply, or raise the error that it is."""
    if isinstance(reply, RedisError):
        raise reply
    return reply
