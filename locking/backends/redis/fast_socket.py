"""The fast path over a plain socket: send, receive, and read the one number that nearly every answer is.

redis-py's own send and read cost about as much as Redis needs for the answer: several layers, and a poll()
before each call, because Python keeps the time of a socket that has a time-out. Here the kernel keeps it for
the first moment, in which nearly every answer comes. The rest of a wait is Python's, whose time a signal
doesn't prolong: after each signal the kernel would count from the beginning.

Only plain TCP and Unix connections go this way, once they are connected; TLS, Sentinel and any other kind
keep to redis-py's. What isn't a number is read by hiredis, its own parser in C; where that isn't installed,
nothing goes this way.

This leans on two private names of redis-py, `_sock` and `_parser`; a release without them has no fast path.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any, Final

from redis.connection import AbstractConnection, Connection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

try:
    import hiredis
except ImportError:  # pragma: no cover - the extra `redis` brings it
    hiredis = None  # type: ignore[assignment]

SIZE: Final = 65536
FIRST_MOMENT: Final = 0.005
"""Seconds of a receive that the kernel times; signals come less often."""
PLAIN: Final = (Connection, UnixDomainSocketConnection) if hiredis else ()
PENDING: Final = object()
PUSHED: Final = getattr(hiredis, "PushNotification", ())
"""The type of what a server says unasked (RESP3); hiredis has it since 3.2."""


def fast_socket(connection: AbstractConnection) -> socket.socket | None:
    """Return the connection's socket if requests may go over it directly."""
    if type(connection) not in PLAIN:
        return None
    sock: socket.socket | None = getattr(connection, "_sock", None)
    if sock is None or (limit := sock.gettimeout()) is None:  # nearly always: it is prepared
        return sock
    if not hasattr(connection, "_parser"):
        return None
    if not _is_green():
        _let_the_kernel_time(sock, limit)
    return sock


def _is_green() -> bool:
    """Whether gevent or eventlet put its own sockets in: they never block, the kernel can't time them."""
    return socket.socket.__module__ != "socket"


def _let_the_kernel_time(sock: socket.socket, limit: float) -> None:
    """Have the kernel end a send after `limit` seconds, and a receive sooner: see `_receive`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(min(limit, FIRST_MOMENT)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit))
    sock.settimeout(None)


def _timeval(seconds: float) -> bytes:
    """Return a time limit as the kernel wants it; at least 1 µs, for 0 would be none."""
    whole, rest = divmod(max(seconds, 0.000_001), 1)
    return struct.pack("ll", int(whole), int(rest * 1_000_000))


def talk(connection: Any, sock: socket.socket, packet: bytes) -> Any:
    """Send one request and return its reply, as redis-py would; an error as reply is raised as redis-py's."""
    try:
        sock.sendall(packet)
    except (BlockingIOError, TimeoutError) as error:  # the kernel's word for a time-out, and Python's
        raise RedisTimeoutError("Timeout writing to socket") from error
    data = _receive(sock, connection.socket_timeout)
    if data[:1] == b":" and data[-2:] == b"\r\n":
        return int(data[1:-2])
    return _read(connection, sock, data)


def _read(connection: Any, sock: socket.socket, data: bytes) -> Any:
    """Return the reply that begins with `data`; what a server says unasked (RESP3's pushes) is skipped."""
    reader = _new_reader(connection)
    _feed(reader, data)
    while isinstance(reply := _next(reader, sock, connection.socket_timeout), PUSHED):
        pass
    return reply


class MessageReader:
    """Reads the messages of a subscription."""

    def __init__(self, connection: Any, sock: socket.socket) -> None:
        self._sock, self._reader = sock, _new_reader(connection)

    def read(self, timeout: float) -> Any:
        """Return the next message or acknowledgement.

        Args:
            timeout: seconds to wait for it.

        Raises:
            redis.TimeoutError: nothing came in time. redis.RedisError, OSError: an error, or no connection.
        """
        return _next(self._reader, self._sock, timeout)


def _new_reader(connection: Any) -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=PENDING, replyError=connection._parser.parse_error)


def _next(reader: hiredis.Reader, sock: socket.socket, limit: float | None) -> Any:
    while (reply := reader.gets()) is PENDING:
        _feed(reader, _receive(sock, limit))
    if isinstance(reply, RedisError):
        raise reply
    return reply


def _receive(sock: socket.socket, limit: float | None) -> bytes:
    """Return what comes within `limit` seconds; None = whenever it comes."""
    if (before := sock.gettimeout()) is None:
        with suppress(BlockingIOError):  # the kernel's word for a time-out
            return sock.recv(SIZE)
    try:
        sock.settimeout(limit)
        return sock.recv(SIZE)
    except (BlockingIOError, TimeoutError) as error:
        raise RedisTimeoutError("Timeout reading from socket") from error
    finally:
        sock.settimeout(before)


def _feed(reader: hiredis.Reader, data: bytes) -> None:
    if not data:
        raise RedisConnectionError("Connection closed by server.")
    reader.feed(data)
