"""Threads that wait for a lock, and how to see from behind the scenes that they do."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from locking import Lease, get_lock
from tests.locking.backends.redis.topologies.servers import Server, until


def in_thread(step: Any, *arguments: Any, **options: Any) -> Future[Any]:
    """Run `step` in a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(step(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def acquired_in_thread(name: str, **options: Any) -> Future[Lease]:
    """Acquire `name` in a thread of its own, which ends with the lock in hand."""
    return in_thread(lambda: get_lock(name, **options).acquire())


def queue_of(name: str) -> str:
    """Return the key of the queue of the lock `name`."""
    return f"holdfast_lock_queue:{{{name}}}"


def until_waiting(server: Server, name: str, count: int = 1, database: int = 0) -> None:
    """Return once `count` waiters wait in the queue for `name`."""
    with server.client(database) as client:
        until(lambda: client.llen(queue_of(name)) == count, f"{count} waiters for {name}")
