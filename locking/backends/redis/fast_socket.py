"""The fast path over a plain socket: send, receive, and read the one number that nearly every answer is.

redis-py's own send and read cost about as much as Redis needs for the answer: several layers, and a poll()
before each call, because Python keeps the time of a socket that has a time-out. Only its plain TCP and Unix
connections go this way, once they are connected; TLS, Sentinel and any other kind keep to redis-py's. What
isn't a number is read by hiredis, its own parser in C; where that isn't installed, nothing goes this way.

This leans on two private names of redis-py, `_sock` and `_parser`; a release without them has no fast path.
"""

from __future__ import annotations

import socket
import struct
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
PLAIN: Final = (Connection, UnixDomainSocketConnection) if hiredis else ()
PENDING: Final = object()


def fast_socket(connection: AbstractConnection) -> socket.socket | None:
    """Return the connection's socket if requests may go over it directly."""
    if type(connection) not in PLAIN or not hasattr(connection, "_parser"):
        return None
    sock: socket.socket | None = getattr(connection, "_sock", None)
    if sock is not None and (limit := sock.gettimeout()) is not None and not _is_green():
        _let_the_kernel_time(sock, limit)
    return sock


def _is_green() -> bool:
    """Whether gevent or eventlet put its own sockets in: they never block, the kernel can't time them."""
    return socket.socket.__module__ != "socket"


def _let_the_kernel_time(sock: socket.socket, limit: float) -> None:
    """Have the kernel end a send or receive after `limit` seconds: Python would poll() before each."""
    seconds, rest = divmod(limit, 1)
    moment = struct.pack("ll", int(seconds), int(rest * 1_000_000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, moment)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, moment)
    sock.settimeout(None)


def talk(connection: AbstractConnection, sock: socket.socket, packet: bytes) -> Any:
    """Send one request and return its reply, as redis-py would; an error as reply is raised as redis-py's."""
    try:
        sock.sendall(packet)
        data = sock.recv(SIZE)
    except (BlockingIOError, TimeoutError) as error:  # the kernel's word for a time-out, and Python's
        raise RedisTimeoutError("Timeout writing to or reading from socket") from error
    if data[:1] == b":" and data[-2:] == b"\r\n":
        return int(data[1:-2])
    return _read(connection, sock, data)


def _read(connection: Any, sock: socket.socket, data: bytes) -> Any:
    """Return the reply that begins with `data`; what a server says unasked (RESP3's pushes) is skipped."""
    reader = hiredis.Reader(notEnoughData=PENDING, replyError=connection._parser.parse_error)
    _feed(reader, data)
    while (reply := reader.gets()) is PENDING or isinstance(reply, hiredis.PushNotification):
        if reply is PENDING:
            _feed(reader, _receive(sock))
    if isinstance(reply, RedisError):
        raise reply
    return reply


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(SIZE)
    except (BlockingIOError, TimeoutError) as error:
        raise RedisTimeoutError("Timeout reading from socket") from error


def _feed(reader: hiredis.Reader, data: bytes) -> None:
    if not data:
        raise RedisConnectionError("Connection closed by server.")
    reader.feed(data)
