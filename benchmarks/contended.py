"""Threads of two processes want one lock: how much work gets done, and whether everyone gets a share."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_long
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from benchmarks.peers import BY_NAME, Peer, Section
from benchmarks.server import Server
from benchmarks.stats import jain
from benchmarks.uncontended import Record

SPAWN: Final = multiprocessing.get_context("spawn")
PROCESSES: Final = 2
LEASE: Final = 10.0
PATIENCE: Final = 20.0
"""Seconds after the end of a run within which the last waiters must have had their turn, or are stuck."""

WARM_UP: Final = 0.15
"""Seconds until everyone has a connection and waits in the queue; nothing is counted before."""


class Shape(NamedTuple):
    """How many want the lock and what they do with it.

    Attributes:
        threads: in each of the two processes.
        think: seconds that each does something else between two sections.
        section: seconds for which the lock is held.
    """

    threads: int
    think: float
    section: float = 0.001


SHAPES: Final = {"2×2": Shape(2, 0.0), "2×16": Shape(16, 0.0), "2×4, thinking 5 ms": Shape(4, 0.005)}


class Job(NamedTuple):
    """One run, as sent to the workers' processes; moments are those of the machine's monotonic clock."""

    peer: str
    name: str
    shape: Shape
    start: float
    end: float


@dataclass
class Counts:
    """What one thread counted.

    Attributes:
        sections: those that it entered between start and end.
        taken: all that it entered.
        waits: seconds it waited for each that it asked for before the end.
        errors: what was raised, in words.
    """

    sections: int = 0
    taken: int = 0
    overlaps: int = 0
    waits: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Worker:
    """One thread's loop: ask, hold, think."""

    def __init__(self, job: Job, number: int, inside: Any) -> None:
        self.job, self.number, self.inside = job, number, inside
        self.counts = Counts()
        self.asked = 0.0

    def run(self, section: Section) -> None:
        """Go on until the job's end."""
        while (asked := time.monotonic()) < self.job.end:
            self.asked = asked
            try:
                section(self.job.name, self.hold)
            except Exception as error:
                self.counts.errors.append(f"{type(error).__name__}: {error}")
            if self.job.shape.think:
                time.sleep(self.job.shape.think)

    def hold(self) -> None:
        """Be inside; anyone who else comes in meanwhile leaves another number behind."""
        got, counts = time.monotonic(), self.counts
        counts.taken += 1
        if got >= self.job.start:
            counts.waits.append(got - max(self.asked, self.job.start))
            counts.sections += got < self.job.end
        if got < self.job.end:  # afterwards the last ones only file out
            self.inside.value = self.number
            time.sleep(self.job.shape.section)
            counts.overlaps += self.inside.value != self.number


def process_main(url: str, names: Sequence[str], rank: int, inside: Any, orders: Connection) -> None:
    """Say that all peers are loaded, then run jobs until the other end hangs up."""
    opened = {name: BY_NAME[name].open(url, LEASE) for name in names}
    orders.send("ready")
    with suppress(EOFError):
        while True:
            job: Job = orders.recv()
            orders.send(_run(job, rank, inside, opened[job.peer]))


def _run(job: Job, rank: int, inside: Any, section: Section) -> list[Counts] | None:
    """Return the per_thread of all threads, or None when one of them is stuck."""
    workers = [Worker(job, rank * 1000 + number, inside) for number in range(job.shape.threads)]
    threads = [threading.Thread(target=worker.run, args=(section,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, job.end + PATIENCE - time.monotonic()))
    return None if any(thread.is_alive() for thread in threads) else [worker.counts for worker in workers]


class WorkerPool:
    """The processes of the workers; they stay for all runs, so that a run has nothing to load."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        self._url, self._names = url, names
        self._members: list[tuple[Any, Connection]] = []
        self._hire()

    def _hire(self) -> None:
        inside = SPAWN.RawValue(c_long, 0)
        for rank in range(PROCESSES):
            here, there = SPAWN.Pipe()
            arguments = (self._url, self._names, rank, inside, there)
            process = SPAWN.Process(target=process_main, args=arguments, daemon=True)
            process.start()
            there.close()
            self._members.append((process, here))
        for _, pipe in self._members:
            pipe.recv()

    def run(self, job: Job) -> list[Counts] | None:
        """Return the counts of every thread, or None when one was stuck; the processes are then new."""
        for _, pipe in self._members:
            pipe.send(job)
        parts = [pipe.recv() for _, pipe in self._members]
        if any(part is None for part in parts):
            self.dismiss()
            self._hire()
            return None
        return [counts for part in parts for counts in part]

    def dismiss(self) -> None:
        """End the processes."""
        for process, pipe in self._members:
            pipe.close()
            process.kill()
            process.join()
        self._members = []


def measure(
    server: Server,
    peers: Sequence[Peer],
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
    shapes: Sequence[str] = tuple(SHAPES),
) -> list[Record]:
    """Return one record for each round, shape and peer."""
    pool, records = WorkerPool(server.url, [peer.name for peer in peers]), list[Record]()
    try:
        for peer in peers:  # no measured wait includes what the first use loads
            _run_once(server, pool, peer, SHAPES["2×2"], 0.2)
        for number in range(rounds):
            for shape_name in shapes:
                progress(f"contended, {shape_name}, round {number + 1} of {rounds}")
                for peer in random.sample(peers, len(peers)):
                    figures = _run_once(server, pool, peer, SHAPES[shape_name], seconds)
                    records.append({"round": number, "shape": shape_name, "peer": peer.name, **figures})
    finally:
        pool.dismiss()
    return records


def _run_once(server: Server, pool: WorkerPool, peer: Peer, shape: Shape, seconds: float) -> Record:
    server.clear()
    if peer.token:
        server.client.rpush("hot", "token")
    before = server.work()
    start = time.monotonic() + WARM_UP
    per_thread = pool.run(Job(peer.name, "hot", shape, start, start + seconds))
    if per_thread is None:
        return {"stuck": 1}
    work = server.work().since(before)
    taken = sum(counts.taken for counts in per_thread)
    return {
        "sections_per_second": sum(counts.sections for counts in per_thread) / seconds,
        "jain": jain([counts.sections for counts in per_thread]),
        "longest_wait_ms": max((wait for counts in per_thread for wait in counts.waits), default=0.0) * 1000,
        "requests": work.requests / taken,
        "commands": work.commands / taken,
        "redis_cpu_us": work.cpu / taken * 1e6,
        "overlaps": sum(counts.overlaps for counts in per_thread),
        "errors": sum(len(counts.errors) for counts in per_thread),
        "first_error": next((error for counts in per_thread for error in counts.errors), ""),
    }
