"""Faults at the sockets of psycopg and redis-py: the watched thread's exchanges are counted, any can fail.

An exchange with the database is one call of `psycopg.Connection.wait` (a statement, or COMMIT) or a connect;
one with Redis is one packet that is sent. The servers are real: a request that is lost never arrives, and a
reply that is lost belongs to work that the server has done.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import psycopg
from django.core.cache import caches
from django.db import connection
from redis.connection import Connection, UnixDomainSocketConnection

from locking.backends.redis import RedisBackend
from locking.core.handler import locks

DATABASE: Final = "database"
REDIS: Final = "redis"

REFUSALS: Final = {
    "read-only": b"-READONLY You can't write against a read only replica.\r\n",
    "out of memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "misconfigured": b"-MISCONF Redis is configured to save RDB snapshots, but is unable to persist.\r\n",
    "no script": b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
}
FAULTS: Final = {
    DATABASE: ("lost request", "lost reply", "lost request, then down", "lost reply, then down"),
    REDIS: ("lost request", "lost reply", "lost request, then down", "lost reply, then down", *REFUSALS),
}
KILLS: Final = ("killed before", "killed after")

_HANDSHAKE: Final = frozenset({"HELLO", "CLIENT", "SELECT", "AUTH", "PING", "SUBSCRIBE", "UNSUBSCRIBE"})
_READS: Final = frozenset(
    {"GET", "HGET", "HGETALL", "MGET", "SMEMBERS", "EXISTS", "SCAN", "PTTL", "ROLE", "TIME"}
)


@dataclass(frozen=True)
class Step:
    """One exchange: with which server, and what it was."""

    server: str
    what: str

    def __str__(self) -> str:
        return f"{self.server} {self.what}"


@dataclass
class Transport:
    """Counts the exchanges of one thread, and lets one of them fail.

    Attributes:
        steps: the exchanges so far. fails_at: the number of the one that fails. fault: how.
        down: servers that are unreachable until `heal`. refusal: what Redis answers to writes until then.
    """

    fails_at: int = -1
    fault: str = ""
    steps: list[Step] = field(default_factory=list)
    down: set[str] = field(default_factory=set)
    refusal: str = ""
    _thread: int = field(default_factory=threading.get_ident)

    def heal(self) -> None:
        """Let every later exchange succeed."""
        self.fails_at, self.refusal = -1, ""
        self.down.clear()

    def next(self, server: str, what: str) -> str:
        """Count an exchange, and return how it fails; empty: it doesn't."""
        if threading.get_ident() != self._thread:
            return "lost request" if server in self.down else ""
        self.steps.append(Step(server, what))
        if len(self.steps) - 1 == self.fails_at:
            return self._begin(server)
        if server in self.down:
            return "lost request"
        return self._refused(what) if server == REDIS else ""

    def _begin(self, server: str) -> str:
        if self.fault == "killed before":
            os.kill(os.getpid(), signal.SIGKILL)
        fault, _, then = self.fault.partition(", then ")
        if then:
            self.down.add(server)
        if fault in REFUSALS:
            self.refusal = fault
            return self._refused(self.steps[-1].what)
        return fault

    def _refused(self, what: str) -> str:
        if what in _READS or (self.refusal == "no script" and what != "EVALSHA"):
            return ""
        return self.refusal

    @contextmanager
    def installed(self) -> Iterator[Transport]:
        """Intercept the clients' connections to their servers for the block."""
        close_all()
        with (
            mock.patch.object(psycopg.Connection, "wait", self._database_wait()),
            mock.patch.object(psycopg, "connect", self._database_connect()),
            mock.patch.object(Connection, "_connect", self._redis_connect(Connection._connect)),
            mock.patch.object(
                UnixDomainSocketConnection,
                "_connect",
                self._redis_connect(UnixDomainSocketConnection._connect),
            ),
        ):
            yield self

    def _database_wait(self) -> Callable[..., Any]:
        real = psycopg.Connection.wait

        def wait(conn: psycopg.Connection, generator: Any, *args: Any, **kwargs: Any) -> Any:
            label = _label(generator)
            if label.startswith("set_"):  # psycopg notes an option; nothing is sent
                return real(conn, generator, *args, **kwargs)
            fault = self.next(DATABASE, label)
            if fault == "lost request":
                _cut(conn)
            result = real(conn, generator, *args, **kwargs)
            if fault == "lost reply":
                conn.pgconn.finish()
                raise psycopg.OperationalError("consuming input failed: server closed the connection")
            return _or_kill(fault, result)

        return wait

    def _database_connect(self) -> Callable[..., Any]:
        real = psycopg.connect

        def connect(*args: Any, **kwargs: Any) -> Any:
            fault = self.next(DATABASE, "connect")
            if fault.startswith("lost"):
                kwargs["host"] = "/no/server/here"
            return _or_kill(fault, real(*args, **kwargs))

        return connect

    def _redis_connect(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def connect(conn: Any) -> Any:
            if REDIS in self.down:
                raise ConnectionRefusedError("no server listens")
            return _Socket(real(conn), self)

        return connect


def close_all() -> None:
    """Close every idle connection of this process, so that the next exchange opens its own."""
    connection.close()
    cache: Any = caches["default"]
    cache.client.get_client().connection_pool.disconnect()
    for backend in (locks[alias] for alias in locks):
        if isinstance(backend, RedisBackend):
            backend.close()


class _Socket:
    """A socket to Redis that loses requests and replies, and answers in the server's place."""

    def __init__(self, real: socket.socket, transport: Transport) -> None:
        self._real, self._transport = real, transport
        self._fault = ""
        self._pending = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def sendall(self, packet: bytes) -> None:
        what = _command(packet)
        if what in _HANDSHAKE:
            return self._real.sendall(packet)
        self._fault = self._transport.next(REDIS, what)
        if self._fault == "lost request":
            self._real.close()
            raise ConnectionResetError("the connection was cut")
        if self._fault in REFUSALS:
            self._pending += REFUSALS[self._fault] * max(1, packet.count(b"$7\r\nEVALSHA\r\n"))
            return None
        return self._real.sendall(packet)

    def recv(self, size: int, *flags: int) -> bytes:
        if self._pending:
            data, self._pending = self._pending[:size], self._pending[size:]
            return data
        data = self._real.recv(size, *flags)
        if self._fault == "lost reply":
            self._real.close()
            return b""
        return bytes(_or_kill(self._fault, data))

    def recv_into(self, buffer: Any, *args: int) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _label(generator: Any) -> str:
    return str(generator.gi_code.co_name).strip("_").removesuffix("_gen")


def _command(packet: bytes) -> str:
    words = bytes(packet).split(b"\r\n", 3)
    return words[2].decode() if packet[:1] == b"*" and len(words) > 2 else "PING"


def _cut(conn: psycopg.Connection) -> None:
    if conn.pgconn.status == psycopg.pq.ConnStatus.OK:
        with socket.socket(fileno=os.dup(conn.pgconn.socket)) as own:
            own.shutdown(socket.SHUT_RDWR)


def _or_kill(fault: str, result: Any) -> Any:
    if fault == "killed after":
        os.kill(os.getpid(), signal.SIGKILL)
    return result
