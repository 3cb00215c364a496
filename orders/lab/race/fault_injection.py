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
_WAKE = (
    "sleep {seconds:g}; for _ in $(seq 50); do "
    "[ $(wc -c <{answered}) -lt {others} ] || break; sleep 0.1; done; kill -CONT {pid}"
)
"""Wakes a process that stands still; others who wait for this very process keep it five seconds longer."""


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
        stand_still(fault.stand_still, answers(round_.sku), (fault.victim or 1) - 1)
    time.sleep(fault.rest)


def has_answer(round_: Round, buyer: int) -> None:
    """Note that a buyer has its answer: a victim stands still until the others have theirs."""
    if round_.fault is not None and round_.fault.victim not in (None, buyer):
        with answers(round_.sku).open("a") as file:
            file.write(".")


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


def answers(sku: str) -> Path:
    """The file with one character for each buyer of a round that has its answer; the engine removes it."""
    return claim(sku).with_suffix(".answers")


def stand_still(seconds: float, answered: Path, others: int) -> None:
    """Stop this whole process, as a long garbage collection or a frozen machine does.

    It lasts `seconds`, and on a slow machine until the other buyers, as many as `others`, have their answers.
    A small shell outside it wakes it up again: what is stopped can't wake itself.
    """
    answered.touch()
    command = _WAKE.format(seconds=seconds, answered=answered, others=others, pid=os.getpid())
    waker = subprocess.Popen(["/bin/sh", "-c", command])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()
