"""What the lab does on purpose to see a strategy break: a process stands still, a Redis is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from orders.race.messages import Fault, Round


def once_a_round(round_: Round, fault: Fault) -> None:
    """Do it for the first buyer, of all processes, who comes here in this round, and for nobody after it."""
    try:
        claim(round_.sku).touch(exist_ok=False)
    except FileExistsError:
        return
    if fault.kill is not None:
        with suppress(ProcessLookupError):
            os.kill(fault.kill, signal.SIGKILL)
    if fault.stand_still:
        stand_still(fault.stand_still)
    time.sleep(fault.rest)


def claim(sku: str) -> Path:
    """The file that only the first buyer of a round can make; the engine removes it."""
    return Path(tempfile.gettempdir()) / f"holdfast-{sku}.once"


def stand_still(seconds: float) -> None:
    """Stop this whole process for `seconds`, as a long garbage collection or a frozen machine does.

    A small shell outside it wakes it up again: what is stopped can't wake itself.
    """
    waker = subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds:g}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait()
