"""One kept-alive connection to the shop, with as little Python as will do.

A load generator that costs as much as the server measures itself. This one sends bytes packed before, and
reads the status, the length and the body.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

IDLE_SECONDS = 1.0  # a server hangs up (gunicorn after 2 s); a request sent into that has an unknown outcome


class Address(NamedTuple):
    """Where the shop listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


class Reply(NamedTuple):
    """What the shop answered."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the body's data."""
        return json.loads(self.body)


class Wire:
    """A connection, opened when it is needed and again after a failure.

    Args:
        address: of the shop.
        timeout: seconds to wait for it.

    Example:
        with Wire(address, timeout=5) as wire:
            reply = wire.ask(wire.post("/checkout/", {"lines": [{"sku": "mug", "quantity": 1}]}))
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._used = 0.0
        self.requests = 0
        """Sent so far, answered or not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def get(self, path: str) -> bytes:
        """Return the bytes of a GET."""
        return f"GET {path} HTTP/1.1\r\nHost: {self._address.host}\r\n\r\n".encode()

    def post(self, path: str, data: object, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the bytes of a POST of JSON."""
        return pack(self._address, path, data, headers or {})

    def ask(self, request: bytes) -> Reply:
        """Send a packed request and return the reply.

        Raises:
            OSError: no reply came, or none in time: whether the shop did the work is not known.
        """
        self.requests += 1
        try:
            connection = self._fresh()
            connection.sendall(request)
            return self._read(connection)
        except OSError:
            self.close()
            raise
        finally:
            self._used = time.monotonic()

    def _fresh(self) -> socket.socket:
        if time.monotonic() - self._used > IDLE_SECONDS:
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection(self._address, self._timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _read(self, connection: socket.socket) -> Reply:
        received = b""
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += _more(connection)
        head = received[:end].lower()
        status = int(head[9:12])
        missing = content_length(head) - (len(received) - end - 4)
        while missing > 0:
            more = _more(connection)
            received += more
            missing -= len(more)
        if b"connection: close" in head:
            self.close()
        return Reply(status, received[end + 4 :])


def pack(address: Address, path: str, data: object, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a POST of JSON."""
    body = json.dumps(data).encode()
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
        f"{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def content_length(head: bytes) -> int:
    """Return the length that a reply's head, in lower case, announces."""
    _, found, rest = head.partition(b"content-length:")
    if not found:
        raise ConnectionError("the reply doesn't say how long it is")
    return int(rest.partition(b"\r\n")[0])


def _more(connection: socket.socket) -> bytes:
    received = connection.recv(65536)
    if not received:
        raise ConnectionError("the shop hung up in the middle of a reply")
    return received
