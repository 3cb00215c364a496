"""Holders and waiters that die: how long the living wait for them.

All peers have their trials at the same time, each on a lock of its own, a little apart. A process that dies
is a real one, ended by SIGKILL; a frozen one is stopped by SIGSTOP, so that its sockets stay open.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.contended import SPAWN
from benchmarks.peers import BY_NAME, Peer, Section
from benchmarks.server import Server
from benchmarks.uncontended import Record

LEASE = 3.0
"""Seconds; some peers know only whole ones."""

APART = 0.04
"""Seconds between the beginnings of two peers' trials."""

QUEUEING = 0.3
"""Seconds in which a waiter surely waits in the queue."""

GIVEN_UP = 15.0
"""Seconds after which a waiter that didn't get the lock is reported as never getting it."""


class Taker(threading.Thread):
    """Takes the lock of one name, notes when, and keeps it until `release`; with `briefly`, not at all."""

    def __init__(self, section: Section, name: str, *, briefly: bool = False) -> None:
        super().__init__(daemon=True)
        self._section, self._name = section, name
        self._may_go = threading.Event()
        self.taken = threading.Event()
        self.got = 0.0
        self.let_go = 0.0
        if briefly:
            self._may_go.set()
        self.start()

    def run(self) -> None:
        """Take the lock; a peer that fails is seen by its not having taken it, or by its lease that ended."""
        with suppress(Exception):
            self._section(self._name, self._hold)

    def _hold(self) -> None:
        self.got = time.monotonic()
        self.taken.set()
        self._may_go.wait()
        self.let_go = time.monotonic()

    def release(self) -> None:
        """Let the lock go."""
        self._may_go.set()


def victim_main(url: str, names: Sequence[str], prefix: str, pipe: Connection) -> None:
    """Take, or wait for, the lock of every peer, on command; then live until killed."""
    opened = {name: BY_NAME[name].open(url, LEASE) for name in names}
    pipe.send("ready")
    pipe.recv()
    takers = {}
    for name, section in opened.items():
        takers[name] = Taker(section, prefix + name)
        time.sleep(APART)
    time.sleep(QUEUEING)
    pipe.send({name: taker.got for name, taker in takers.items()})
    time.sleep(3600)


class Victim:
    """The process that will die."""

    def __init__(self, url: str, names: Sequence[str], prefix: str) -> None:
        self._pipe, there = SPAWN.Pipe()
        arguments = (url, names, prefix, there)
        self._process: Any = SPAWN.Process(target=victim_main, args=arguments, daemon=True)
        self._process.start()
        self._pipe.recv()

    def take(self) -> dict[str, float]:
        """Have it take every lock or wait in the queue; return when it got each, 0.0 where it waits."""
        self._pipe.send("go")
        moments: dict[str, float] = self._pipe.recv()
        return moments

    def freeze(self) -> None:
        """Stop it without a word: its sockets stay open."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it at once; the kernel closes its sockets."""
        self._process.kill()
        self._process.join()


def measure(
    server: Server, peers: Sequence[Peer], rounds: int, progress: Callable[[str], None]
) -> list[Record]:
    """Return one record for each round, kind of death and peer: milliseconds of delay, -1 for never."""
    sections = {peer.name: peer.open(server.url, LEASE) for peer in peers}
    records: list[Record] = []
    for number in range(rounds):
        for kind, trial in TRIALS.items():
            progress(f"{kind}, round {number + 1} of {rounds}")
            server.clear()
            delays = trial(server, sections, f"{kind}:{number}:")
            records += [
                {"round": number, "kind": kind, "peer": name, "delay_ms": delay}
                for name, delay in delays.items()
            ]
    return records


def dead_holder(server: Server, sections: dict[str, Section], prefix: str) -> dict[str, float]:
    """Kill a process that holds; the delay counts from the end of the lease that it leaves behind."""
    victim = Victim(server.url, list(sections), prefix)
    ends = {name: got + LEASE for name, got in victim.take().items()}
    waiters = {name: Taker(section, prefix + name, briefly=True) for name, section in sections.items()}
    time.sleep(QUEUEING)
    victim.kill()
    return _delays(waiters, ends)


def dead_waiter(server: Server, sections: dict[str, Section], prefix: str) -> dict[str, float]:
    """Kill the process that is next in the queue; the delay counts from the release."""
    return _after_waiter(server, sections, prefix, Victim.kill)


def frozen_waiter(server: Server, sections: dict[str, Section], prefix: str) -> dict[str, float]:
    """Freeze the process that is next in the queue."""
    return _after_waiter(server, sections, prefix, Victim.freeze)


def _after_waiter(
    server: Server, sections: dict[str, Section], prefix: str, strike: Callable[[Victim], None]
) -> dict[str, float]:
    """Kill the first waiter behind a holder, release, and see when the waiter behind it has the lock."""
    victim = Victim(server.url, list(sections), prefix)
    holders = _take_all(sections, prefix)
    victim.take()
    waiters = {name: Taker(section, prefix + name, briefly=True) for name, section in sections.items()}
    time.sleep(QUEUEING)
    strike(victim)
    time.sleep(0.05)
    delays = _release_all(holders, waiters)
    victim.kill()
    return delays


def _take_all(sections: dict[str, Section], prefix: str) -> dict[str, Taker]:
    takers = {name: Taker(section, prefix + name) for name, section in sections.items()}
    for taker in takers.values():
        taker.taken.wait()
    return takers


def _release_all(holders: dict[str, Taker], waiters: dict[str, Taker]) -> dict[str, float]:
    for holder in holders.values():
        holder.release()
        time.sleep(APART)
    return _delays(waiters, {name: holder.let_go for name, holder in holders.items()})


def _delays(waiters: dict[str, Taker], since: dict[str, float]) -> dict[str, float]:
    deadline = time.monotonic() + GIVEN_UP
    delays = {}
    for name, waiter in waiters.items():
        taken = waiter.taken.wait(max(0.0, deadline - time.monotonic()))
        delays[name] = max(0.0, waiter.got - since[name]) * 1000 if taken else -1.0
    return delays


TRIALS = {"dead holder": dead_holder, "dead waiter": dead_waiter, "frozen waiter": frozen_waiter}
