"""The fast path over a plain socket: every kind of answer, and every way to get none."""

import itertools
import signal
import socket
import threading
import time
from contextlib import contextmanager
from unittest import mock

import pytest
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from locking.backends.redis import fast_socket as fast
from locking.backends.redis.index import Index
from locking.backends.redis.protocol import Server
from locking.backends.redis.scripts import release_request
from locking.backends.redis.transport import Transport, run


@pytest.fixture
def ends():
    """A connection of redis-py on one end of a socket pair, and the server's end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    connection = Connection(socket_timeout=5)
    connection._sock = ours  # type: ignore[assignment]
    yield connection, theirs
    ours.close()
    theirs.close()


def fast_way(connection) -> socket.socket:
    """The connection's own socket, over which requests may go directly."""
    sock = fast.fast_socket(connection)
    assert sock is not None
    return sock


def asked(ends, answer):
    """Send a request whose answer is `answer`."""
    connection, server = ends
    server.sendall(answer)
    return fast.talk(connection, fast_way(connection), b"PING\r\n")


def test_a_hiredis_without_push_messages_reads_every_answer(ends, monkeypatch):
    """Before hiredis 3.2 it has no type for them."""
    monkeypatch.setattr(fast, "PUSHED", ())
    monkeypatch.delattr("hiredis.PushNotification")
    assert asked(ends, b"*2\r\n:1\r\n$1\r\nx\r\n") == [1, b"x"]


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (b":1795257314765387\r\n", 1795257314765387),
        (b":0\r\n", 0),
        (b"*4\r\n:29000\r\n$5\r\nowner\r\n:0\r\n:17\r\n", [29000, b"owner", 0, 17]),
        (b"$-1\r\n", None),
        (b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n:7\r\n", 7),
    ],
)
def test_every_kind_of_answer_is_read(ends, answer, meaning):
    """A number, a list, nothing, and what the server says unasked before its answer."""
    assert asked(ends, answer) == meaning


def test_an_answer_in_pieces_is_put_together(ends):
    """However the network cuts it, the answer is the same."""
    connection, _ = ends
    pieces = [b"*2\r", b"\n:1\r\n$3\r\nab", b"c\r\n"]
    assert fast.talk(connection, mock.Mock(recv=mock.Mock(side_effect=pieces)), b"PING\r\n") == [1, b"abc"]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"-NOSCRIPT No matching script.\r\n", NoScriptError),
        (b"-READONLY You can't write against a read only replica.\r\n", ReadOnlyError),
        (b"-WRONGTYPE Operation against a key\r\n", ResponseError),
    ],
)
def test_an_error_is_redis_pys_own(ends, answer, kind):
    """The layers above tell outages from refusals by redis-py's classes."""
    with pytest.raises(kind):
        asked(ends, answer)


def test_a_closed_socket_is_no_answer(ends):
    """The end of the stream is a lost connection, never a number."""
    connection, server = ends
    sock = fast_way(connection)
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(RedisConnectionError):
        fast.talk(connection, sock, b"PING\r\n")


def test_a_silent_server_is_given_up_in_time(ends):
    """The kernel keeps the time-out that redis-py was configured with."""
    connection, _ = ends
    connection.socket_timeout = 0.05
    connection._sock.settimeout(0.05)
    begun = time.monotonic()
    with pytest.raises(RedisTimeoutError):
        fast.talk(connection, fast_way(connection), b"PING\r\n")
    assert 0.04 <= time.monotonic() - begun < 30


def test_green_sockets_keep_their_own_time(ends, monkeypatch):
    """gevent's sockets never block, so their time-out must stay theirs; it is a time-out all the same."""
    connection, _ = ends
    connection.socket_timeout = 0.05
    connection._sock.settimeout(0.05)
    monkeypatch.setattr(fast, "_is_green", lambda: True)
    sock = fast_way(connection)
    assert sock.gettimeout() == 0.05
    with pytest.raises(RedisTimeoutError):
        fast.talk(connection, sock, b"PING\r\n")


def test_other_kinds_of_connection_keep_to_redis_pys_way():
    """TLS must be spoken by its own socket, and a class of somebody else's may mean anything."""
    assert fast.fast_socket(SSLConnection()) is None
    assert fast.fast_socket(type("Mine", (Connection,), {})()) is None
    assert fast.fast_socket(Connection()) is None, "not connected yet"


def release_over(connection) -> None:
    """Send a release over this connection, as a verb does."""
    transport = Transport(ConnectionPool())
    transport.idle.append(connection)
    run(Server(transport, "default", Index()).call(release_request("a", "owner", index=Index())))


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
    assert connection._sock is None


def test_an_interruption_while_the_script_is_sent_whole_closes_the_socket(ends):
    """Between NOSCRIPT and the second answer, too."""
    connection, server = ends
    server.sendall(b"-NOSCRIPT No matching script.\r\n")
    sock = mock.Mock(wraps=connection._sock, spec=socket.socket)
    sock.sendall.side_effect = [None, KeyboardInterrupt]
    connection._sock = sock
    with pytest.raises(KeyboardInterrupt):
        release_over(connection)
    assert connection._sock is None


@pytest.fixture
def reader(ends):
    """What reads the messages of a subscription on such a connection."""
    return reader_of(ends[0])


def reader_of(connection):
    sock = fast.fast_socket(connection)
    assert sock is not None
    return fast.MessageReader(connection, sock)


def test_messages_are_read_one_by_one(ends, reader):
    """Two messages of one packet are two, as RESP2 and RESP3 write them, and pieces are put together."""
    _, server = ends
    server.sendall(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n")
    assert reader.read(5) == [b"message", b"c", b"x"]
    server.sendall(b"y\r\n")
    assert reader.read(5) == [b"message", b"c", b"y"]


@pytest.mark.parametrize("green", [False, True], ids=["kernel", "green"])
def test_a_message_that_does_not_come_is_given_up_in_time(ends, monkeypatch, green):
    """The limit is that of each call, and a message that comes later is read by the next."""
    connection, server = ends
    monkeypatch.setattr(fast, "_is_green", lambda: green)
    reader = reader_of(connection)
    begun = time.monotonic()
    with pytest.raises(RedisTimeoutError):
        reader.read(0.02)
    assert 0.015 <= time.monotonic() - begun < 4
    server.sendall(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n")
    assert reader.read(5) == [b"message", b"c", b"x"]


def test_a_time_limit_of_nothing_is_not_endless(ends, reader):
    """The kernel takes 0 for no limit at all."""
    with pytest.raises(RedisTimeoutError):
        reader.read(0.0)


def test_a_subscription_whose_server_is_gone_says_so(ends, reader):
    """A waiter that is told nothing any more must look for another server."""
    _, server = ends
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(RedisConnectionError):
        reader.read(5)


def test_other_kinds_of_connection_have_no_reader():
    """Their messages are read by redis-py."""
    assert fast.fast_socket(SSLConnection()) is None


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


def ask_among_signals(ends):
    """Ask a server that hangs, within a limit that is longer than the pause between two signals."""
    connection, _ = ends
    connection.socket_timeout = 0.5
    connection._sock.settimeout(0.5)
    with signals_without_end(), pytest.raises(RedisTimeoutError):
        fast.talk(connection, fast_way(connection), b"PING\r\n")


def wait_among_signals(ends):
    """Wait for a message that doesn't come."""
    connection, _ = ends
    reader = fast.MessageReader(connection, fast_way(connection))
    with signals_without_end(), pytest.raises(RedisTimeoutError):
        reader.read(0.5)


@pytest.mark.parametrize("waits", [ask_among_signals, wait_among_signals])
def test_signals_make_no_wait_longer(ends, waits):
    """A request and a waiter give up in time, however often a signal handler runs meanwhile."""
    waits(ends)


@pytest.mark.parametrize("waits", [ask_among_signals, wait_among_signals])
def test_a_kernel_that_counts_from_each_signal_is_found_out(ends, monkeypatch, waits):
    """The mutant, which leaves the whole wait to the kernel, waits for as long as signals come."""
    monkeypatch.setattr(fast, "FIRST_MOMENT", 0.5)
    with pytest.raises(AssertionError, match="longer than it may"):
        waits(ends)


def test_the_kernel_times_the_next_request_again(ends):
    """After a wait that Python timed, the socket blocks as before: no request pays for another's wait."""
    connection, server = ends
    reader, raw = fast.MessageReader(connection, fast_way(connection)), connection._sock
    with pytest.raises(RedisTimeoutError):
        reader.read(0.01)
    assert raw.gettimeout() is None
    server.sendall(b"+hello\r\n")
    assert reader.read(5.0) == b"hello"
