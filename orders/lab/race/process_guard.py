"""Processes that don't outlive the one that started them, however that ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def guard_over(pid: int) -> subprocess.Popen[bytes]:
    """Return a shell that kills a process when this one is gone: it holds the other end of a pipe."""
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read line || kill -9 {pid}"], stdin=subprocess.PIPE, start_new_session=True
    )


def relieve(guard: subprocess.Popen[bytes]) -> None:
    """Tell a guard that its process has ended: the number may be another's by now. Once is enough."""
    with suppress(OSError, ValueError):
        guard.communicate(b"it has ended\n")


@contextmanager
def guarded(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> Iterator[None]:
    """Have `process` killed if this process dies within the block, which ends it otherwise."""
    guard = guard_over(process.pid)
    try:
        yield
    finally:
        relieve(guard)
