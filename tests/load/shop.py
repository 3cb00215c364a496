"""The shop as `make serve` serves it, with what a load test wants to know of it and do to it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil

from config.serve import SERVED, server
from orders.lab.race.process_guard import guarded
from tests import ROOT
from tests.load.wire import Address, Wire
from tests.support.processes import free_ports

READY_SECONDS = 60.0
Command = Callable[[int, int, int], list[str]]
"""Gives the command line of a web server from its port, workers and threads."""

PRODUCTION = {"DEBUG": "false", "SECRET_KEY": "of-a-load-test-only", "LOG_LEVEL": "CRITICAL"}


class Shop:
    """The running server.

    Args:
        address: where it listens.
        process: the server's parent.
    """

    def __init__(self, address: Address, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self._parent = psutil.Process(process.pid)

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes of this moment."""
        return self._parent.children()

    def cpu_seconds(self) -> float:
        """Return the processor time that its processes have used."""
        return sum(cpu_seconds(process) for process in (self._parent, *self.workers()))

    def kill_worker(self, chance: random.Random) -> int:
        """Kill one worker, chosen by `chance`, with whatever it was doing; the server starts another."""
        victim = chance.choice(self.workers())
        victim.kill()
        return victim.pid


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time of one process, 0 if it is gone."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@contextmanager
def serving(
    environment: Mapping[str, str], *, workers: int = 2, threads: int = 16, command: Command = server
) -> Iterator[Shop]:
    """Run a web server on a free port, outside DEBUG, and end it with the block.

    Args:
        environment: settings of the shop, beside those of this process.
        workers: processes.
        threads: requests that each serves at a time.
        command: of the server; by default that of `make serve`.
    """
    address = Address("127.0.0.1", *free_ports(1))
    process = subprocess.Popen(
        command(address.port, workers, threads),
        cwd=ROOT,
        env=os.environ | PRODUCTION | SERVED | dict(environment),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with guarded(process):
        try:
            shop = Shop(address, process)
            _await_answer(shop, process)
            yield shop
        finally:
            _end(process)


def manage(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `manage.py` on the shop's servers, as its operator would."""
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | PRODUCTION | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )


def _await_answer(shop: Shop, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with Wire(shop.address, timeout=READY_SECONDS) as wire:
                wire.ask(wire.get("/products/"))
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the shop did not come up on {shop.address}") from None
            time.sleep(0.05)  # asks again until the shop answers


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()
