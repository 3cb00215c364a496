"""Serves a WSGI application from granian's asynchronous side: a request takes a thread when it is complete.

granian's own WSGI interface calls the application as soon as it has the headers, so a half-sent body keeps
a thread. ADR 38 says why the limits are here.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final

from granian._granian import CallbackScheduler
from granian.wsgi import Response, _build_access_logger

BODY_SECONDS: Final = 5.0
"""How long a body may take to arrive behind its headers."""
BODY_BYTES: Final = 1 << 20
"""The longest body."""
ALL_BODY_BYTES: Final = 64 << 20
"""What all bodies that one worker is waiting for may need of memory."""
LIVENESS: Final = "/livez"
RUNS: Final = "/lab/"
"""Addresses whose requests start processes, which inherit the cores of the thread."""

Environ = dict[str, Any]
logger = logging.getLogger(__name__)


class InlineLoop:
    """Takes the place of asyncio's event loop: runs a callback at once, in the thread that brings it."""

    def call_soon(self, callback: Callable[..., object], *arguments: Any, context: object = None) -> None:
        """Run `callback`; what it raises is logged, for granian has no use for it."""
        try:
            callback(*arguments)
        except BaseException:
            logger.exception("A request failed outside of the application")

    call_soon_threadsafe = call_soon


class Scheduler(CallbackScheduler):
    """Passes each request of granian's to `handle`."""

    def __new__(cls, loop: InlineLoop, handle: Callable[[Any], None]) -> Scheduler:
        """Build granian's base, without the tasks of asyncio that it could make."""
        scheduler: Any = super().__new__(cls, loop, handle, None, None, None)  # type: ignore[call-arg]
        scheduler._schedule_fn = partial(loop.call_soon, handle)
        return scheduler  # type: ignore[no-any-return]

    def __init__(self, loop: InlineLoop, handle: Callable[[Any], None]) -> None:
        """Leave everything to `__new__`, as the base does."""


CONSTANT: Final[Environ] = {
    "SCRIPT_NAME": "",
    "wsgi.version": (1, 0),
    "wsgi.errors": sys.stderr,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
}


@lru_cache(1024)
def environ_key(header: str) -> str:
    """Return the WSGI name of a header; "" for one that could pass for another, as `X_Real_IP` could."""
    if "_" in header:
        return ""
    name = header.replace("-", "_").upper()
    return name if name in ("CONTENT_LENGTH", "CONTENT_TYPE") else f"HTTP_{name}"


def environ_of(scope: Any) -> Environ:
    """Return the WSGI environment of a request, without its body."""
    environ = CONSTANT.copy()
    environ["SERVER_PROTOCOL"] = f"HTTP/{scope.http_version}"
    environ["SERVER_NAME"], _, environ["SERVER_PORT"] = scope.server.rpartition(":")
    environ["REMOTE_ADDR"] = scope.client.rpartition(":")[0].strip("[]")
    environ["REQUEST_METHOD"] = scope.method
    environ["PATH_INFO"] = latin1(scope.path)
    environ["QUERY_STRING"] = latin1(scope.query_string)
    environ["wsgi.url_scheme"] = scope.scheme
    for header, value in scope.headers.items():
        key = environ_key(header)
        if key in environ:
            value = f"{environ[key]}{'; ' if key == 'HTTP_COOKIE' else ','}{value}"
        environ[key] = value
    environ.pop("", None)
    if "HTTP_HOST" not in environ:
        environ["HTTP_HOST"] = scope.authority or ""
    return environ


def latin1(text: str) -> str:
    """Return a text's bytes as WSGI wants them: a character for each."""
    return text if text.isascii() else text.encode().decode("latin1")


class Body:
    """The body of one request on its way.

    Args:
        protocol: granian's object of the request, which reads the body and sends the answer.
        environ: the request without its body.
        run: is called with both when the body is there.
    """

    def __init__(self, protocol: Any, environ: Environ, run: Callable[[Any, Environ], None]) -> None:
        self._protocol, self._environ, self._run = protocol, environ, run
        self.address: str = environ["REMOTE_ADDR"]
        self._chunked = "CONTENT_LENGTH" not in environ
        self.size = int(environ.get("CONTENT_LENGTH", 0))  # of a chunked body, what has arrived
        self.due = 0.0
        self._future: Any = None  # granian's, of the piece that is awaited
        self._pieces: list[bytes] = []
        self._refused = False

    def read(self, take: Callable[[Body], bool]) -> None:
        """Begin to read. `take` returns True to the one that may end this body: its arrival or a refusal."""
        self._take, protocol = take, self._protocol
        if protocol is None:  # refused already
            return
        if self._chunked:
            self._await(protocol.__aiter__().__anext__(), self._piece)
        else:
            self._await(protocol(), self._collected)

    def _await(self, future: Any, then: Callable[[Any], None]) -> None:
        self._future = future
        future.add_done_callback(then)
        if self._refused:
            future.cancel()

    def _collected(self, future: Any) -> None:
        self._finish(result_of(future))

    def _piece(self, future: Any) -> None:
        piece, protocol = result_of(future), self._protocol
        if protocol is None:  # refused meanwhile
            return
        if not piece:
            whole = piece is not None and is_exhausted(protocol)
            self._finish(b"".join(self._pieces) if whole else None)
            return
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size <= BODY_BYTES:
            self._await(protocol.__anext__(), self._piece)
        elif self._take(self):
            self.refuse(413, f"The body is longer than {BODY_BYTES} bytes.\n")

    def _finish(self, body: bytes | None) -> None:
        if not self._take(self):
            return
        if body is None:
            self.refuse(400, "The body was cut off.\n")
            return
        self._future = None  # which refers to this object, unseen by the garbage collection
        self._environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        self._run(self._protocol, self._environ)

    def refuse(self, status: int, reason: str) -> None:
        """Answer in the application's place, and drop the body, which closes the connection."""
        self._refused, protocol, self._protocol = True, self._protocol, None
        answer(protocol, status, reason)
        if self._future is not None:
            self._future.cancel()
            self._future = None


def result_of(future: Any) -> bytes | None:
    """Return what has arrived, None if the client is gone or the body was refused."""
    try:
        return bytes(future.result())
    except BaseException:  # asyncio's CancelledError among them
        return None


def is_exhausted(protocol: Any) -> bool:
    """Return whether an empty piece was the end of the body; behind a broken connection there is one more."""
    try:
        protocol.__anext__().cancel()
    except StopAsyncIteration:
        return True
    return False


def answer(protocol: Any, status: int, reason: str) -> None:
    """Answer a request that the application doesn't get, and close its connection."""
    headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close")]
    protocol.response_bytes(status, headers, reason.encode())


class Bodies:
    """The bodies that this process is waiting for, within a deadline and an amount of memory.

    Args:
        seconds: that a body may take.
        most: bytes that all of them may need.
    """

    def __init__(self, seconds: float = BODY_SECONDS, most: int = ALL_BODY_BYTES) -> None:
        self._seconds, self._most = seconds, most
        self._awaited: dict[Body, None] = {}  # the oldest first
        self._lock = threading.Lock()

    def read(self, body: Body) -> None:
        """Wait for a body, for which others may have to give way."""
        if body.size > BODY_BYTES:
            body.refuse(413, f"The body has {body.size} bytes; send at most {BODY_BYTES}.\n")
            return
        body.due = time.monotonic() + self._seconds
        with self._lock:
            self._awaited[body] = None
        self._keep_within_memory()
        body.read(self.take)

    def _keep_within_memory(self) -> None:
        """Refuse the oldest bodies of the clients with most of them, as long as all together are too much."""
        bodies = list(self._awaited)
        excess = sum([body.size for body in bodies]) - self._most
        while excess > 0:
            sizes = Counter[str]()
            for body in bodies:
                sizes[body.address] += body.size
            address = sizes.most_common(1)[0][0]
            victim = next(body for body in bodies if body.address == address)
            bodies.remove(victim)
            excess -= victim.size
            if self.take(victim):
                victim.refuse(503, "Too many bodies are under way; try again.\n")

    def take(self, body: Body) -> bool:
        """Wait for a body no more; return False if it isn't awaited any longer."""
        with self._lock:
            return self._awaited.pop(body, body) is None

    def expire(self, now: float) -> None:
        """Refuse the bodies that are late at `now`."""
        for body in list(self._awaited):
            if body.due <= now and self.take(body):
                body.refuse(408, f"The body took longer than {self._seconds:g} seconds.\n")
        self._keep_within_memory()


class OneCore:
    """Keeps the threads that run Python on one core (Linux); granian's own may use all.

    Threads of one interpreter take turns. Where each turn is on another core, that has to be woken, and finds
    cold caches: docs/adr/0026 has what it costs.

    Args:
        number: of the worker, which chooses the core.
    """

    def __init__(self, number: int) -> None:
        self._all = os.sched_getaffinity(0)
        self._one = {sorted(self._all)[number % len(self._all)]}
        self._thread = threading.local()

    def use(self, path: str) -> None:
        """Have this thread answer a request for `path` there, or on all cores where processes are started."""
        cores = self._all if path.startswith(RUNS) else self._one
        if getattr(self._thread, "cores", None) is not cores:
            os.sched_setaffinity(0, cores)
            self._thread.cores = cores


class Gateway:
    """Runs an application for granian's requests, in a thread that brings a complete one.

    Args:
        application: of WSGI.
        bodies: waits for those that have not arrived.
        threads: that may run the application; `/livez` is answered beside them. Where the pool has more
            threads than these, health is answered although all requests wait for a lock or the database.
        access_log: the format of granian's log of requests, if one is kept.
        core: on which the threads stay, if they do.
    """

    def __init__(
        self,
        application: Any,
        bodies: Bodies,
        threads: int,
        access_log: str | None = None,
        core: OneCore | None = None,
    ) -> None:
        self._application, self._bodies, self._core = application, bodies, core
        self._log = _build_access_logger(access_log) if access_log else None  # type: ignore[no-untyped-call]
        self._free, self._lock = threads, threading.Lock()
        self._queue: deque[tuple[Any, Environ]] = deque()

    def handle(self, watcher: Any) -> None:
        """Take a request whose headers are there."""
        environ = environ_of(watcher.scope)
        if environ.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in environ:
            self._bodies.read(Body(watcher.proto, environ, self.run))
            return
        environ["wsgi.input"] = io.BytesIO()
        if environ["PATH_INFO"] == LIVENESS:
            self._answer(watcher.proto, environ)
        else:
            self.run(watcher.proto, environ)

    def run(self, protocol: Any, environ: Environ) -> None:
        """Answer a complete request, and those that wait for a thread; or leave it to the next free one."""
        with self._lock:
            self._queue.append((protocol, environ))
            if not self._free:
                return
            self._free -= 1
        while True:
            with self._lock:
                if not self._queue:
                    self._free += 1
                    return
                protocol, environ = self._queue.popleft()
            self._answer(protocol, environ)

    def _answer(self, protocol: Any, environ: Environ) -> None:
        """Call the application; what it raises is logged and answered with 500."""
        if self._core:
            self._core.use(environ["PATH_INFO"])
        began = time.time(), time.perf_counter()
        response: Any = Response()  # type: ignore[no-untyped-call]
        try:
            content = whole(self._application(environ, response))
        except BaseException:
            logger.exception("The application failed at %s", environ["PATH_INFO"])
            response.status, response.headers, content = 500, [], b""
        protocol.response_bytes(response.status, response.headers, content)
        if self._log:
            self._log(*began, environ, response.status)


def whole(pieces: Any) -> bytes:
    """Return an answer in one piece, so that its client's reading takes no thread."""
    if isinstance(pieces, list):
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    try:
        return b"".join(pieces)
    finally:
        if close := getattr(pieces, "close", None):
            close()
