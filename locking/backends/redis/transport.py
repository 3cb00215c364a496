"""Carries the protocol out on a thread: connections and subscriptions that block, and `run`.

Connections come from a redis-py pool, so address, TLS and credentials are the user's own. A connection is
kept in hand after its first use: the pool's check-out and check-in cost as much as the request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from locking.backends.base import Outcome, Waiter
from locking.backends.redis import protocol
from locking.backends.redis.protocol import Server, Terms, unless_error
from locking.backends.redis.scripts import command
from locking.backends.redis.waiter import AnnouncedWaiter
from locking.utils.background import after_fork

try:
    import hiredis
except ImportError:  # pragma: no cover - the extra `redis` brings it
    hiredis = None  # type: ignore[assignment]

T = TypeVar("T")

DEFAULT_TIMEOUT = 5.0  # seconds for connecting and for a reply where the pool's own settings name none
OPPOSITES: Final = {"SUBSCRIBE": "UNSUBSCRIBE", "SSUBSCRIBE": "SUNSUBSCRIBE"}
# What wakes a waiter; a slot that moves to another node ends its subscriptions, a reason to ask again.
MESSAGES: Final = (b"message", b"smessage", b"sunsubscribe")

SIZE: Final = 65536
PENDING: Final = object()
PUSHED: Final = getattr(hiredis, "PushNotification", ())  # what is said unasked (RESP3), since hiredis 3.2


class ThreadConnection(protocol.Connection):
    """A connection of redis-py, with the shortest way to its socket: its layers cost as much as Redis itself.

    redis-py connects, authenticates and encrypts. This writes to its socket and reads from it, by hiredis,
    which is redis-py's own parser in C. It leans on two private names of redis-py, `_sock` and `_parser`.
    Where one is missing, or the class isn't redis-py's own, redis-py sends and receives.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        # Not by make_connection(): the pool would count it against its limit, even after it was closed.
        made: Any = pool.connection_class(**pool.connection_kwargs)
        made.retry = Retry(NoBackoff(), 0)
        made.socket_timeout = made.socket_timeout or DEFAULT_TIMEOUT
        if hasattr(made, "socket_connect_timeout"):
            made.socket_connect_timeout = made.socket_connect_timeout or DEFAULT_TIMEOUT
        self.connection, self.is_open = made, False
        self._sock: Any = None
        self._reader: Any = None

    async def connect(self) -> None:
        self.connection.connect()
        self.is_open, self._reader = True, reader_for(self.connection)
        self._sock = getattr(self.connection, "_sock", None) if self._reader else None

    def disconnect(self) -> None:
        self.is_open, self._sock = False, None
        self.connection.disconnect()

    async def exchange(self, packet: bytes, replies: int | None) -> Any:
        if self._sock is None:
            self.connection.send_packed_command((packet,), check_health=False)
        else:
            self._sock.sendall(packet)
            if replies is None:
                self._reader.feed(self._sock.recv(SIZE))
                if type(reply := self._reader.gets()) is int:  # nearly always: no further call of Python's
                    return reply
                return unless_error(self._next() if reply is PENDING or isinstance(reply, PUSHED) else reply)
        if replies is None:
            return unless_error(self._next())
        return [self._next() for _ in range(replies)]

    def _next(self, *, pushed: bool = False) -> Any:
        """Return the next reply or the error that stands for it; `pushed`: what was sent unasked, too."""
        if self._sock is None:
            try:
                return self.connection.read_response(disable_decoding=True)
            except ResponseError as error:
                return error
        while (reply := self._reader.gets()) is PENDING or (isinstance(reply, PUSHED) and not pushed):
            if reply is PENDING:
                if not (data := self._sock.recv(SIZE)):
                    raise RedisConnectionError("Connection closed by server.")
                self._reader.feed(data)
        return reply

    def send(self, packet: bytes) -> None:
        """Send a request whose answer is received."""
        self.connection.send_packed_command((packet,), check_health=False)

    def receive(self, timeout: float, *, pushed: bool = True) -> Any:
        """Return the next answer or, with `pushed`, message; after a time-out it stays open."""
        if self.connection._sock is None:  # redis-py may connect again, without what was subscribed
            raise RedisConnectionError("the connection is closed")
        self.connection._sock.settimeout(timeout)
        if self._sock is None:
            return self.connection.read_response(
                disable_decoding=True, push_request=pushed, disconnect_on_error=False
            )
        return unless_error(self._next(pushed=pushed))


@contextmanager
def closed_on_failure(connection: ThreadConnection) -> Iterator[None]:
    """Close a connection that may have an unread answer: the next user must not read it."""
    try:
        yield
    except BaseException:
        connection.disconnect()
        raise


def reader_for(connection: Any) -> Any | None:
    """Return a parser of what a connection receives; None where only redis-py itself can read it."""
    parser: Any = getattr(connection, "_parser", None)
    if hiredis and hasattr(parser, "parse_error") and type(connection).__module__.startswith("redis."):
        return hiredis.Reader(notEnoughData=PENDING, replyError=parser.parse_error)
    return None


class ThreadServer(Server):
    """One server and the connections of all threads to it, which `pool` tells how to reach."""

    def __init__(self, terms: Terms, pool: ConnectionPool, verbs: tuple[str, ...] = ("SUBSCRIBE",)) -> None:
        super().__init__(terms, partial(ThreadConnection, pool), verbs)
        self.pool = pool
        self.subscriptions: deque[ThreadSubscription] = deque()
        after_fork(self.forget)

    async def sleep(self, seconds: float) -> None:
        """Block this thread for so many seconds."""
        time.sleep(seconds)

    def forget(self) -> None:
        """Drop what a forked child must not read: replies to two processes on one socket mix up."""
        self.idle, self.subscriptions = deque(), deque()

    def idle_subscription(self, owner: str) -> ThreadSubscription | None:
        return protocol.taken_from(self.subscriptions)

    async def subscribe(self, owner: str) -> ThreadSubscription:
        made = ThreadSubscription(self, self.make())
        with closed_on_failure(made.connection):
            await made.connection.connect()
            made.change("SUBSCRIBE", made.channel)
        return made

    async def shutdown(self) -> None:
        while self.subscriptions:
            self.subscriptions.pop().close()
        idle, self.idle = self.idle, deque()
        while idle:
            idle.pop().disconnect()


class ThreadSubscription(protocol.Subscription):
    """A new connection of one waiting thread, subscribed to a channel of its own and perhaps to one more.

    One per waiter: a thread that reads its own socket is woken by the kernel, without a hop through a
    dispatching thread, and when the process dies the server sees it and passes the dead waiter over.
    """

    server: ThreadServer

    def __init__(self, server: ThreadServer, connection: ThreadConnection) -> None:
        self.server, self.connection, self.channel = server, connection, protocol.own_channel()
        self._extra: str | None = None

    async def listen(self, channel: str) -> bool:
        if self._extra == channel:
            return False
        with closed_on_failure(self.connection):
            for verb in self.server.verbs:
                self.change(verb, channel)
        self._extra = channel
        return True

    async def give_back(self) -> None:
        """See the base class: with its own channel only; one that fails is closed."""
        with suppress(RedisError, OSError):
            if self._extra is not None and self.connection.is_open:
                with closed_on_failure(self.connection):
                    for verb in self.server.verbs:
                        self.change(OPPOSITES[verb], self._extra)
                self._extra = None
            if self.connection.is_open:
                self.server.subscriptions.append(self)

    def change(self, verb: str, channel: str) -> None:
        """Subscribe to a channel, or unsubscribe, and wait for the confirmation."""
        self.connection.send(command(verb, channel).by_digest)
        try:
            while not self.connection.receive(DEFAULT_TIMEOUT)[0].endswith(b"subscribe"):
                pass  # an older message, which has no waiter any more
        except ResponseError as error:
            if not self.server.is_too_old(error):
                raise

    async def receive(self, timeout: float) -> protocol.Message | None:
        try:
            kind, channel, payload = self.connection.receive(max(timeout, 0.001))
        except (RedisTimeoutError, TimeoutError):
            return None
        return protocol.Message(channel, payload) if kind in MESSAGES else protocol.Message(b"", b"")

    def close(self) -> None:
        self.connection.disconnect()


def run(verb: Coroutine[Any, Any, T]) -> T:
    """Carry out a verb on this thread, where nothing that it awaits ever suspends."""
    try:
        verb.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("what a thread awaits must block instead")


class ThreadWaiter(Waiter):
    """A thread that waits."""

    def __init__(self, waiter: AnnouncedWaiter) -> None:
        self._waiter = waiter

    def try_acquire(self, *, queue: bool) -> Outcome:
        return run(self._waiter.try_acquire(queue=queue))

    def wait(self, timeout: float) -> Outcome:
        return run(self._waiter.wait(timeout))

    def leave(self) -> None:
        run(self._waiter.leave())
        self.unsettled = self._waiter.unsettled
