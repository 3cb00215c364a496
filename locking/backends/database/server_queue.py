"""Waiting in the queue that a database server keeps by itself."""

from __future__ import annotations

from typing import Protocol

from locking.backends.base import Outcome, Waiter


class WaitsInServer(Protocol):
    """A backend whose server queues the sessions that wait for a lock."""

    def try_acquire(self, key: str, owner: str, ttl: float) -> Outcome:
        """Ask once."""

    def wait_for(self, key: str, owner: str, ttl: float, timeout: float) -> Outcome:
        """Wait in the server's queue, at most `timeout` seconds."""


class ServerQueueWaiter(Waiter):
    """A thread that waits in the server's own queue."""

    def __init__(self, backend: WaitsInServer, key: str, owner: str, ttl: float) -> None:
        self._backend, self._asked = backend, (key, owner, ttl)

    def try_acquire(self, *, queue: bool) -> Outcome:
        return self._backend.try_acquire(*self._asked)

    def wait(self, timeout: float) -> Outcome:
        return self._backend.wait_for(*self._asked, timeout)

    def leave(self) -> None:
        """A wait that ended has left the queue already."""
