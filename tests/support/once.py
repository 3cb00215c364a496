"""What is made once in a run, whichever of its workers needs it first; the others wait, and use it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that all workers share; `make` has filled it once.

    It is to be read or copied, never changed. Where `make` fails, the next one tries again.
    """
    run = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a folder in that of the run
        run = run.parent
    with (run / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (done := run / f"{name}.done").exists():
            make(run / name)
            done.touch()
    return run / name
