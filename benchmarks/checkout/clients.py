"""Buyers who never think: processes that each keep many connections busy, with hardly any Python between.

A closed loop: each connection asks again as soon as it has its answer, so the figure is the most that the
server can do with so many buyers. Constant arrival rates are `make loadtest`.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing.connection import Connection
from random import Random
from types import TracebackType
from typing import Self

from tests.load.wire import Address, content_length

CONTEXT = multiprocessing.get_context("spawn")
SETTLE_SECONDS = 20.0  # a buyer may wait in the queue for half of it


@dataclass
class Burst:
    """What one burst of requests showed.

    Attributes:
        seconds: length of the measured window.
        counted: answers by status that came within it.
        total: answers by status in all, those before and after the window included.
        latencies: seconds, of the answers within the window.
        lost: requests without an answer.
        cpu: seconds of processor time that the clients used in the window.
    """

    seconds: float
    counted: Counter[int] = field(default_factory=Counter)
    total: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    lost: int = 0
    cpu: float = 0.0

    def add(self, other: Burst) -> None:
        """Take another process's share in."""
        self.counted += other.counted
        self.total += other.total
        self.latencies += other.latencies
        self.lost += other.lost
        self.cpu += other.cpu

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return sum(self.counted.values()) / self.seconds


class Buyer:
    """One connection and the requests that it sends in turn, in an order of its own.

    If all went the same round, each would catch up with a slower one before it, and stay behind it for good.
    """

    def __init__(self, address: Address, requests: Sequence[bytes], number: int) -> None:
        self.socket = socket.create_connection(address, SETTLE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._requests = cycle(Random(number).sample(requests, len(requests)))
        self._received = b""
        self.sent = 0.0

    def send(self) -> None:
        """Send the next request."""
        self.sent = time.perf_counter()
        self.socket.sendall(next(self._requests))

    def receive(self) -> int:
        """Read what there is; return the status of a whole reply, 0 before that, -1 when none will come."""
        more = self.socket.recv(65536)
        if not more:
            return -1
        self._received += more
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return 0
        head = self._received[:end].lower()
        if len(self._received) - end - 4 < content_length(head):
            return 0
        self._received = b""
        return int(head[9:12])


def _work(pipe: Connection, address: Address) -> None:
    while (job := pipe.recv()) is not None:
        requests, buyers = job
        crowd = [Buyer(address, requests, number) for number in buyers]
        pipe.send("ready")
        warm, end = pipe.recv()
        pipe.send(_burst(crowd, warm, end))
        for buyer in crowd:
            buyer.socket.close()


def _burst(crowd: Sequence[Buyer], warm: float, end: float) -> Burst:
    burst = Burst(end - warm)
    poll = selectors.EpollSelector()
    for buyer in crowd:
        poll.register(buyer.socket, selectors.EVENT_READ, buyer)
        buyer.send()
    waiting, cpu = len(crowd), 0.0
    while waiting:
        ready = poll.select(SETTLE_SECONDS)
        now = time.perf_counter()
        if not ready:
            break
        if not cpu and now >= warm:
            cpu = time.process_time()
        for key, _ in ready:
            buyer = key.data
            status = buyer.receive()
            if status > 0:
                _count(burst, status, now, buyer.sent, warm, end)
            if status and (status < 0 or now >= end):
                waiting -= 1
                poll.unregister(buyer.socket)
                burst.lost += status < 0
            elif status:
                buyer.send()
        if now < end:
            burst.cpu = time.process_time() - cpu if cpu else 0.0
    burst.lost += waiting
    return burst


def _count(burst: Burst, status: int, now: float, sent: float, warm: float, end: float) -> None:
    burst.total[status] += 1
    if warm <= now < end:
        burst.counted[status] += 1
        burst.latencies.append(now - sent)


class Crowd:
    """The client processes; a context manager that ends them.

    Args:
        address: of the shop.
        processes: over which the buyers are spread.
    """

    def __init__(self, address: Address, processes: int = 2) -> None:
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(processes):
            mine, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_work, args=(theirs, address), daemon=True)
            process.start()
            self._pipes.append(mine)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if kind is None:
                pipe.send(None)
            else:
                process.terminate()
            process.join()

    def burst(
        self,
        requests: Sequence[bytes],
        *,
        buyers: int,
        seconds: float,
        warm: float,
        probe: Callable[[], None] = lambda: None,
    ) -> Burst:
        """Let so many buyers send the requests in turn.

        Args:
            requests: packed; each buyer sends them again and again, in an order of its own.
            buyers: connections, each with one request under way.
            seconds: length of the measured window.
            warm: seconds before it.
            probe: called at the beginning and at the end of the window.
        """
        parts = len(self._pipes)
        pipes = self._pipes[: min(parts, buyers)]
        for part, pipe in enumerate(pipes):
            pipe.send((requests, range(part, buyers, parts)))
        for pipe in pipes:
            pipe.recv()
        start = time.perf_counter() + 0.02
        for pipe in pipes:
            pipe.send((start + warm, start + warm + seconds))
        for moment in (start + warm, start + warm + seconds):
            time.sleep(max(0.0, moment - time.perf_counter()))
            probe()
        whole = Burst(seconds)
        for pipe in pipes:
            whole.add(pipe.recv())
        return whole
