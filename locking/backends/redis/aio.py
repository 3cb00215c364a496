"""Redis for asyncio, without a thread: the same scripts, one room of sockets for each event loop.

Tasks of one loop share one subscription. Its reader runs only while a task waits; a message names the owner
it is meant for, so it reaches that task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.connection import SSLConnection as BlockingSSLConnection
from redis.connection import UnixDomainSocketConnection as BlockingUnixConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.sentinel import SentinelConnectionPool as BlockingSentinelPool

from locking.backends.base import AsyncPlace, Busy, Grant, Outcome
from locking.backends.redis.index import Index
from locking.backends.redis.scripts import (
    Asked,
    Request,
    acquire_request,
    lock_channel,
    place_in_queue,
    read_outcome,
    read_wakeup,
    release_request,
)
from locking.backends.redis.waiting import OPPOSITES, RECOVERY_PAUSE, is_unknown_command
from locking.backends.redis.wire import (
    ASKING,
    DEFAULT_TIMEOUT,
    UNREACHABLE,
    Copies,
    NotReached,
    TooFewCopies,
    as_it_is,
    never_sent,
    translated,
)
from locking.clock import now
from locking.exceptions import BackendUnavailable, LockError

SHARED_OPTIONS: Final = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "protocol",
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "ssl_keyfile", "ssl_certfile",
    "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname", "ssl_password",
    "ssl_min_version", "ssl_ciphers",
)  # fmt: skip
"""What an asyncio connection takes over from the pool of blocking ones; the rest is of the other kind."""

ACKNOWLEDGED: Final = {"SUBSCRIBE": b"subscribe", "SSUBSCRIBE": b"ssubscribe"}


class Connect(NamedTuple):
    """Makes connections to one server, not yet connected; `timeout`: how many seconds a request may take."""

    make: Callable[[], AbstractConnection]
    timeout: float
    close: Callable[[], Awaitable[None]] | None = None
    """Closes what finding the server has opened in this loop."""


def connections_like(pool: ConnectionPool) -> Connect:
    """Return a maker of asyncio connections to the same server, with the same credentials, as `pool`'s."""
    options: dict[str, Any] = {
        name: pool.connection_kwargs[name] for name in SHARED_OPTIONS if name in pool.connection_kwargs
    }
    timeout = options.pop("socket_timeout", None) or DEFAULT_TIMEOUT
    # Without a socket_timeout of its own: redis-py would spend it by wait_for, which before Python 3.12
    # swallows a cancellation that comes when the request has just been sent.
    options |= {"socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    if isinstance(pool, BlockingSentinelPool):
        masters = Masters(pool, options)
        return Connect(masters.make, timeout, masters.close)
    kind: type[AbstractConnection] = Connection
    if issubclass(pool.connection_class, BlockingUnixConnection):
        kind = UnixDomainSocketConnection
    elif issubclass(pool.connection_class, BlockingSSLConnection):
        kind = SSLConnection
    return Connect(lambda: kind(**options), timeout)


class Masters:
    """Makes connections to the master that the Sentinels of a pool name when they connect.

    The clients of the Sentinels belong to an event loop, so each loop has its own.
    """

    def __init__(self, like: BlockingSentinelPool, options: dict[str, Any]) -> None:
        self._like, self._options = like, options
        self._pools = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, SentinelConnectionPool]()

    def make(self) -> AbstractConnection:
        """Return a new connection, not yet connected."""
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            self._pools[loop] = self._pool()
        connection: AbstractConnection = self._pools[loop].make_connection()
        return connection

    def _pool(self) -> SentinelConnectionPool:
        manager = self._like.sentinel_manager
        sentinel = Sentinel([], min_other_sentinels=manager.min_other_sentinels)
        sentinel.sentinels = [_client_like(client) for client in manager.sentinels]
        over_tls = issubclass(self._like.connection_class, BlockingSSLConnection)
        return SentinelConnectionPool(self._like.service_name, sentinel, ssl=over_tls, **self._options)

    async def close(self) -> None:
        """Close the running loop's connections to the Sentinels."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        for client in pool.sentinel_manager.sentinels if pool else ():
            await client.aclose()


def _client_like(client: BlockingRedis) -> Redis:
    """Return an asyncio client of the same Sentinel."""
    options = client.connection_pool.connection_kwargs
    kept: dict[str, Any] = {name: options[name] for name in SHARED_OPTIONS if name in options}
    patience = kept.pop("socket_timeout", None) or DEFAULT_TIMEOUT
    kept |= {"socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    made = SentinelClient(**kept, ssl="ssl_cert_reqs" in options)
    made.patience = patience
    return made


class SentinelClient(Redis):
    """A Sentinel's client that bounds its question itself: see `connections_like` for why."""

    patience: float

    async def sentinel_masters(self, **options: Any) -> Any:
        """See redis-py."""
        try:
            async with asyncio.timeout(self.patience):
                return await super().sentinel_masters(**options)
        except TimeoutError as error:
            raise RedisTimeoutError(f"no answer within {self.patience:g} s") from error


_Sent = TypeVar("_Sent")


class AsyncCalls(Protocol):
    """`Calls` for asyncio."""

    @property
    def index(self) -> Index:
        """See `Calls.index`."""

    @property
    def copies(self) -> Copies | None:
        """See `Calls.copies`."""

    @property
    def recovers(self) -> bool:
        """See `Calls.recovers`."""

    async def hub_of(self, key: str) -> Hub:
        """Return the hub on the server that owns `key`."""

    async def call(self, request: Request) -> Any:
        """See `Wire.call`."""

    async def acquire(self, request: Request, undo: Callable[[], Request]) -> Any:
        """See `Wire.acquire`."""

    async def command(self, *parts: str) -> Any:
        """See `Wire.command`."""

    async def close(self) -> None:
        """Close every socket."""


class Room:
    """The sockets of one event loop: idle ones for requests, and the hub that hears wake-ups."""

    def __init__(
        self,
        connect: Connect,
        alias: str,
        *,
        index: Index,
        copies: Copies | None = None,
        recovers: bool = False,
        verbs: tuple[str, ...] = ("SUBSCRIBE",),
    ) -> None:
        self._connect = connect
        self._alias = alias
        self.index = index
        self._idle: deque[AbstractConnection] = deque()
        self.copies = copies
        self.recovers = recovers
        self.hub = Hub(connect, verbs)

    async def hub_of(self, key: str) -> Hub:
        """Return the hub on the server that owns `key`."""
        return self.hub

    async def call(self, request: Request) -> Any:
        """See `Wire.call`."""
        try:
            return await self.exchange(request)
        except RedisError as error:
            raise translated(error, self._alias) from error

    async def acquire(self, request: Request, undo: Callable[[], Request]) -> Any:
        """See `Wire.acquire`."""
        try:
            return await self.exchange(request, copies=self.copies)
        except NotReached as error:
            raise never_sent(error, self._alias) from error
        except RedisError as error:
            raise translated(error, self._alias) from error
        except TooFewCopies:
            with contextlib.suppress(LockError):
                await self.call(undo())
            raise

    async def command(self, *parts: str) -> Any:
        """See `Wire.command`."""
        try:
            return await self.converse(*parts)
        except RedisError as error:
            raise translated(error, self._alias) from error

    async def exchange(self, request: Request, *, asking: bool = False, copies: Copies | None = None) -> Any:
        """See `Wire.exchange`."""
        connection = await self._take()
        try:
            if asking:
                return await self._once(_exchange_asking, connection, request)
            reply = await self._twice(_exchange, connection, request, request.settled)
            if copies is not None and isinstance(reply, int):
                await self._confirm(copies, connection)
            return reply
        finally:
            self._idle.append(connection)

    async def converse(self, *parts: str) -> Any:
        """See `Wire.converse`."""
        connection = await self._take()
        try:
            return await self._twice(_ask, connection, parts)
        finally:
            self._idle.append(connection)

    async def _take(self) -> AbstractConnection:
        """See `Wire._take`."""
        connection = self._idle.pop() if self._idle else self._connect.make()
        if connection.is_connected:
            return connection
        try:
            async with asyncio.timeout(self._connect.timeout):
                await _open(connection)
        except UNREACHABLE as error:
            raise NotReached(str(error)) from error
        return connection

    async def _once(
        self,
        step: Callable[[AbstractConnection, _Sent], Awaitable[Any]],
        connection: AbstractConnection,
        what: _Sent,
    ) -> Any:
        async with asyncio.timeout(self._connect.timeout):
            if not connection.is_connected:  # by itself a request would connect without asking Sentinels
                await _open(connection)
            return await step(connection, what)

    async def _twice(
        self,
        step: Callable[[AbstractConnection, _Sent], Awaitable[Any]],
        connection: AbstractConnection,
        what: _Sent,
        settled: Callable[[Any], Any] = as_it_is,
    ) -> Any:
        """See `wire._twice`."""
        try:
            return await self._once(step, connection, what)
        except UNREACHABLE:
            await connection.disconnect(nowait=True)
        try:
            return settled(await self._once(step, connection, what))
        except UNREACHABLE as error:
            await connection.disconnect(nowait=True)
            raise (error if isinstance(error, RedisError) else RedisConnectionError(str(error))) from error

    async def _confirm(self, copies: Copies, connection: AbstractConnection) -> None:
        """See `Copies.confirm`."""
        wanted = copies.replicas
        if wanted == "auto":
            wanted = copies.wanted(await self._once(_ask, connection, ("ROLE",)))
        if wanted:
            confirmed = await self._once(_ask, connection, ("WAIT", wanted, copies.timeout_ms))
            copies.check(confirmed, wanted, self._alias)

    async def close(self) -> None:
        """Close every socket."""
        await self.hub.close()
        while self._idle:
            await _hang_up(self._idle.pop())
        if self._connect.close is not None:
            await self._connect.close()


async def _open(connection: AbstractConnection) -> None:
    """See `wire._open`."""
    try:
        await connection.connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def _ask(connection: AbstractConnection, command: tuple[str | int, ...]) -> Any:
    try:
        await connection.send_command(*command, check_health=False)
        return await connection.read_response(disable_decoding=True)
    except asyncio.CancelledError:
        await connection.disconnect(nowait=True)
        raise


async def _exchange_asking(connection: AbstractConnection, request: Request) -> Any:
    try:
        await connection.send_packed_command(ASKING + request.by_source, check_health=False)
        await connection.read_response(disable_decoding=True)
        return await connection.read_response(disable_decoding=True)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


async def _hang_up(connection: AbstractConnection) -> None:
    """Close a socket and wait for it, at most a second: TLS says good-bye, and a loop that ends before that
    leaves a transport which Python reports as leaked.
    """
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            await connection.disconnect()


async def _exchange(connection: AbstractConnection, request: Request) -> Any:
    """One request and its reply; a cancellation between the two closes the socket, as in `wire`."""
    try:
        await connection.send_packed_command(request.by_digest, check_health=False)
        return await connection.read_response(disable_decoding=True)
    except NoScriptError:
        await connection.send_packed_command(request.by_source, check_health=False)
        return await connection.read_response(disable_decoding=True)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise


class Rooms:
    """The room of each event loop; it is cleared when the loop shuts down."""

    def __init__(self, make: Callable[[], AsyncCalls]) -> None:
        self._make = make
        self._rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncCalls]
        self._rooms = weakref.WeakKeyDictionary()
        self._guards: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]]
        self._guards = weakref.WeakKeyDictionary()

    async def here(self) -> AsyncCalls:
        """Return the running loop's room."""
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None:
            room = self._rooms[loop] = self._make()
            # Kept, because a generator that nobody knows any more is closed at once, and its room with it.
            guard = self._guards[loop] = _until_shutdown(room)
            await anext(guard)
        return room


async def _until_shutdown(room: AsyncCalls) -> AsyncGenerator[None, None]:
    """Close `room` when its loop shuts down: asyncio then closes every generator that was begun."""
    try:
        yield
    finally:
        await room.close()


class Hub:
    """One subscribed socket and the tasks that wait for its messages."""

    def __init__(self, connect: Connect, verbs: tuple[str, ...] = ("SUBSCRIBE",)) -> None:
        self._connect = connect
        self._verbs = verbs
        self._connection: AbstractConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._messages: dict[str, asyncio.Queue[bytes | None]] = {}
        self._listeners: dict[str, set[str]] = {}
        self._acknowledged: dict[str, asyncio.Event] = {}
        self.channel = ""

    async def expect(self, owner: str) -> None:
        """Collect messages for `owner` from now on."""
        async with self._opening:
            if self._connection is None:
                await self._open()
        self._messages[owner] = asyncio.Queue()
        if self._reader is None:
            self._reader = asyncio.create_task(self._read(), name="locking-wakeups")

    async def _open(self) -> None:
        connection = self._connect.make()
        self.channel = f"holdfast_lock_wake:{secrets.token_hex(8)}"
        try:
            async with asyncio.timeout(self._connect.timeout):
                await connection.connect()
                await connection.send_command("SUBSCRIBE", self.channel, check_health=False)
                await connection.read_response(disable_decoding=True, push_request=True)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._connection = connection

    async def listen(self, owner: str, channel: str) -> None:
        """Wake `owner` by any message on `channel`, too, from before this returns."""
        assert self._connection is not None
        self._listeners.setdefault(channel, set()).add(owner)
        if channel not in self._acknowledged:
            self._acknowledged[channel] = asyncio.Event()
            for verb in self._verbs:
                await self._connection.send_command(verb, channel, check_health=False)
        await asyncio.wait_for(self._acknowledged[channel].wait(), DEFAULT_TIMEOUT)

    async def next_message(self, owner: str, timeout: float) -> bytes | None:
        """Return the next message for `owner`; None after `timeout` seconds, or when the socket broke.

        An empty message says that someone let the lock go.
        """
        try:
            # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with a message.
            async with asyncio.timeout(timeout):
                return await self._messages[owner].get()
        except TimeoutError:
            return None

    def hears(self, owner: str, channel: str) -> bool:
        """Whether `owner` is woken by `channel`, too."""
        return owner in self._listeners.get(channel, ())

    def is_deaf(self, owner: str) -> bool:
        """Whether the socket that `owner` relied on is gone, so that it must start over."""
        return owner not in self._messages

    async def forget(self, owner: str) -> None:
        """Collect nothing more for `owner`; the last to leave stops the reader."""
        self._messages.pop(owner, None)
        for channel in [name for name, owners in self._listeners.items() if owner in owners]:
            await self._stop_listening(owner, channel)
        if not self._messages and self._reader is not None:
            reader, self._reader = self._reader, None
            reader.cancel()
            await asyncio.wait({reader})  # unlike `await reader`, it lets a cancellation of ours through

    async def _stop_listening(self, owner: str, channel: str) -> None:
        self._listeners[channel].discard(owner)
        if self._listeners[channel]:
            return
        del self._listeners[channel]
        self._acknowledged.pop(channel, None)
        if self._connection is not None:
            with contextlib.suppress(*UNREACHABLE):
                for verb in self._verbs:
                    await self._connection.send_command(OPPOSITES[verb], channel, check_health=False)

    async def _read(self) -> None:
        assert self._connection is not None
        try:
            while True:
                await self._read_one(self._connection)
        except (RedisError, OSError):
            self._reader = None
            await self.break_off()

    async def _read_one(self, connection: AbstractConnection) -> None:
        try:
            kind, channel, payload = await connection.read_response(
                disable_decoding=True, timeout=math.inf, disconnect_on_error=False, push_request=True
            )
        except ResponseError as error:
            if not is_unknown_command(error):
                raise
            self._verbs = ("SUBSCRIBE",)
            for event in self._acknowledged.values():
                event.set()
        else:
            self._dispatch(kind, channel.decode(), payload)

    def _dispatch(self, kind: bytes, channel: str, payload: Any) -> None:
        if kind == ACKNOWLEDGED[self._verbs[-1]] and channel in self._acknowledged:
            self._acknowledged[channel].set()
        elif kind == b"message" and channel == self.channel:
            owner = payload.decode().split(" ", 1)[0]
            if owner in self._messages:
                self._messages[owner].put_nowait(payload)
        elif kind in (b"message", b"smessage", b"sunsubscribe"):
            for owner in self._listeners.get(channel, ()):
                self._messages[owner].put_nowait(b"")

    async def break_off(self) -> None:
        """Send every waiter back to ask anew; the next one opens a new socket with a new channel."""
        waiting, self._messages = self._messages, {}
        self._listeners, self._acknowledged = {}, {}
        for queue in waiting.values():
            queue.put_nowait(None)
        await self.close()

    async def close(self) -> None:
        """Close the socket: the scripts then pass over whoever stands in a queue with its channel."""
        connection, self._connection = self._connection, None
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None
        if connection is not None:
            await _hang_up(connection)


class AsyncRedisPlace(AsyncPlace):
    """A task's place in the queue of one lock."""

    def __init__(self, rooms: Rooms, key: str, owner: str, ttl: float, fenced: bool) -> None:
        self._rooms = rooms
        self._key, self._owner, self._ttl, self._fenced = key, owner, ttl, fenced
        self._hub: Hub | None = None
        self._place = b""
        self._asked = Asked(0.0)

    async def try_acquire(self, *, queue: bool) -> Outcome:
        """See the base class; an outage of servers that recover is not the end, see `RedisPlace`."""
        room = await self._rooms.here()
        try:
            return await self._try(room, queue)
        except TooFewCopies:
            raise
        except BackendUnavailable as error:
            if not (queue and room.recovers):
                raise
            await self._stand_down()
            return Busy(outage=error)

    async def _try(self, room: AsyncCalls, queue: bool) -> Outcome:
        """Ask, without a place first, since most never wait."""
        if self._hub is not None and self._hub.is_deaf(self._owner):
            self._hub = None
        outcome = await self._ask(room)
        if queue and self._hub is None and isinstance(outcome, Busy):
            await self._stand(room)
            outcome = await self._ask(room)
        return outcome

    async def _stand(self, room: AsyncCalls) -> None:
        hub = await room.hub_of(self._key)
        try:
            await hub.expect(self._owner)
        except (RedisError, OSError) as error:
            raise BackendUnavailable(f"can't subscribe to wake-ups: {error}") from error
        self._hub = hub
        self._place = place_in_queue(self._owner, self._ttl, keep=self._fenced, channel=hub.channel)

    async def _stand_down(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.forget(self._owner)

    async def _ask(self, room: AsyncCalls) -> Outcome:
        sent = now()
        place = self._place if self._hub is not None else b""
        request = acquire_request(
            self._key, self._owner, self._ttl, keep=self._fenced, place=place, index=room.index
        )
        reply = await room.acquire(request, lambda: self._undo(room))
        outcome, listen, self._asked = read_outcome(reply, sent)
        if isinstance(outcome, Grant):
            await self._stand_down()
        elif self._hub is not None and self._hub is not await room.hub_of(self._key):
            return await self._move(room)
        elif self._hub is not None and listen and not self._hub.hears(self._owner, lock_channel(self._key)):
            return await self._listen_and_ask(room, self._hub)
        return outcome

    def _undo(self, room: AsyncCalls, place: bytes = b"") -> Request:
        return release_request(self._key, self._owner, index=room.index, place=place)

    async def _move(self, room: AsyncCalls) -> Outcome:
        """See `RedisPlace._move`."""
        await room.call(self._undo(room, self._place))
        await self._stand_down()
        return await self._try(room, queue=True)

    async def _listen_and_ask(self, room: AsyncCalls, hub: Hub) -> Outcome:
        """Hear the lock's own channel, for a holder who wakes no other, and ask again: it may be free."""
        try:
            await hub.listen(self._owner, lock_channel(self._key))
        except (RedisError, OSError):
            await hub.break_off()
            return await self._try(room, queue=True)
        return await self._ask(room)

    async def wait(self, timeout: float) -> Outcome:
        """See the base class."""
        room = await self._rooms.here()
        if self._hub is None:  # the server was away
            await asyncio.sleep(min(timeout, RECOVERY_PAUSE))
            return await self.try_acquire(queue=True)
        deadline = now() + timeout
        while (left := deadline - now()) > 0 and not self._hub.is_deaf(self._owner):
            message = await self._hub.next_message(self._owner, left)
            meant = read_wakeup(message, self._owner, self._asked) if message else True
            if isinstance(meant, Grant) and room.copies is None:
                await self._stand_down()
                return meant
            if meant:
                break
        return await self.try_acquire(queue=True)

    async def leave(self) -> None:
        """See the base class."""
        if not self._place:
            return
        room = await self._rooms.here()
        try:
            await room.call(self._undo(room, self._place))
        except LockError:
            if self._hub is not None:
                await self._hub.break_off()  # a place that can't be withdrawn must at least not be heard
        await self._stand_down()
