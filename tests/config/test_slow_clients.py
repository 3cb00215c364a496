"""Two hundred clients that send or read slowly cost their own connections, not the shop."""

from __future__ import annotations

import gc
import json
import socket
import statistics
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from config import connections as connections_module
from config.connections import UNREAD_SECONDS, Connections
from config.requests import BODY_BYTES, BODY_SECONDS, Bodies, Body, Gateway, environ_of
from config.server import HEADER_SECONDS
from tests.factories import ProductFactory
from tests.support.processes import until

CLIENTS = 200
POST = b"POST /checkout/ HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LARGE = b"GET /static/admin/js/vendor/select2/select2.full.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW: dict[str, tuple[bytes, float]] = {
    "half-sent headers": (POST, HEADER_SECONDS),
    "half-sent bodies": (POST + b"Content-Length: 100\r\n\r\n{", BODY_SECONDS),
    "half-sent chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", BODY_SECONDS),
    "unread answers": (LARGE * 40, UNREAD_SECONDS),
}
MEGABYTE = 1 << 20


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", SLOW)
def test_the_shop_serves_beside_two_hundred_slow_clients(server, kind):
    """Health is answered at once, buyers buy, the slow connections end in time, memory stays small."""
    sent, seconds = SLOW[kind]
    product = ProductFactory.create(on_hand=5)
    address = (str(urlsplit(server).hostname), int(urlsplit(server).port or 0))
    shop = workers(address)
    before = memory(shop)
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(closing(socket.socket()))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(address)
            client.sendall(sent)
        began = time.monotonic()
        assert statistics.median(ask(address, "GET", "/livez", 200) for _ in range(20)) < 0.1
        order = json.dumps({"lines": [{"sku": product.sku, "quantity": 1}]})
        ask(address, "POST", "/checkout/", 201, order)
        assert len(accepted(shop, address)) >= CLIENTS  # all of it while they were there
        assert memory(shop) - before < 200 * MEGABYTE
        until(lambda: open_files(shop) < CLIENTS and not accepted(shop, address), within=3 * seconds + 30)
        assert time.monotonic() - began < 3 * seconds + 10


def ask(address: tuple[str, int], method: str, path: str, status: int, body: str | None = None) -> float:
    """Ask over a new connection, expect a status, and return the seconds that it took."""
    began = time.monotonic()
    with closing(HTTPConnection(*address, timeout=30)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        assert connection.getresponse().status == status
    return time.monotonic() - began


def workers(address: tuple[str, int]) -> list[psutil.Process]:
    """Return the processes that listen at an address."""
    there = [found for found in psutil.net_connections("tcp") if found.laddr == address]
    return [psutil.Process(pid) for pid in {found.pid for found in there if not found.raddr} if pid]


def accepted(shop: list[psutil.Process], address: tuple[str, int]) -> list[Any]:
    """Return the connections that the workers have at this moment."""
    own = [found for worker in shop for found in worker.net_connections("tcp") if found.laddr == address]
    return [found for found in own if found.raddr]


def open_files(shop: list[psutil.Process]) -> int:
    """Return how many descriptors the workers have, each connection among them: a look that costs little."""
    return sum(worker.num_fds() for worker in shop)


def memory(shop: list[psutil.Process]) -> int:
    """Return the bytes of memory that the workers have."""
    return sum(worker.memory_info().rss for worker in shop)


def test_a_client_that_opens_too_many_connections_loses_the_newest(monkeypatch):
    """Other addresses keep theirs, and those that were there before stay."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = listener.getsockname()
        monkeypatch.setattr(connections_module, "limit_unread", lambda: address[1])
        limit, clients = Connections(3), list[socket.socket]()
        for source in [*["127.0.0.2"] * 3, "127.0.0.3", *["127.0.0.2"] * 3]:
            if len(clients) == 4:
                limit.enforce_limits()
            clients.append(stack.enter_context(socket.create_connection(address, 30, (source, 0))))
            stack.enter_context(listener.accept()[0])
        limit.enforce_limits()
        for client in clients:
            client.setblocking(False)
        assert [is_closed(client) for client in clients] == [False] * 4 + [True] * 3


def is_closed(client: socket.socket) -> bool:
    """Return whether the server has ended a connection."""
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


class FakeFuture:
    """A piece of a body that arrives when the test says so."""

    def __init__(self) -> None:
        self.then: Any = None
        self.value: bytes | None = None
        self.cancelled = False

    def add_done_callback(self, then: Any) -> None:
        self.then = then

    def arrive(self, value: bytes | None) -> None:
        """Bring the piece; None is a broken connection."""
        self.value = value
        self.then(self)

    def cancel(self) -> None:
        self.cancelled = True
        if self.value is None and self.then:
            self.then(self)

    def result(self) -> bytes:
        if self.value is None:
            raise RuntimeError
        return self.value


class FakeProtocol:
    """granian's object of a request: its pieces, and the status of what was answered."""

    def __init__(self) -> None:
        self.futures: list[FakeFuture] = []
        self.status = 0
        self.exhausted = False

    def __call__(self) -> FakeFuture:
        self.futures.append(FakeFuture())
        return self.futures[-1]

    def __aiter__(self) -> FakeProtocol:
        return self

    def __anext__(self) -> FakeFuture:
        if self.exhausted:
            raise StopAsyncIteration
        return self()

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = self.status or status


class Request:
    """A request that waits for its body.

    Args:
        bodies: with which it waits.
        length: its Content-Length; None for a chunked one.
    """

    def __init__(self, bodies: Bodies, length: int | None, address: str = "192.0.2.1") -> None:
        self.protocol = FakeProtocol()
        self.received: list[bytes] = []
        environ = {"REMOTE_ADDR": address} | ({} if length is None else {"CONTENT_LENGTH": str(length)})
        body = Body(
            self.protocol, environ, lambda _, environ: self.received.append(environ["wsgi.input"].read())
        )
        self.body = weakref.ref(body)
        bodies.read(body)
        self.due = body.due

    def arrive(self, value: bytes | None) -> None:
        """Bring the piece that is awaited."""
        self.protocol.futures[-1].arrive(value)

    def is_freed(self) -> bool:
        """Return whether the body is gone with granian's futures, without the garbage collection."""
        self.protocol.futures.clear()
        return self.body() is None


@pytest.fixture
def counted_references() -> Iterator[None]:
    """Without the garbage collection, which can't see through granian's objects."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("counted_references")
def test_a_whole_body_is_passed_on_and_forgotten():
    """The application reads it at once; granian's future, which can't be collected, keeps nothing of it."""
    request = Request(Bodies(), 2)
    request.arrive(b"{}")
    assert (request.received, request.protocol.status) == ([b"{}"], 0)
    assert request.is_freed()


def test_pieces_are_joined():
    """A chunked body is passed on when its end has arrived."""
    request = Request(Bodies(), None)
    request.arrive(b"{")
    request.arrive(b"}")
    assert request.received == []
    request.protocol.exhausted = True
    request.arrive(b"")
    assert request.received == [b"{}"]


@pytest.mark.parametrize(("length", "last"), [(100, None), (None, None), (None, b"")])
def test_a_body_that_is_cut_off_never_reaches_the_application(length, last):
    """Half an order is no order: of a chunked body the end must have been seen."""
    request = Request(Bodies(), length)
    if length is None:
        request.arrive(b"quantity=1")
    request.arrive(last)
    assert (request.received, request.protocol.status) == ([], 400)


@pytest.mark.usefixtures("counted_references")
@pytest.mark.parametrize("length", [2, None])
def test_a_late_body_is_refused_once(length):
    """Its connection is closed by the answer; what arrives behind it is dropped."""
    bodies = Bodies(seconds=5)
    request = Request(bodies, length)
    due = request.due
    bodies.expire(due - 0.1)
    assert request.protocol.status == 0
    bodies.expire(due)
    assert (request.protocol.status, request.protocol.futures[-1].cancelled) == (408, True)
    request.arrive(b"{}")
    assert request.received == []
    assert request.is_freed()


def test_a_body_that_is_too_long_is_refused():
    """By its length before anything is read; a chunked one as soon as it is."""
    bodies = Bodies()
    declared, chunked = Request(bodies, BODY_BYTES + 1), Request(bodies, None)
    assert (declared.protocol.status, declared.protocol.futures) == (413, [])
    chunked.arrive(b"x" * BODY_BYTES)
    assert chunked.protocol.status == 0
    chunked.arrive(b"x")
    assert (chunked.protocol.status, chunked.protocol.futures[-1].cancelled) == (413, True)


def test_where_memory_ends_the_client_with_most_of_it_gives_way():
    """The oldest of its requests is refused, and another client's is not."""
    bodies = Bodies(most=1000)
    other = Request(bodies, 400, "192.0.2.2")
    greedy = [Request(bodies, 300) for _ in range(3)]
    assert [request.protocol.status for request in (other, *greedy)] == [0, 503, 0, 0]


class Headers:
    """granian's headers of a request."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = pairs

    def items(self) -> list[tuple[str, str]]:
        """Return each as it came, also twice."""
        return list(self._pairs)


class Scope:
    """What granian says of a request."""

    http_version, server, client = "1.1", "[::]:8000", "[2001:db8::1]:4711"
    method, path, query_string, scheme, authority = "GET", "/café", "q=%C3%A9", "http", None

    def __init__(self, *headers: tuple[str, str]) -> None:
        self.headers = Headers(*headers)


def test_the_environment_is_that_of_wsgi():
    """Bytes are characters, repeated headers one; what could pass for a proxy's header is left out."""
    headers = [
        ("accept", "a"),
        ("accept", "b"),
        ("cookie", "c=1"),
        ("cookie", "d=2"),
        ("x_forwarded_for", "me"),
    ]
    environ = environ_of(Scope(*headers, ("content-type", "text/plain"), ("host", "shop.example")))
    assert environ["REMOTE_ADDR"] == "2001:db8::1"
    assert environ["PATH_INFO"].encode("latin1").decode() == "/café"
    assert environ["QUERY_STRING"] == "q=%C3%A9"
    assert (environ["HTTP_ACCEPT"], environ["HTTP_COOKIE"]) == ("a,b", "c=1; d=2")
    assert (environ["CONTENT_TYPE"], environ["HTTP_HOST"]) == ("text/plain", "shop.example")
    assert "HTTP_X_FORWARDED_FOR" not in environ


def test_an_application_that_fails_is_answered(caplog):
    """With 500 and a line in the log; the thread goes on."""
    protocol: Any = FakeProtocol()
    Gateway(lambda environ, start: 1 / 0, Bodies(), 1).run(protocol, {"PATH_INFO": "/"})
    assert protocol.status == 500
    assert "The application failed at /" in caplog.text


def test_health_is_answered_while_every_thread_waits():
    """The next request is taken by the first thread that becomes free, and blocks none meanwhile."""
    waits, goes_on = threading.Event(), threading.Event()

    def application(environ: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        if environ["PATH_INFO"] == "/slow":
            waits.set()
            assert goes_on.wait(30)
        return [b""]

    gateway = Gateway(application, Bodies(), threads=1)
    slow, queued, live = (Watcher(path) for path in ("/slow", "/next", "/livez"))
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(gateway.handle, slow)
        assert waits.wait(30)
        gateway.handle(queued)
        gateway.handle(live)
        assert [each.proto.status for each in (slow, queued, live)] == [0, 0, 200]
        goes_on.set()
        answering.result(30)
    assert [each.proto.status for each in (slow, queued)] == [200, 200]


class Watcher:
    """granian's object of a request whose headers are there."""

    def __init__(self, path: str) -> None:
        self.proto: Any = FakeProtocol()
        self.scope = Scope()
        self.scope.path = path
