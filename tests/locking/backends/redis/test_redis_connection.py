"""A thread's connection and its socket: every kind of answer, and every way to get none."""

import itertools
import signal
import socket
import threading
import time
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking.backends.redis import transport as module
from locking.backends.redis.protocol import Terms
from locking.backends.redis.scripts import Index, Ordinary
from locking.backends.redis.transport import ThreadConnection, ThreadServer, run

TIMEOUTS = (TimeoutError, RedisTimeoutError)


class OverPair(Connection):
    """A connection of redis-py over one end of a socket pair."""

    __module__ = "redis.connection"
    sock: Any

    def connect(self):
        """Take the socket."""
        self._sock = self.sock
        self.sock.settimeout(self.socket_timeout)

    def disconnect(self, *args, **kwargs):
        """Let it go."""
        self._sock = None


@pytest.fixture
def ends(monkeypatch):
    """A connection that is open, and the server's end."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(OverPair, "sock", ours, raising=False)
    connection = made(5)
    yield connection, theirs
    ours.close()
    theirs.close()


def made(timeout):
    """Return an open connection."""
    connection = ThreadConnection(ConnectionPool(connection_class=OverPair, socket_timeout=timeout))
    run(connection.connect())
    assert connection._sock is not None
    return connection


def asked(ends, answer, replies=None):
    """Send a request whose answer is `answer`."""
    connection, server = ends
    server.sendall(answer)
    return run(connection.exchange(b"PING\r\n", replies))


def test_a_hiredis_without_push_messages_reads_every_answer(ends, monkeypatch):
    """Before hiredis 3.2 it has no type for them."""
    monkeypatch.setattr(module, "PUSHED", ())
    monkeypatch.delattr("hiredis.PushNotification")
    assert asked(ends, b"*2\r\n:1\r\n$1\r\nx\r\n") == [1, b"x"]


PUSH = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (b":1795257314765387\r\n", 1795257314765387),
        (b":0\r\n", 0),
        (b"*4\r\n:29000\r\n$5\r\nowner\r\n:0\r\n:17\r\n", [29000, b"owner", 0, 17]),
        (b"$-1\r\n", None),
        (PUSH + b":7\r\n", 7),
        (PUSH + PUSH + b"*1\r\n:7\r\n", [7]),
    ],
)
def test_every_kind_of_answer_is_read(ends, answer, meaning):
    """A number, a list, nothing, and what the server says unasked before its answer."""
    assert asked(ends, answer) == meaning


def test_the_answers_of_a_pipeline_are_read_in_their_order(ends):
    """An error stands in the place of its reply, and ends nothing."""
    first, error, last = asked(ends, b":1\r\n-WRONGTYPE no\r\n" + PUSH + b"$1\r\nx\r\n", replies=3)
    assert (first, type(error), last) == (1, ResponseError, b"x")


def in_pieces(connection, pieces, replies=None):
    """Return the answer that arrives in these."""
    connection._sock = mock.Mock(recv=mock.Mock(side_effect=pieces))
    return run(connection.exchange(b"PING\r\n", replies))


def test_an_answer_in_pieces_is_put_together(ends):
    """However the network cuts it, the answer is the same."""
    assert in_pieces(ends[0], [b"*2\r", b"\n:1\r\n$3\r\nab", b"c\r\n"]) == [1, b"abc"]
    assert in_pieces(ends[0], [b":1", b"2\r\n"]) == 12
    assert in_pieces(ends[0], [PUSH[:9], PUSH[9:] + b":1\r", b"\n"]) == 1


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError),
        (b"-READONLY You can't write against a read only replica.\r\n", ReadOnlyError),
        (b"-WRONGTYPE Operation against a key\r\n", ResponseError),
        (PUSH + b"-WRONGTYPE Operation against a key\r\n", ResponseError),
    ],
)
def test_an_error_is_redis_pys_own(ends, answer, kind):
    """The layers above tell outages from refusals by redis-py's classes."""
    with pytest.raises(kind):
        asked(ends, answer)


@pytest.mark.parametrize("replies", [None, 2])
def test_a_closed_socket_is_no_answer(ends, replies):
    """The end of the stream is a lost connection, never a number."""
    connection, server = ends
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(RedisConnectionError):
        run(connection.exchange(b"PING\r\n", replies))


def test_a_silent_server_is_given_up_in_time(ends):
    """The time-out is the one that redis-py was configured with."""
    connection = made(0.05)
    begun = time.monotonic()
    with pytest.raises(TIMEOUTS):
        run(connection.exchange(b"PING\r\n", None))
    assert 0.04 <= time.monotonic() - begun < 30


@pytest.mark.parametrize("kind", [SSLConnection, type("Mine", (Connection,), {"__module__": "mine"})])
def test_an_unknown_kind_of_connection_keeps_to_redis_pys_way(monkeypatch, kind):
    """A class of another project may mean anything by its socket; redis-py's own, TLS included, doesn't."""
    monkeypatch.setattr(kind, "connect", lambda self: setattr(self, "_sock", mock.Mock()))
    connection = ThreadConnection(ConnectionPool(connection_class=kind))
    run(connection.connect())
    assert (connection._sock is None) == (kind is not SSLConnection)


def release_over(connection) -> None:
    """Send a release over this connection, as a verb does."""
    server = ThreadServer(Terms("default", Index()), ConnectionPool())
    server.idle.append(connection)
    run(server.call(Ordinary(Index()).release("a", "owner")))


@pytest.mark.parametrize("moment", ["sendall", "recv"])
def test_an_interruption_closes_the_socket(ends, moment):
    """The next user of the connection must not read the answer to this request."""
    connection, server = ends
    sock = mock.Mock(wraps=connection._sock, spec=socket.socket)
    getattr(sock, moment).side_effect = KeyboardInterrupt
    connection._sock = sock
    server.sendall(b":1\r\n")
    with pytest.raises(KeyboardInterrupt):
        release_over(connection)
    assert not connection.is_open


def test_an_interruption_while_the_script_is_sent_whole_closes_the_socket(ends):
    """Between NOSCRIPT and the second answer, too."""
    connection, server = ends
    server.sendall(b"-NOSCRIPT No matching script.\r\n")
    sock = mock.Mock(wraps=connection._sock, spec=socket.socket)
    sock.sendall.side_effect = [None, KeyboardInterrupt]
    connection._sock = sock
    with pytest.raises(KeyboardInterrupt):
        release_over(connection)
    assert not connection.is_open


def test_messages_are_read_one_by_one(ends):
    """Two messages of one packet are two, as RESP2 and RESP3 write them, and pieces are put together."""
    connection, server = ends
    server.sendall(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n")
    assert connection.receive(5) == [b"message", b"c", b"x"]
    server.sendall(b"y\r\n")
    assert connection.receive(5) == [b"message", b"c", b"y"]


def test_a_message_that_does_not_come_is_given_up_in_time(ends):
    """The limit is that of each call, and a message that comes later is read by the next."""
    connection, server = ends
    begun = time.monotonic()
    with pytest.raises(TIMEOUTS):
        connection.receive(0.02)
    assert 0.015 <= time.monotonic() - begun < 4
    server.sendall(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n")
    assert connection.receive(5) == [b"message", b"c", b"x"]


def test_a_subscription_whose_server_is_gone_says_so(ends):
    """A waiter that hears nothing any more must look for another server."""
    connection, server = ends
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(RedisConnectionError):
        connection.receive(5)


@contextmanager
def signals_without_end(most=600):
    """Interrupt the running thread every 10 ms, as an interval timer does; its handler fails after `most`."""
    over, seen, me = threading.Event(), itertools.count(1), threading.get_ident()

    def handle(number, frame):
        assert next(seen) < most, "the wait goes on, longer than it may"

    def send():
        while not over.wait(0.01):
            signal.pthread_kill(me, signal.SIGUSR1)

    former, sender = signal.signal(signal.SIGUSR1, handle), threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("waits", ["exchange", "receive"])
def test_signals_make_no_wait_longer(ends, waits):
    """A request and a waiter give up in time, however often a signal handler runs meanwhile."""
    connection = made(0.5)
    with signals_without_end(), pytest.raises(TIMEOUTS):
        run(connection.exchange(b"PING\r\n", None)) if waits == "exchange" else connection.receive(0.5)


def test_a_kernel_that_counts_from_each_signal_is_found_out(ends):
    """The mutant, which leaves the time to the kernel, waits for as long as signals come."""
    connection = made(0.5)
    connection._sock.setsockopt(
        socket.SOL_SOCKET, socket.SO_RCVTIMEO, b"\0" * 8 + (500_000).to_bytes(8, "little")
    )
    connection._sock.settimeout(None)
    with signals_without_end(most=100), pytest.raises(AssertionError, match="longer than it may"):
        run(connection.exchange(b"PING\r\n", None))
