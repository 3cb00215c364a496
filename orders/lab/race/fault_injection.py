"""What the lab does on purpose to see a strategy break: a process stands still, a Redis is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from locking import BackendUnavailable
from orders.lab.race.messages import Fault, Round
from orders.lab.redis_store import answering

BACK_WITHIN = 5.0


def comes_after(round_: Round, buyer: int, stop: threading.Event) -> None:
    """Keep a buyer waiting until the victim of the fault, if there is one, holds the lock."""
    if round_.fault is None or round_.fault.victim in (None, buyer):
        return
    deadline = time.monotonic() + BACK_WITHIN
    while not claim(round_.sku).exists() and time.monotonic() < deadline and not stop.is_set():
        time.sleep(0.002)


def once_a_round(round_: Round, fault: Fault, buyer: int) -> None:
    """Do it once per round: to the victim, or to the first buyer of all processes who comes here."""
    if fault.victim not in (None, buyer):
        return
    try:
        claim(round_.sku).touch(exist_ok=False)
    except FileExistsError:
        return
    if fault.kill is not None:
        with suppress(ProcessLookupError):
            os.kill(int(fault.kill.read_text()), signal.SIGKILL)
        wait_until_redis_is_back()
    if fault.stand_still:
        stand_still(fault.stand_still)
    time.sleep(fault.rest)


def wait_until_redis_is_back() -> None:
    """Wait for the one that is started after the killed one: how long that takes, the machine decides."""
    deadline = time.monotonic() + BACK_WITHIN
    while time.monotonic() < deadline:
        with suppress(BackendUnavailable), answering() as redis:
            redis.ping()
            return
        time.sleep(0.02)


def claim(sku: str) -> Path:
    """Return the file that only the first buyer of a round can create; the engine removes it."""
    return Path(tempfile.gettempdir()) / f"holdfast-{sku}.once"


def stand_still(seconds: float) -> None:
    """Stop this whole process for `seconds`, as a long garbage collection or a frozen machine does.

    A small shell outside it wakes it up again: what is stopped can't wake itself.
    """
    waker = subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds:g}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()
