"""Processes of buyers who come by the schedule, whether the shop is ready or not."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tests.load.journal import Journal, verdict
from tests.load.schedule import Schedule, as_lines
from tests.load.wire import Address, Reply, Wire

CONTEXT = multiprocessing.get_context("spawn")
PROCESSES = 2
THREADS = 64  # buyers under way in one process; the next ones are late, which their latency says
PATIENCE = 15.0  # seconds; longer than the shop waits for a lock
TRIES = 40  # of one buyer whose order's fate is unknown, and who has a key
PAUSE = 0.25

UNKNOWN = 0  # in the place of a status


class Visit(NamedTuple):
    """One buyer: when it was to come, how long it took from then, the status that it heard in the end, and
    the requests that it took.
    """

    at: float
    latency: float
    status: int
    requests: int = 1


@dataclass(frozen=True)
class Job:
    """What one process of buyers does.

    Attributes:
        address: of the shop.
        schedule: of all buyers.
        part: which of `PROCESSES` this is.
        start: the moment (monotonic) from which the schedule counts.
        folder: where the journal is written.
        keyed: the shop knows Idempotency-Key, so a buyer may ask again.
    """

    address: Address
    schedule: Schedule
    part: int
    start: float
    folder: Path
    keyed: bool


class Buyers:
    """The buyers of one process."""

    def __init__(self, job: Job, journal: Journal) -> None:
        self._job = job
        self._journal = journal
        self._numbers = job.schedule.share(job.part, PROCESSES)
        self._next = threading.Lock()
        self.visits: list[Visit] = []

    def run(self) -> None:
        """Return when the last one has left."""
        threads = [threading.Thread(target=self._serve) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        with Wire(self._job.address, PATIENCE) as wire:
            for number in self._arrivals():
                at = self._job.schedule.at(number)
                time.sleep(max(0.0, self._job.start + at - time.monotonic()))  # when the schedule says
                asked = wire.requests
                status = self._visit(wire, number)
                latency = time.monotonic() - self._job.start - at
                self.visits.append(Visit(at, latency, status, wire.requests - asked))

    def _arrivals(self) -> Iterator[int]:
        while True:
            with self._next:
                number = next(self._numbers, None)
            if number is None:
                return
            yield number

    def _visit(self, wire: Wire, number: int) -> int:
        schedule = self._job.schedule
        key, basket = f"{schedule.skus[0]}.{number}", schedule.basket(number)
        self._journal.asked(key, basket)
        return buy(wire, self._journal, key, basket, tries=TRIES if self._job.keyed else 1)


def buy(wire: Wire, journal: Journal, key: str, basket: dict[str, int], *, tries: int) -> int:
    """Ask for a basket until its fate is known; return the status, 0 when it isn't.

    Args:
        wire: to the shop.
        journal: has the basket already.
        key: of the order; every try has the same.
        basket: units by SKU.
        tries: 1 where the shop doesn't know keys: a second try might be a second order.
    """
    request = wire.post("/checkout/", {"lines": as_lines(basket)}, {"Idempotency-Key": key})
    doubt = False
    for attempt in range(tries):
        time.sleep(min(1.0, PAUSE * attempt))  # longer before each further try, like a client
        try:
            reply = wire.ask(request)
        except OSError as error:
            journal.unknown(key, str(error))
            doubt = True
            continue
        status = _hear(journal, key, reply, doubt)
        if status != UNKNOWN:
            return status
        doubt = True
    return UNKNOWN


def _hear(journal: Journal, key: str, reply: Reply, doubt: bool) -> int:
    """Write down what was said; return UNKNOWN when that settles nothing."""
    data = _data(reply)
    answered = verdict(reply.status, data)
    # After a try of unknown fate, "nothing was ordered" is true of this try only.
    if answered is None or (doubt and answered["status"] == 503):
        journal.unknown(key, f"{reply.status} {data.get('type')}")
        return UNKNOWN
    journal.answered(key, **answered)
    return int(answered["status"])


def _data(reply: Reply) -> dict[str, Any]:
    try:
        data = reply.json()
    except ValueError:  # the web server's own words, when a worker dies with the request in hand
        return {}
    return data if isinstance(data, dict) else {}


def play(job: Job, pipe: Connection) -> None:
    """Be a process of buyers."""
    with Journal(job.folder / f"{job.schedule.skus[0]}-{job.part}.jsonl") as journal:
        buyers = Buyers(job, journal)
        buyers.run()
    pipe.send(buyers.visits)


class Crowd:
    """The running processes of one schedule.

    Args:
        address, schedule, folder, keyed: as in `Job`.
        lead: seconds until the first buyer comes, in which the processes start.
    """

    def __init__(
        self, address: Address, schedule: Schedule, folder: Path, *, keyed: bool, lead: float = 1.0
    ) -> None:
        self.start = time.monotonic() + lead
        self._crew: list[tuple[Any, Connection]] = []
        for part in range(PROCESSES):
            mine, theirs = CONTEXT.Pipe()
            job = Job(address, schedule, part, self.start, folder, keyed)
            process = CONTEXT.Process(target=play, args=(job, theirs), daemon=True)
            process.start()
            theirs.close()
            self._crew.append((process, mine))

    def visits(self) -> list[Visit]:
        """Wait for the last buyer; return all visits in the order of their arrival."""
        visits = [visit for _, pipe in self._crew for visit in pipe.recv()]
        for process, _ in self._crew:
            process.join()
        return sorted(visits)
