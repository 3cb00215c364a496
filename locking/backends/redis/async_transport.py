"""Carries the protocol out in an event loop: its connections, its one subscribed socket, and `arun`.

Tasks of one loop share one subscription. Its reader runs only while a task waits; a message names the owner
it is meant for, so it reaches that task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.connection import SSLConnection as BlockingSSLConnection
from redis.connection import UnixDomainSocketConnection as BlockingUnixConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool as BlockingSentinelPool

from locking.backends.base import AsyncWaiter, Outcome
from locking.backends.redis import protocol
from locking.backends.redis.protocol import UNREACHABLE, Steps
from locking.backends.redis.sentinels import AsyncSentinels
from locking.backends.redis.transport import (
    DEFAULT_TIMEOUT,
    MESSAGES,
    OPPOSITES,
    PENDING,
    PUSHED,
    SIZE,
    reader_for,
    unless_error,
)
from locking.backends.redis.waiter import WaitSteps

T = TypeVar("T")

logger = logging.getLogger(__name__)

SHARED_OPTIONS: Final = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "protocol",
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
    "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path",
    "ssl_check_hostname", "ssl_password", "ssl_min_version", "ssl_ciphers", "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
)  # fmt: skip
"""What an asyncio connection takes over from the pool of blocking ones; the rest is of the other kind."""

LATE_OPTIONS: Final = ("ssl_ca_path", "ssl_password")
"""What asyncio knows only since redis-py 7.2; a blocking client names it as None where it wasn't given."""


class Connector(NamedTuple):
    """Makes connections to one server, not yet connected; `timeout`: how many seconds a request may take."""

    make: Callable[[], AbstractConnection]
    timeout: float
    close: Callable[[], Awaitable[None]] | None = None
    """Closes what finding the server has opened in this loop."""
    search: float = 0.0
    """Seconds that finding the server may take beside."""


def connections_like(pool: ConnectionPool) -> Connector:
    """Return a maker of asyncio connections to the same server, with the same credentials, as `pool`'s.

    What it opens to find a master belongs to one event loop.
    """
    options, timeout = _options_like(pool)
    over_tls = issubclass(pool.connection_class, BlockingSSLConnection)
    if isinstance(pool, BlockingSentinelPool):
        manager = pool.sentinel_manager
        others = manager.min_other_sentinels
        sentinel = AsyncSentinels([], min_other_sentinels=others)  # type: ignore[no-untyped-call]
        clients = [_client_like(client) for client in manager.sentinels]
        sentinel.sentinels = [*clients]
        masters = SentinelConnectionPool(pool.service_name, sentinel, ssl=over_tls, **options)
        close, search = partial(_close_all, clients), sum(client.timeout for client in clients)
        return Connector(masters.make_connection, timeout, close, search)
    kind: type[AbstractConnection] = SSLConnection if over_tls else Connection
    if issubclass(pool.connection_class, BlockingUnixConnection):
        kind = UnixDomainSocketConnection
    return Connector(lambda: kind(**options), timeout)


def _options_like(pool: ConnectionPool) -> tuple[dict[str, Any], float]:
    """Return what an asyncio connection takes over, and how many seconds a request may take."""
    given = pool.connection_kwargs
    named = given.keys() - {name for name in LATE_OPTIONS if given.get(name) is None}
    options: dict[str, Any] = {name: given[name] for name in SHARED_OPTIONS if name in named}
    timeout = options.pop("socket_timeout", None) or DEFAULT_TIMEOUT
    # Without a socket_timeout of its own: redis-py would spend it by wait_for, which before Python 3.12
    # swallows a cancellation that comes when the request has just been sent.
    return {**options, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}, timeout


def _client_like(client: BlockingRedis) -> SentinelClient:
    """Return an asyncio client of the same Sentinel."""
    options, timeout = _options_like(client.connection_pool)
    made = SentinelClient(**options, ssl="ssl_cert_reqs" in client.connection_pool.connection_kwargs)
    made.timeout = timeout
    return made


class SentinelClient(Redis):
    """A Sentinel's client that bounds its question itself: see `_options_like` for why."""

    timeout: float

    async def sentinel_masters(self, **options: Any) -> Any:
        """See redis-py."""
        return await in_time(super().sentinel_masters(**options), self.timeout)


async def _close_all(clients: Sequence[Redis]) -> None:
    """Close each, also where the good-bye of another takes too long, which redis-py raises."""
    await asyncio.gather(*(client.aclose() for client in clients), return_exceptions=True)


class AsyncConnection:
    """A connection of redis-py whose uses are bounded in time; `search`: more seconds to find the server.

    Its requests share one timer, which looks whether the present one is too late: a timer per request costs
    more than the request. They take the shortest way to its streams, as `ThreadConnection` to its socket.
    """

    def __init__(self, connection: AbstractConnection, timeout: float, search: float = 0.0) -> None:
        self.connection, self._timeout, self._search = connection, timeout, search
        self._reader: Any = None
        self._streams: Any = None
        self._asking: asyncio.Task[Any] | None = None
        self._deadline, self._is_late = 0.0, False
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        """See `protocol.Connect`; each Sentinel has its own time, so that one that hangs is passed over."""
        await in_time(self.connection.connect(), self._timeout + self._search)
        self._streams = [getattr(self.connection, name, None) for name in ("_reader", "_writer")]
        self._reader = reader_for(self.connection) if all(self._streams) else None

    async def send(self, *parts: str) -> None:
        """Send a command. RedisConnectionError: it is closed; redis-py would open it again, unused."""
        if not self.connection.is_connected:
            raise RedisConnectionError("the connection is closed")
        await self.connection.send_command(*parts, check_health=False)

    async def exchange(self, packet: bytes, replies: int | None) -> Any:
        """See `protocol.Exchange`."""
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
        self._stop_timer()
        closing = self.connection.disconnect(nowait=True)
        with contextlib.suppress(StopIteration, RuntimeError):  # RuntimeError: its event loop is gone
            closing.send(None)
        closing.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def hang_up(self) -> None:
        """Close and wait for it, at most a second: TLS says good-bye, and a loop that ends before that
        leaves a transport which Python reports as leaked.
        """
        self._stop_timer()
        with contextlib.suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.connection.disconnect()


async def in_time(step: Awaitable[T], seconds: float) -> T:
    """Return what `step` gives, or raise redis-py's TimeoutError after so many seconds."""
    try:
        # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the answer.
        async with asyncio.timeout(seconds):
            return await step
    except TimeoutError as error:
        raise RedisTimeoutError(f"no answer within {seconds:g} s") from error


class AsyncTransport(protocol.Transport):
    """The connections of one event loop to one server."""

    subscriptions: AsyncSubscriptionPool

    def __init__(self, connector: Connector, verbs: tuple[str, ...] = ("SUBSCRIBE",)) -> None:
        def make() -> AsyncConnection:
            return AsyncConnection(connector.make(), connector.timeout, connector.search)

        super().__init__(make, AsyncSubscriptionPool(make, verbs))
        self._connector = connector

    async def shutdown(self) -> None:
        """Close every socket."""
        await self.subscriptions.shutdown()
        while self.idle:
            await self.idle.pop().hang_up()
        if self._connector.close is not None:
            await self._connector.close()


class AsyncSubscription(protocol.Subscription):
    """One task's share of a subscribed socket."""

    def __init__(self, reader: PubSubReader, owner: str) -> None:
        self.reader, self.owner = reader, owner
        self.channel, self.pool = reader.channel, reader.pool
        self._messages: asyncio.Queue[protocol.Message] = asyncio.Queue()
        self.put = self._messages.put_nowait

    def hears(self, channel: str) -> bool:
        return self in self.reader.listeners.get(channel, ())

    async def listen(self, channel: str) -> None:
        """Receive the messages of `channel` as well, from before this returns."""
        try:
            await in_time(self.reader.listen(self, channel), DEFAULT_TIMEOUT)
        except UNREACHABLE:
            self.reader.close()
            raise

    async def receive(self, timeout: float) -> protocol.Message | None:
        """Return the next message, or None after `timeout` seconds."""
        if not self._messages.empty():
            return self._messages.get_nowait()
        self.reader.start()
        try:
            async with asyncio.timeout(timeout):  # not wait_for, as above
                return await self._messages.get()
        except TimeoutError:
            return None

    def close(self) -> None:
        """See the base class; other tasks of the loop go on over a new socket."""
        self.reader.close()


class PubSubReader:
    """A subscribed socket and the task that reads it for the tasks that wait."""

    def __init__(self, pool: AsyncSubscriptionPool, connection: AsyncConnection) -> None:
        self.pool = pool
        self.channel = protocol.own_channel()
        self.listeners: dict[str, set[AsyncSubscription]] = {}
        self.is_closed = False
        self.connection = connection
        self._subscriptions: dict[str, AsyncSubscription] = {}
        self._acknowledged: dict[str, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and subscribe to the channel of this loop."""
        try:
            await self.connection.connect()
            await in_time(self._subscribed(), DEFAULT_TIMEOUT)
        except BaseException:
            self.close()
            raise

    async def _subscribed(self) -> None:
        await self.connection.send("SUBSCRIBE", self.channel)
        await self.connection.connection.read_response(disable_decoding=True, push_request=True)

    def subscription(self, owner: str) -> AsyncSubscription:
        """Return `owner`'s share; what is published before it reads lies in the socket."""
        made = self._subscriptions[owner] = AsyncSubscription(self, owner)
        return made

    def start(self) -> None:
        """Read from now on."""
        if self.is_closed:
            raise RedisConnectionError("the subscribed socket is closed")
        if self._task is None:
            self._task = asyncio.create_task(self._read(), name="locking-subscriptions")

    async def listen(self, subscription: AsyncSubscription, channel: str) -> None:
        """See `AsyncSubscription.listen`; the first to listen sends the command, all wait for its answer."""
        self.start()
        self.listeners.setdefault(channel, set()).add(subscription)
        if channel not in self._acknowledged:
            self._acknowledged[channel] = asyncio.get_running_loop().create_future()
            for verb in self.pool.verbs:
                await self.connection.send(verb, channel)
        try:
            await asyncio.shield(self._acknowledged[channel])
        except ResponseError:  # refused: the next to ask may be allowed to
            self._acknowledged.pop(channel, None)
            self.listeners.pop(channel, None)
            raise

    async def leave(self, subscription: AsyncSubscription) -> None:
        """Receive nothing more for this one; the last to leave stops the reader."""
        if self._subscriptions.get(subscription.owner) is subscription:
            del self._subscriptions[subscription.owner]
        for channel in [name for name, listening in self.listeners.items() if subscription in listening]:
            await self._stop_listening(subscription, channel)
        if not self._subscriptions and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait({task})  # unlike `await task`, it lets a cancellation of ours through

    async def _stop_listening(self, subscription: AsyncSubscription, channel: str) -> None:
        self.listeners[channel].discard(subscription)
        if self.listeners[channel] or self.is_closed:
            return
        del self.listeners[channel]
        self._acknowledged.pop(channel, None)
        with contextlib.suppress(*UNREACHABLE):
            for verb in self.pool.verbs:
                await self.connection.send(OPPOSITES[verb], channel)

    async def _read(self) -> None:
        try:
            while True:
                await self._read_one()
        except (RedisError, OSError):
            self.close()
        except Exception:  # no message may end the reader without a word to those who wait
            logger.exception("reading wake-ups failed; the waiters ask again")
            self.close()

    async def _read_one(self) -> None:
        try:
            kind, channel, payload = await self.connection.connection.read_response(
                disable_decoding=True, timeout=math.inf, disconnect_on_error=False, push_request=True
            )
        except ResponseError as error:
            self._refused(error)
        else:
            self._dispatch(kind, channel.decode(), payload)

    def _refused(self, error: ResponseError) -> None:
        """Settle what the server doesn't know (Redis 6 has no SSUBSCRIBE) or forbids."""
        too_old = self.pool.is_too_old(error)
        for acknowledged in self._acknowledged.values():
            if not too_old:
                _fail(acknowledged, error)
            elif not acknowledged.done():
                acknowledged.set_result(None)

    def _dispatch(self, kind: bytes, channel: str, payload: Any) -> None:
        acknowledged = self._acknowledged.get(channel)
        if kind == self.pool.verbs[-1].lower().encode() and acknowledged and not acknowledged.done():
            acknowledged.set_result(None)
        elif kind == b"message" and channel == self.channel:
            subscription = self._subscriptions.get(payload.decode().split(" ", 1)[0])
            if subscription is not None:
                subscription.put(protocol.Message(channel.encode(), payload))
        elif kind in MESSAGES:
            for listening in self.listeners.get(channel, ()):
                listening.put(protocol.Message(channel.encode(), payload))

    def close(self) -> None:
        """Have every waiter ask again; the next one opens a new socket with a new channel."""
        self.is_closed = True
        self.connection.disconnect()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        for acknowledged in self._acknowledged.values():
            _fail(acknowledged, RedisConnectionError("the subscribed socket is closed"))
        for subscription in self._subscriptions.values():
            subscription.put(protocol.Message(b"", b""))


def _fail(future: asyncio.Future[None], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # the waiters may be gone by now


class AsyncSubscriptionPool(protocol.SubscriptionPool):
    """The subscribed socket of one event loop on one server."""

    def __init__(self, make: Callable[[], AsyncConnection], verbs: tuple[str, ...]) -> None:
        super().__init__(make, verbs)
        self._reader: PubSubReader | None = None
        self._opening = asyncio.Lock()

    def idle(self, owner: str) -> AsyncSubscription | None:
        if self._reader is None or self._reader.is_closed:
            return None
        return self._reader.subscription(owner)

    async def open(self, owner: str) -> AsyncSubscription:
        """Return a subscription on the loop's socket, a new one if there is none."""
        async with self._opening:
            if self._reader is None or self._reader.is_closed:
                reader = PubSubReader(self, self._make())
                await reader.open()
                self._reader = reader
        return self._reader.subscription(owner)

    async def shutdown(self) -> None:
        """Close the socket."""
        if self._reader is not None and not self._reader.is_closed:
            await self._reader.connection.hang_up()
            self._reader.close()


PERFORM: Final[dict[type, Callable[..., Awaitable[Any]]]] = {
    protocol.Exchange: AsyncConnection.exchange,
    protocol.Connect: AsyncConnection.connect,
    protocol.Sleep: asyncio.sleep,
    protocol.Subscribe: lambda pool, owner: pool.open(owner),
    protocol.Listen: AsyncSubscription.listen,
    protocol.Receive: AsyncSubscription.receive,
    protocol.Unsubscribe: lambda subscription: subscription.reader.leave(subscription),
}


async def arun(verb: Steps[T]) -> T:
    """Carry out a verb in this task."""
    try:
        step = next(verb)
        while True:
            try:
                result = await PERFORM[type(step)](*step)
            except BaseException as error:
                step = verb.throw(error)
            else:
                step = verb.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except BaseException:
        verb.close()
        raise


class EventLoops:
    """The protocol of each event loop; its sockets are closed when the loop shuts down."""

    def __init__(self, make: Callable[[], protocol.Calls]) -> None:
        self._make = make
        self._kept = weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[protocol.Calls, AsyncGenerator[None, None]]
        ]()

    async def here(self) -> protocol.Calls:
        """Return the running loop's."""
        loop = asyncio.get_running_loop()
        if (kept := self._kept.get(loop)) is not None:
            return kept[0]
        self._forget_closed()
        calls = self._make()
        guard = _until_shutdown(calls, weakref.ref(self))
        # A generator that is no longer referenced is closed at once, and its sockets with it.
        self._kept[loop] = calls, guard
        await anext(guard)
        return calls

    def _forget_closed(self) -> None:
        """Leave the sockets of a loop that ended without a shutdown to the collector, which closes them."""
        for loop in [known() for known in self._kept.keyrefs()]:  # not the keys: other threads add some
            if loop is not None and loop.is_closed():
                self.forget(loop)

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep nothing of a loop that has ended: locks and futures of its would keep the loop itself."""
        self._kept.pop(loop, None)


async def _until_shutdown(
    calls: protocol.Calls, loops: weakref.ref[EventLoops]
) -> AsyncGenerator[None, None]:
    """Close the sockets when the loop shuts down: asyncio then closes every generator that was begun."""
    try:
        yield
    finally:
        for transport in calls.transports():
            await transport.shutdown()
        if (keeper := loops()) is not None:
            keeper.forget(asyncio.get_running_loop())


class TaskWaiter(AsyncWaiter):
    """A task that waits."""

    def __init__(self, loops: EventLoops, make: Callable[[protocol.Calls], WaitSteps]) -> None:
        self._loops, self._make = loops, make
        self._wait_steps: WaitSteps | None = None

    async def try_acquire(self, *, queue: bool) -> Outcome:
        if self._wait_steps is None:
            self._wait_steps = self._make(await self._loops.here())
        return await arun(self._wait_steps.try_acquire(queue))

    async def wait(self, timeout: float) -> Outcome:
        assert self._wait_steps is not None
        return await arun(self._wait_steps.wait(timeout))

    async def sleep(self, timeout: float) -> Outcome | None:
        assert self._wait_steps is not None
        return await arun(self._wait_steps.sleep(timeout))

    async def leave(self) -> None:
        if self._wait_steps is not None:
            self.unsettled = not await arun(self._wait_steps.cancel())
