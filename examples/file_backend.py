"""A lock backend of one's own in under a hundred lines: locks in a folder, for the processes of one machine.

    LOCKING = {"default": {"BACKEND": "examples.file_backend.FileBackend", "LOCATION": "/var/lib/shop/locks"}}

One file per lock, named by a hash of its key, holds *owner deadline token*. Every verb reads and writes it
under flock(2): that makes it one atomic step. The deadline is a moment of the machine's boot clock, which its
processes share. `tests/examples` runs the shipped contract on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from locking.backends.base import BaseLockBackend, Busy, Grant, Holder, Outcome
from locking.conf import AliasSettings
from locking.exceptions import BackendUnavailable
from locking.utils.clock import now


class Record(NamedTuple):
    """What a lock's file says."""

    owner: str = ""
    deadline: float = 0.0
    token: int = 0

    def is_held(self) -> bool:
        """Whether the lease still runs."""
        return self.deadline > now()


class FileBackend(BaseLockBackend):
    """Locks in the folder `LOCATION`. Waiters poll: `BaseLockBackend` does that for them."""

    supports_fencing = True

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self._folder = Path(str(settings.location))

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[Record, int]]:
        path = self._folder / hashlib.sha256(key.encode()).hexdigest()
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BackendUnavailable(f"the lock backend {self.alias!r} can't use {path}: {error}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            fields = os.read(file, 1024).decode().split()
            yield Record(fields[0], float(fields[1]), int(fields[2])) if fields else Record(), file
        finally:
            os.close(file)  # and with it goes the flock

    def _write(self, file: int, record: Record) -> None:
        os.ftruncate(file, os.pwrite(file, f"{record.owner} {record.deadline!r} {record.token}".encode(), 0))

    def try_acquire(self, key: str, owner: str, ttl: float, *, fenced: bool = False) -> Outcome:
        since = now()
        with self._opened(key) as (seen, file):
            if seen.is_held() and seen.owner != owner:
                return Busy(seen.deadline - now(), seen.owner)
            is_new = not seen.is_held()
            token = max(seen.token + 1, time.time_ns() // 1000) if is_new else seen.token
            self._write(file, Record(owner, now() + ttl, token))
        return Grant(token, since, is_new=is_new)

    def extend(self, key: str, owner: str, ttl: float) -> bool:
        return self._replace(key, owner, ttl, at_least=True)

    def shorten(self, key: str, owner: str, ttl: float) -> bool:
        return self._replace(key, owner, ttl)

    def release(self, key: str, owner: str) -> bool:
        return self._replace(key, owner, 0.0)  # the file stays, and in it the last token

    def _replace(self, key: str, owner: str, ttl: float, *, at_least: bool = False) -> bool:
        with self._opened(key) as (seen, file):
            if not seen.is_held() or seen.owner != owner:
                return False
            self._write(file, seen._replace(deadline=max(now() + ttl, seen.deadline * at_least)))
            return True

    def holder(self, key: str) -> Holder | None:
        with self._opened(key) as (seen, _):
            return Holder(seen.owner, 1, seen.deadline - now()) if seen.is_held() else None
