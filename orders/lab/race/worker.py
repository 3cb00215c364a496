"""Processes full of buyers: `python -m orders.lab.race.worker FD…`, each FD an end of a pipe to the parent.

The shop is loaded once, in a process that is started afresh and so shares no connection, lock or thread with
the parent. That one forks the workers and tells of their deaths. A worker stays for all rounds of a race.
It ends at `Stop`, and also when its parent is gone.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

from orders.lab.race.messages import Born, Died, Finished, Go, Hello, Outcome, Progress, Ready, Round, Stop

READY_WITHIN = 30.0
LEAVE_WITHIN = 8.0
REPORT_EVERY = 0.1


class Worker:
    """Runs rounds until `Stop`."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._size = 0

    def serve(self) -> None:
        """Run each round that arrives; return after Stop or when the parent is gone."""
        threading.Thread(target=self._listen, daemon=True, name="listener").start()
        while isinstance(message := self._inbox.get(), Round):
            self._run(message)
        self._resize(0)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while not isinstance(message := self._channel.recv(), Stop):
                self._inbox.put(message)
        self._inbox.put(None)
        self._stop.set()
        # Every wait of a buyer has a bound; should one not keep it, the process still ends.
        time.sleep(LEAVE_WITHIN)
        os._exit(1)

    def _run(self, round_: Round) -> None:
        """Run a round: a thread and a connection per buyer, all of which wait for one moment."""
        self._resize(len(round_.buyers))
        _set_lease(round_)
        here, start = threading.Barrier(len(round_.buyers) + 1), Future[float]()
        buyers = [
            self._pool.submit(_connect_and_buy, round_, number, here, start, self._stop)
            for number in round_.buyers
        ]
        here.wait(READY_WITHIN)
        self._say(Ready())
        go = self._inbox.get()
        start.set_result(go.start_at if isinstance(go, Go) else time.monotonic())
        self._report(buyers)
        self._say(Finished(tuple(buyer.result() for buyer in buyers)))
        if not isinstance(go, Go):
            self._inbox.put(go)

    def _resize(self, buyers: int) -> None:
        """Keep threads and their connections for the next round; a smaller crowd closes its own."""
        if buyers != self._size:
            all_here = threading.Barrier(
                self._size or 1
            )  # so that every thread gets exactly one of the calls
            list(self._pool.map(_close, [all_here] * self._size))
            self._pool.shutdown()
            self._pool = ThreadPoolExecutor(max(1, buyers), thread_name_prefix="buyer")
            self._size = buyers

    def _say(self, message: object) -> None:
        # A parent that is gone is noticed by the listener, which ends the buyers.
        with suppress(OSError):
            self._channel.send(message)

    def _report(self, futures: Sequence[Future[Outcome]]) -> None:
        waiting = set(futures)
        while waiting:
            waiting = wait(waiting, REPORT_EVERY).not_done
            self._say(Progress(len(futures) - len(waiting)))


def _set_lease(round_: Round) -> None:
    from orders.lab.strategies import STRATEGIES

    if round_.lease is not None:
        setattr(STRATEGIES[round_.strategy], "expiry", round_.lease)  # noqa: B010 - only some strategies have it


def _connect_and_buy(
    round_: Round, number: int, here: threading.Barrier, start: Future[float], stop: threading.Event
) -> Outcome:
    from django.db import connection

    from orders.lab.race.buyer import Buyer, describe

    problem = ""
    try:
        connection.close_if_unusable_or_obsolete()
        connection.ensure_connection()
    except Exception as error:
        problem = describe(error)
    here.wait(READY_WITHIN)
    start_at = start.result()
    return Outcome(number, "error", problem=problem) if problem else Buyer(number, round_, stop).buy(start_at)


def _close(all_here: threading.Barrier) -> None:
    from django.db import connections

    all_here.wait(READY_WITHIN)
    connections.close_all()


def set_up_django(hello: Hello) -> None:
    """Load Django with the parent's settings laid over the project's own."""
    import django
    from django.conf import settings

    for name, value in hello.settings.items():
        setattr(settings, name, value)
    django.setup()
    from locking.inspection.heartbeat import reporter

    reporter.counts = False


def main() -> None:
    """Load the shop, fork a worker for each pipe, and tell how each has ended."""
    channels = [Connection(int(number)) for number in sys.argv[1:]]
    try:
        set_up_django(channels[0].recv())
    except Exception as error:
        for channel in channels:
            _tell_death(channel, f"1, {type(error).__name__}: {error}")
        raise
    children: dict[int, Connection] = {}
    for channel in channels:
        pid = os.fork()
        if not pid:
            _be_worker(channel, channels)
        children[pid] = channel
    while children:
        pid, status = os.wait()
        _tell_death(children.pop(pid), os.waitstatus_to_exitcode(status))


def _be_worker(mine: Connection, channels: Sequence[Connection]) -> NoReturn:
    for channel in channels:
        if channel is not mine:
            channel.close()
    with suppress(OSError):
        mine.send(Born(os.getpid()))
    Worker(mine).serve()
    # As `multiprocessing` ends what it forks. The interpreter's own end would visit each object that was
    # loaded before the fork, and so copy it: that takes longer than it took to load them.
    atexit._run_exitfuncs()
    os._exit(0)


def _tell_death(channel: Connection, status: int | str) -> None:
    with channel, suppress(OSError):
        channel.send(Died(status))


if __name__ == "__main__":
    # By its full name, so that the records it sends and receives are the parent's classes.
    from orders.lab.race.worker import main as serve

    serve()
