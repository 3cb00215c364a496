"""The web server of `make serve` and the load tests: granian, whose input and output aren't Python.

python -m config.server PORT WORKERS THREADS [HOST]

ADR 26 says why granian. Added here: a worker that is killed again and again is replaced again and again, and
workers don't outlive a parent that was killed. GRANIAN_LOG_ACCESS_ENABLED=true writes an access log.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from granian._granian import RSGIWorker
from granian._signals import set_sync_signals
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.common import WORKERS_METHODS
from granian.server.mp import MPServer, WorkerProcess

from config.connections import CONNECTIONS, Connections, raise_file_limit
from config.requests import Bodies, Gateway, InlineLoop, OneCore, Scheduler

HOST: Final = "127.0.0.1"
STOP_SECONDS: Final = 30
"""How long a request may take to end when the server is stopped; then its worker is killed."""
ASK_AGAIN: Final = 1.0
"""Seconds between two requests to a worker to end."""
IDLE_SECONDS: Final = 600
"""How long a thread without work, and its database connection, are kept."""
HEADER_SECONDS: Final = 5
"""How long a connection may take to send the headers of its next request: idle ones are closed then, too."""
HEADER_BYTES: Final = 64 << 10
TICK: Final = 0.5
"""Seconds between two looks at what is late."""
FIRST_TICK: Final = 0.005
"""Seconds between two looks for the socket that listens."""
SPARE_THREADS: Final = 2
"""Threads beside those of the application: they take requests and answer `/livez` when all others wait."""
CRASH_PAUSE: Final = 1.0
"""Seconds that a worker must have lived to be replaced at once: one that can't start would spin otherwise."""
PR_SET_PDEATHSIG: Final = 1


class _Unrecorded(dict[int, float]):
    """Granian exits when a worker dies twice in 5.5 s, by the times kept here: a shop that is up stays up."""

    def __setitem__(self, index: int, moment: float) -> None:
        """Keep nothing."""


class Server(MPServer):
    """Granian that replaces dead workers for as long as it runs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.respawned_wrks = _Unrecorded()
        self._outlives_terminal = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup

    def signal_handler_reload(self, *args: Any, **options: Any) -> None:
        """End with the terminal: a reload would fork what is loaded already, and keep the port for good."""
        if not self._outlives_terminal:
            self.signal_handler_interrupt()  # type: ignore[no-untyped-call]

    def _respawn_workers(
        self, workers: Sequence[int], spawn_target: Any, target_loader: Any, delay: float = 0
    ) -> None:
        youngest = min(time.monotonic() - self.wrks[index].birth for index in workers)
        time.sleep(max(0.0, CRASH_PAUSE - youngest))
        super()._respawn_workers(workers, spawn_target, target_loader, delay)

    def _stop_workers(self) -> None:
        """Ask the workers to end, and again: one that is only starting misses what it is asked."""
        workers, stopped = list(self.wrks), threading.Event()

        def ask_again() -> None:
            while not stopped.wait(ASK_AGAIN):
                for worker in workers:
                    worker.terminate()  # type: ignore[no-untyped-call]

        threading.Thread(target=ask_again, daemon=True, name="ask-again").start()
        try:
            super()._stop_workers()  # type: ignore[no-untyped-call]
        finally:
            stopped.set()


def load_shop() -> None:
    """Load the application before the workers are forked: one that replaces a killed one serves at once.

    It opens no connection, which the workers would share. What the first request would import comes along:
    the views, and the backend of the locks.
    """
    from django.urls import get_resolver

    import config.wsgi  # noqa: F401
    from locking.core.handler import locks

    _ = get_resolver().url_patterns, locks["default"]


_forked_by = 0


def note_fork() -> None:
    """Note who forks, right before it does, for the child to compare with."""
    global _forked_by
    _forked_by = os.getpid()


def become_worker() -> None:
    """Prepare a worker right after its fork: a signal that comes while it starts ends it.

    Its parent's handlers, which it has inherited, would swallow the signal; granian sets its own later.
    The kernel kills it when its parent was killed (Linux): asked to stop it would wait for its last request,
    and no parent would be there to end that wait.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != _forked_by:  # killed before the prctl: no signal will come
            os._exit(1)


def serve_requests(
    worker_id: int, application: Any, sock: Any, ipc: Any, loop: Any, mode: Any, *options: Any
) -> None:
    """Serve in one worker process until its signal, with `config.requests` in place of granian's WSGI."""
    threads, (_, *http, access_log, tls, _, metrics) = options[:5], options[5:]
    shutdown, ended = set_sync_signals(), threading.Event()  # type: ignore[no-untyped-call]
    shutdown.add_cb(ended.set)
    worker: Any = RSGIWorker(  # type: ignore[call-arg]
        worker_id, sock, ipc, *threads, *http, *tls, metrics
    )
    bodies, inline = Bodies(), InlineLoop()
    pinned = settings.WORKER_CPU_AFFINITY and hasattr(os, "sched_setaffinity")
    core = OneCore(worker_id) if pinned else None
    handle = Gateway(application, bodies, options[2] - SPARE_THREADS, access_log, core).handle
    serve = getattr(worker, WORKERS_METHODS[mode][False])
    connections = Connections(settings.CONNECTIONS_PER_ADDRESS)
    serve(Scheduler(inline, handle), inline, shutdown)
    # Connections inherit what the listening socket has by then, so it is looked for at once.
    while not ended.wait(TICK if connections.are_limited else FIRST_TICK):
        bodies.expire(time.monotonic())
        connections.enforce_limits()


def main(arguments: Sequence[str]) -> None:
    """Serve `config.wsgi` until a signal says otherwise."""
    port, workers, threads = map(int, arguments[:3])
    raise_file_limit()
    os.register_at_fork(before=note_fork, after_in_child=become_worker)
    server = Server(
        "config.wsgi:application",
        address=arguments[3] if len(arguments) > 3 else HOST,
        port=port,
        interface=Interfaces.WSGI,
        http=HTTPModes.http1,
        websockets=False,
        workers=workers,
        blocking_threads=threads + SPARE_THREADS,
        blocking_threads_idle_timeout=IDLE_SECONDS,
        backpressure=CONNECTIONS,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_SECONDS * 1000, max_buffer_size=HEADER_BYTES),
        respawn_failed_workers=True,
        respawn_interval=0,
        workers_kill_timeout=STOP_SECONDS,
        log_level=LogLevels.info,
        log_access=os.environ.get("GRANIAN_LOG_ACCESS_ENABLED", "").lower() in ("1", "true"),
    )
    server.on_startup(load_shop)
    serve_in_worker = WorkerProcess.wrap_target(serve_requests)  # type: ignore[no-untyped-call]
    server.serve(spawn_target=serve_in_worker)


if __name__ == "__main__":
    main(sys.argv[1:])
