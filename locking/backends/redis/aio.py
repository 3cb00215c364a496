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
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.connection import SSLConnection as BlockingSSLConnection
from redis.connection import UnixDomainSocketConnection as BlockingUnixConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError

from locking.backends.base import AsyncPlace, Busy, Grant, Outcome
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
from locking.backends.redis.wire import ATTEMPTS, DEFAULT_TIMEOUT, UNREACHABLE, translated
from locking.clock import now
from locking.exceptions import BackendUnavailable, LockError

SHARED_OPTIONS: Final = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "client_name", "protocol",
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "ssl_keyfile", "ssl_certfile",
    "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname", "ssl_password",
    "ssl_min_version", "ssl_ciphers",
)  # fmt: skip
"""What an asyncio connection takes over from the pool of blocking ones; the rest is of the other kind."""


class Connect(NamedTuple):
    """Makes connections to one server; `timeout` is how many seconds a request may take."""

    kind: type[AbstractConnection]
    options: dict[str, Any]
    timeout: float

    def __call__(self) -> AbstractConnection:
        """Return a new connection, not yet connected."""
        # Without a socket_timeout of its own: redis-py would spend it by wait_for, which before Python 3.12
        # swallows a cancellation that comes when the request has just been sent.
        return self.kind(**self.options, socket_timeout=None, retry=Retry(NoBackoff(), 0))


def connections_like(pool: ConnectionPool) -> Connect:
    """Return a maker of asyncio connections to the same server, with the same credentials, as `pool`'s."""
    options: dict[str, Any] = {
        name: pool.connection_kwargs[name] for name in SHARED_OPTIONS if name in pool.connection_kwargs
    }
    kind: type[AbstractConnection] = Connection
    if issubclass(pool.connection_class, BlockingUnixConnection):
        kind = UnixDomainSocketConnection
    elif issubclass(pool.connection_class, BlockingSSLConnection):
        kind = SSLConnection
    return Connect(kind, options, options.pop("socket_timeout", None) or DEFAULT_TIMEOUT)


class Room:
    """The sockets of one event loop: idle ones for requests, and the hub that hears wake-ups."""

    def __init__(self, connect: Connect, alias: str) -> None:
        self._connect = connect
        self._alias = alias
        self._idle: deque[AbstractConnection] = deque()
        self.hub = Hub(connect)
        self.shutdown: AsyncGenerator[None, None] | None = None  # kept here, else it would be closed at once

    async def call(self, request: Request) -> Any:
        """See `Wire.call`."""
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            return await self._converse(connection, request)
        except RedisError as error:
            raise translated(error, self._alias) from error
        finally:
            self._idle.append(connection)

    async def _converse(self, connection: AbstractConnection, request: Request) -> Any:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                async with asyncio.timeout(self._connect.timeout):
                    return request.settled(await _exchange(connection, request), attempt)
            except UNREACHABLE as error:
                await connection.disconnect(nowait=True)
                if attempt == ATTEMPTS:
                    raise (
                        error if isinstance(error, RedisError) else RedisConnectionError(str(error))
                    ) from error
        raise AssertionError("unreachable")

    async def command(self, *parts: str) -> Any:
        """See `Wire.command`."""
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            async with asyncio.timeout(self._connect.timeout):
                await connection.send_command(*parts, check_health=False)
                return await connection.read_response(disable_decoding=True)
        except (RedisError, OSError) as error:
            raise translated(error, self._alias) from error
        finally:
            self._idle.append(connection)

    async def close(self) -> None:
        """Close every socket."""
        await self.hub.close()
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)


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

    def __init__(self, connect: Connect, alias: str) -> None:
        self._connect = connect
        self._alias = alias
        self._rooms: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Room] = weakref.WeakKeyDictionary()

    async def here(self) -> Room:
        """Return the running loop's room."""
        loop = asyncio.get_running_loop()
        room = self._rooms.get(loop)
        if room is None:
            room = self._rooms[loop] = Room(self._connect, self._alias)
            room.shutdown = _until_shutdown(room)
            await anext(room.shutdown)
        return room


async def _until_shutdown(room: Room) -> AsyncGenerator[None, None]:
    """Close `room` when its loop shuts down: asyncio then closes every generator that was begun."""
    try:
        yield
    finally:
        await room.close()


class Hub:
    """One subscribed socket and the tasks that wait for its messages."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
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
        connection = self._connect()
        self.channel = f"holdfast_lock_wake:{secrets.token_hex(8)}"
        try:
            await connection.send_command("SUBSCRIBE", self.channel, check_health=False)
            await connection.read_response(disable_decoding=True, timeout=DEFAULT_TIMEOUT, push_request=True)
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
            await self._connection.send_command("SUBSCRIBE", channel, check_health=False)
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
                await self._connection.send_command("UNSUBSCRIBE", channel, check_health=False)

    async def _read(self) -> None:
        assert self._connection is not None
        try:
            while True:
                kind, channel, payload = await self._connection.read_response(
                    disable_decoding=True, timeout=math.inf, disconnect_on_error=False, push_request=True
                )
                self._dispatch(kind, channel.decode(), payload)
        except (RedisError, OSError):
            self._reader = None
            await self.break_off()

    def _dispatch(self, kind: bytes, channel: str, payload: Any) -> None:
        if kind == b"subscribe" and channel in self._acknowledged:
            self._acknowledged[channel].set()
        elif kind == b"message" and channel == self.channel:
            owner = payload.decode().split(" ", 1)[0]
            if owner in self._messages:
                self._messages[owner].put_nowait(payload)
        elif kind == b"message":
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
            await connection.disconnect(nowait=True)


class AsyncRedisPlace(AsyncPlace):
    """A task's place in the queue of one lock."""

    def __init__(self, rooms: Rooms, key: str, owner: str, ttl: float, fenced: bool) -> None:
        self._rooms = rooms
        self._key, self._owner, self._ttl, self._fenced = key, owner, ttl, fenced
        self._standing = False
        self._place = b""
        self._asked = Asked(0.0)

    async def try_acquire(self, *, queue: bool) -> Outcome:
        """See the base class: without a place first, since most never wait."""
        room = await self._rooms.here()
        if self._standing and room.hub.is_deaf(self._owner):
            self._standing = False
        outcome = await self._ask(room)
        if queue and not self._standing and isinstance(outcome, Busy):
            await self._stand(room)
            outcome = await self._ask(room)
        return outcome

    async def _stand(self, room: Room) -> None:
        try:
            await room.hub.expect(self._owner)
        except (RedisError, OSError) as error:
            raise BackendUnavailable(f"can't subscribe to wake-ups: {error}") from error
        self._standing = True
        self._place = place_in_queue(self._owner, self._ttl, keep=self._fenced, channel=room.hub.channel)

    async def _ask(self, room: Room) -> Outcome:
        sent = now()
        place = self._place if self._standing else b""
        request = acquire_request(self._key, self._owner, self._ttl, keep=self._fenced, place=place)
        outcome, listen, self._asked = read_outcome(await room.call(request), sent)
        if listen and not self._hears_lock(room):
            return await self._listen_and_ask(room)
        return await self._done(room, outcome)

    async def _listen_and_ask(self, room: Room) -> Outcome:
        """Hear the lock's own channel, for a holder who wakes no other, and ask again: it may be free."""
        try:
            await room.hub.listen(self._owner, lock_channel(self._key))
        except (RedisError, OSError):
            await room.hub.break_off()
            return await self.try_acquire(queue=True)
        return await self._ask(room)

    def _hears_lock(self, room: Room) -> bool:
        return self._owner in room.hub._listeners.get(lock_channel(self._key), ())

    async def wait(self, timeout: float) -> Outcome:
        """See the base class."""
        room = await self._rooms.here()
        deadline = now() + timeout
        while (left := deadline - now()) > 0 and not room.hub.is_deaf(self._owner):
            message = await room.hub.next_message(self._owner, left)
            meant = read_wakeup(message, self._owner, self._asked) if message else True
            if isinstance(meant, Grant):
                return await self._done(room, meant)
            if meant:
                break
        return await self.try_acquire(queue=True)

    async def _done(self, room: Room, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Grant) and self._standing:
            self._standing = False
            await room.hub.forget(self._owner)
        return outcome

    async def leave(self) -> None:
        """See the base class."""
        if not self._place:
            return
        room = await self._rooms.here()
        try:
            await room.call(release_request(self._key, self._owner, place=self._place))
        except LockError:
            await room.hub.break_off()  # a place that can't be withdrawn must at least not be heard
        await room.hub.forget(self._owner)
