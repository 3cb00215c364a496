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
import threading
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


def _is_interrupted() -> bool:
    """Whether signals reach this thread: after each the kernel would count anew, and a wait never end."""
    return threading.get_ident() == threading.main_thread().ident


def _let_the_kernel_time(sock: socket.socket, limit: float) -> None:
    """Have the kernel end a send or receive after `limit` seconds: Python would poll() before each."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(limit))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(limit))
    sock.settimeout(None)


def _timeval(seconds: float) -> bytes:
    """Return a time limit as the kernel wants it; at least 1 µs, for 0 would be none."""
    whole, rest = divmod(max(seconds, 0.000_001), 1)
    return struct.pack("ll", int(whole), int(rest * 1_000_000))


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
    reader = _new_reader(connection)
    _feed(reader, data)
    while isinstance(reply := _next(reader, sock), PUSHED):
        pass
    return reply


class MessageReader:
    """Reads the messages of a subscription: a waiter takes the interpreter's lock once, when one has come.

    Python's own time limits take it twice, and another thread may have it for long in between.
    """

    def __init__(self, connection: Any, sock: socket.socket) -> None:
        self._sock, self._reader = sock, _new_reader(connection)

    def read(self, timeout: float) -> Any:
        """Return the next message or acknowledgement.

        Args:
            timeout: seconds to wait for it.

        Raises:
            redis.TimeoutError: nothing came in time. redis.RedisError, OSError: an error, or no connection.
        """
        if _is_green() or _is_interrupted():
            self._sock.settimeout(timeout)
        else:
            if self._sock.gettimeout() is not None:  # the main thread has used it
                self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(timeout))
        return _next(self._reader, self._sock)


def _new_reader(connection: Any) -> hiredis.Reader:
    return hiredis.Reader(notEnoughData=PENDING, replyError=connection._parser.parse_error)


def _next(reader: hiredis.Reader, sock: socket.socket) -> Any:
    while (reply := reader.gets()) is PENDING:
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
