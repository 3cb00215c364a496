"""Limits of a server's connections that granian has no setting for, enforced at the process's descriptors."""

from __future__ import annotations

import os
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

CONNECTIONS: Final = 2048
"""Connections per worker; further ones wait until they are accepted."""
UNREAD_SECONDS: Final = 10
"""How long a client may leave an answer unread before the kernel gives its connection up (Linux)."""
UNREAD_BYTES: Final = 512 << 10
"""What the kernel keeps of unread answers per connection, at most."""


def raise_file_limit() -> None:
    """Raise this process's limit of open files to what its connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connections:
    """The connections that were accepted on the port at which this process listens.

    Args:
        per_address: connections that one client address may have; 0 for any number.
    """

    def __init__(self, per_address: int) -> None:
        self._per_address = per_address
        self._known: set[tuple[int, Any]] = set()
        self._port = 0

    @property
    def are_limited(self) -> bool:
        """Whether the socket that listens was found, and has its limits."""
        return self._port > 0

    def enforce_limits(self) -> None:
        """Close each address's connections beyond its number, the newest first."""
        self._port = self._port or limit_unread()
        if not self._per_address or len(os.listdir("/dev/fd")) <= self._per_address:
            return
        known, self._known, count = self._known, set(), Counter[str]()
        for fd, peer in sorted(self._accepted(), key=lambda connection: connection not in known):
            count[peer[0]] += 1
            if count[peer[0]] <= self._per_address:
                self._known.add((fd, peer))
            else:
                shut_down(fd, peer)

    def _accepted(self) -> Iterator[tuple[int, Any]]:
        for fd, connection in open_sockets():
            peer = peer_of(connection)
            if peer and connection.getsockname()[1] == self._port:
                yield fd, peer


def limit_unread() -> int:
    """Limit what the kernel keeps of unread answers, and how long; return the port that is listened to.

    Accepted connections inherit the options of the socket that listens.
    """
    port = 0
    for _, listener in open_sockets():
        if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            port = listener.getsockname()[1]
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES // 2)  # which Linux doubles
            if (timeout := getattr(socket, "TCP_USER_TIMEOUT", None)) is not None:
                listener.setsockopt(socket.IPPROTO_TCP, timeout, UNREAD_SECONDS * 1000)
    return port


def open_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield this process's TCP sockets by descriptor, each as a copy that is closed afterwards.

    A copy can't become another connection while it is looked at.
    """
    for name in os.listdir("/dev/fd"):
        try:
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # closed meanwhile, or no socket
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield int(name), found


def peer_of(connection: socket.socket) -> Any:
    """Return the address of a connection's client, None where there is none."""
    try:
        return connection.getpeername()
    except OSError:
        return None


def shut_down(fd: int, peer: Any) -> None:
    """End the connection with `peer`, if the descriptor is still that one."""
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
        if peer_of(connection) == peer:
            connection.shutdown(socket.SHUT_RDWR)
