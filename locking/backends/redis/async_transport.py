"""Carries the protocol out in an event loop: its connections and its one subscribed socket.

Tasks of one loop share one subscription. Its reader runs only while a task waits; a message names the owner
it is meant for, so it reaches that task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.connection import SSLConnection as BlockingSSLConnection
from redis.connection import UnixDomainSocketConnection as BlockingUnixConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool

from locking.backends.redis import protocol
from locking.backends.redis.protocol import UNREACHABLE, Server, Terms, unless_error
from locking.backends.redis.transport import (
    DEFAULT_TIMEOUT,
    MESSAGES,
    OPPOSITES,
    PENDING,
    PUSHED,
    SIZE,
    reader_for,
    run,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

# What an asyncio connection takes over from the pool of blocking ones; the rest is of the other kind.
SHARED_OPTIONS: Final = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "protocol",
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
    "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path",
    "ssl_check_hostname", "ssl_password", "ssl_min_version", "ssl_ciphers", "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)  # fmt: skip
# What asyncio knows only since redis-py 7.2; a blocking client names it as None where it wasn't given.
LATE_OPTIONS: Final = ("ssl_ca_path", "ssl_password")


def connection_like(pool: ConnectionPool) -> Any:
    """Return an asyncio connection to the same server, with the same credentials, as `pool`'s."""
    given = pool.connection_kwargs
    named = given.keys() - {name for name in LATE_OPTIONS if given.get(name) is None}
    kind: Any = Connection
    if issubclass(pool.connection_class, BlockingSSLConnection):
        kind = SSLConnection
    elif issubclass(pool.connection_class, BlockingUnixConnection):
        kind = UnixDomainSocketConnection
    # Without a socket_timeout of its own: redis-py would spend it by wait_for, which before Python 3.12
    # swallows a cancellation that comes when the request has just been sent.
    bounds = {"socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    return kind(**{name: given[name] for name in SHARED_OPTIONS if name in named} | bounds)


class AsyncConnection(protocol.Connection):
    """A connection of redis-py whose uses are bounded in time.

    Its requests share one timer, which looks whether the present one is too late: a timer per request costs
    more than the request. They take the shortest way to its streams, as `ThreadConnection` to its socket.
    """

    def __init__(self, pool: ConnectionPool, find: Callable[[], Awaitable[Any]] | None = None) -> None:
        self.connection, self._find = connection_like(pool), find
        self._timeout = pool.connection_kwargs.get("socket_timeout") or DEFAULT_TIMEOUT
        self._reader: Any = None
        self._streams: Any = None
        self._asking: asyncio.Task[Any] | None = None
        self._deadline, self._is_late = 0.0, False
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        """See the base class; finding a service's master takes as long as its Sentinels' own limits."""
        if self._find is not None:
            self.connection.host, self.connection.port = await self._find()
        await in_time(self.connection.connect(), self._timeout)
        self._streams = [getattr(self.connection, name, None) for name in ("_reader", "_writer")]
        self._reader = reader_for(self.connection) if all(self._streams) else None

    async def send(self, *parts: str) -> None:
        """Send a command. RedisConnectionError: it is closed; redis-py would open it again, unused."""
        if not self.connection.is_connected:
            raise RedisConnectionError("the connection is closed")
        await self.connection.send_command(*parts, check_health=False)

    async def exchange(self, packet: bytes, replies: int | None) -> Any:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        cancellations = task.cancelling()
        self._asking, self._deadline = task, loop.time() + self._timeout
        if self._timer is None:
            self._timer = loop.call_at(self._deadline, self._look)
        try:
            if self._reader is None:
                await self.connection.send_packed_command(packet, check_health=False)
            else:
                self._streams[1].write(packet)
            if replies is None:
                return unless_error(await self._next())
            return [await self._next() for _ in range(replies)]
        except asyncio.CancelledError as error:
            if self._is_late and task.uncancel() <= cancellations:  # as asyncio.timeout() tells them apart
                raise RedisTimeoutError(f"no answer within {self._timeout:g} s") from error
            raise
        finally:
            self._asking, self._is_late = None, False

    def _look(self) -> None:
        """Cancel a request that is too late; its connection is closed then."""
        self._timer = None
        if self._asking is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look)
        else:
            self._is_late = True
            self._asking.cancel()

    async def _next(self) -> Any:
        """Return the next reply, or the error that stands for it; what a server says unasked is skipped."""
        if self._reader is None:
            try:
                return await self.connection.read_response(disable_decoding=True)
            except ResponseError as error:
                return error
        while (reply := self._reader.gets()) is PENDING or isinstance(reply, PUSHED):
            if reply is PENDING:
                if not (data := await self._streams[0].read(SIZE)):
                    raise RedisConnectionError("Connection closed by server.")
                self._reader.feed(data)
        return reply

    def disconnect(self) -> None:
        """Close without waiting for the other side: no await, so that a cancellation can't come between."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        closing = self.connection.disconnect(nowait=True)
        with contextlib.suppress(StopIteration, RuntimeError):  # RuntimeError: its event loop is gone
            closing.send(None)
        closing.close()

    async def hang_up(self) -> None:
        """Close and wait for it, at most a second: TLS says good-bye, and a loop that ends before that
        leaves a transport which Python reports as leaked.
        """
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.connection.disconnect()
        self.disconnect()


async def in_time(step: Awaitable[T], seconds: float) -> T:
    """Return what `step` gives, or raise redis-py's TimeoutError after so many seconds."""
    try:
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the answer.
        async with asyncio.timeout(seconds):
            return await step
    except TimeoutError as error:
        raise RedisTimeoutError(f"no answer within {seconds:g} s") from error


class AsyncServer(Server):
    """One server and the connections of one event loop to it, one of them subscribed."""

    sleep = staticmethod(asyncio.sleep)

    def __init__(self, terms: Terms, pool: ConnectionPool, verbs: tuple[str, ...] = ("SUBSCRIBE",)) -> None:
        find = self._master if isinstance(pool, SentinelConnectionPool) else None
        super().__init__(terms, partial(AsyncConnection, pool, find), verbs)
        self._pool: Any = pool
        self._asked: asyncio.Future[Any] | None = None
        self._reader: PubSubReader | None = None
        self._opening = asyncio.Lock()

    async def _master(self) -> Any:
        """Ask the Sentinels in a thread; tasks that want to know at the same time share the answer."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().run_in_executor(None, self._pool.get_master_address)
        return await asyncio.shield(self._asked)

    def idle_subscription(self, owner: str) -> AsyncSubscription | None:
        if self._reader is None or self._reader.is_closed:
            return None
        return AsyncSubscription(self._reader, owner)

    async def subscribe(self, owner: str) -> AsyncSubscription:
        async with self._opening:
            if self._reader is None or self._reader.is_closed:
                reader = PubSubReader(self, self.make())
                await reader.open()
                self._reader = reader
        return AsyncSubscription(self._reader, owner)

    async def shutdown(self) -> None:
        if self._reader is not None and not self._reader.is_closed:
            await self._reader.connection.hang_up()
            self._reader.close()
        while self.idle:
            await self.idle.pop().hang_up()


class AsyncSubscription(protocol.Subscription):
    """One task's share of a subscribed socket."""

    def __init__(self, reader: PubSubReader, owner: str) -> None:
        self.reader, self.owner = reader, owner
        self.channel, self.server = reader.channel, reader.server
        self._messages: asyncio.Queue[protocol.Message] = asyncio.Queue()
        self.put = self._messages.put_nowait
        reader.subscriptions[owner] = self  # what is published before it reads lies in the socket

    async def listen(self, channel: str) -> bool:
        if channel in self.reader.listened and self in self.reader.listened[channel].tasks:
            return False
        try:
            await in_time(self.reader.listen(self, channel), DEFAULT_TIMEOUT)
        except UNREACHABLE:
            self.reader.close()
            raise
        return True

    async def receive(self, timeout: float) -> protocol.Message | None:
        if not self._messages.empty():
            return self._messages.get_nowait()
        self.reader.start()
        try:
            async with asyncio.timeout(timeout):  # not wait_for, as in `in_time`
                return await self._messages.get()
        except TimeoutError:
            return None

    async def give_back(self) -> None:
        await self.reader.leave(self)

    def close(self) -> None:
        """See the base class; other tasks of the loop go on over a new socket."""
        self.reader.close()


class Listened(NamedTuple):
    """A channel that tasks listen to; the first of them has sent the command, all wait for its answer."""

    answer: asyncio.Future[None]
    tasks: set[AsyncSubscription]


class PubSubReader:
    """A subscribed socket and the task that reads it for the tasks that wait."""

    def __init__(self, server: AsyncServer, connection: AsyncConnection) -> None:
        self.server, self.connection = server, connection
        self.channel = protocol.own_channel()
        self.listened: dict[str, Listened] = {}
        self.is_closed = False
        self.subscriptions: dict[str, AsyncSubscription] = {}
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and subscribe to the channel of this loop."""
        try:
            await self.connection.connect()
            await self.connection.send("SUBSCRIBE", self.channel)
            confirmed = self.connection.connection.read_response(disable_decoding=True, push_request=True)
            await in_time(confirmed, DEFAULT_TIMEOUT)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Read from now on."""
        if self.is_closed:
            raise RedisConnectionError("the subscribed socket is closed")
        if self._task is None:
            self._task = asyncio.create_task(self._read(), name="locking-subscriptions")

    async def listen(self, subscription: AsyncSubscription, channel: str) -> None:
        """See `AsyncSubscription.listen`."""
        self.start()
        is_first = channel not in self.listened
        if is_first:
            self.listened[channel] = Listened(asyncio.get_running_loop().create_future(), set())
        answer, tasks = self.listened[channel]
        tasks.add(subscription)
        try:
            for verb in self.server.verbs if is_first else ():
                await self.connection.send(verb, channel)
            await asyncio.shield(answer)
        except ResponseError:  # refused: the next to ask may be allowed to
            self.listened.pop(channel, None)
            raise

    async def leave(self, subscription: AsyncSubscription) -> None:
        """Receive nothing more for this one; the last to leave stops the reader."""
        if self.subscriptions.get(subscription.owner) is subscription:
            del self.subscriptions[subscription.owner]
        for channel, listened in list(self.listened.items()):
            was_alone = listened.tasks == {subscription}
            listened.tasks.discard(subscription)
            if was_alone and not self.is_closed:
                self.listened.pop(channel, None)
                with contextlib.suppress(*UNREACHABLE):
                    for verb in self.server.verbs:
                        await self.connection.send(OPPOSITES[verb], channel)
        if not self.subscriptions and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait({task})  # unlike `await task`, it lets a cancellation of ours through

    async def _read(self) -> None:
        try:
            while True:
                try:
                    message = await self.connection.connection.read_response(
                        disable_decoding=True, timeout=math.inf, disconnect_on_error=False, push_request=True
                    )
                except ResponseError as error:
                    self._answer(None if self.server.is_too_old(error) else error)
                else:
                    self._dispatch(*message)
        except (RedisError, OSError):
            self.close()
        except Exception:  # no message may end the reader without a word to those who wait
            logger.exception("reading wake-ups failed; the waiters ask again")
            self.close()

    def _answer(self, error: Exception | None) -> None:
        """Settle what the server hasn't confirmed: Redis 6 has no SSUBSCRIBE, a user may lack the channel."""
        for answer in [listened.answer for listened in self.listened.values() if not listened.answer.done()]:
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)
                answer.exception()  # the waiters may be gone by now

    def _dispatch(self, kind: bytes, name: bytes, payload: Any) -> None:
        channel, message = name.decode(), protocol.Message(name, payload)
        listened = self.listened.get(channel)
        if kind == b"message" and channel == self.channel:
            subscription = self.subscriptions.get(payload.decode().split(" ", 1)[0])
            if subscription is not None:
                subscription.put(message)
        elif listened is not None and kind == self.server.verbs[-1].lower().encode():
            if not listened.answer.done():
                listened.answer.set_result(None)
        elif listened is not None and kind in MESSAGES:
            for listening in listened.tasks:
                listening.put(message)

    def close(self) -> None:
        """Have every waiter ask again; the next one opens a new socket with a new channel."""
        self.is_closed = True
        self.connection.disconnect()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._answer(RedisConnectionError("the subscribed socket is closed"))
        for subscription in self.subscriptions.values():
            subscription.put(protocol.Message(b"", b""))


class EventLoops:
    """The protocol of each event loop; its sockets are closed when the loop shuts down."""

    def __init__(self, make: Callable[[], protocol.Calls]) -> None:
        self._make = make
        self.kept = weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[protocol.Calls, AsyncGenerator[None, None]]
        ]()

    def here(self) -> protocol.Calls:
        """Return the running loop's."""
        loop = asyncio.get_running_loop()
        if (kept := self.kept.get(loop)) is not None:
            return kept[0]
        # What a loop that ended without a shutdown has left is closed by the collector.
        for ended in [known() for known in self.kept.keyrefs()]:  # not the keys: other threads add some
            if ended is not None and ended.is_closed():
                self.kept.pop(ended, None)
        calls = self._make()
        guard = _until_shutdown(calls, weakref.ref(self))
        # A generator that is no longer referenced is closed at once, and its sockets with it.
        self.kept[loop] = calls, guard
        run(guard.asend(None))  # as far as its `yield`
        return calls


class Servers(NamedTuple):
    """The servers of one alias, as threads and as event loops reach them."""

    calls: protocol.Calls
    loops: EventLoops


async def _until_shutdown(
    calls: protocol.Calls, loops: weakref.ref[EventLoops]
) -> AsyncGenerator[None, None]:
    """Close the sockets when the loop shuts down: asyncio then closes every generator that was begun."""
    try:
        yield
    finally:
        for server in calls.opened():
            await server.shutdown()
        if (keeper := loops()) is not None:
            keeper.kept.pop(asyncio.get_running_loop(), None)  # its locks and futures would keep the loop
