"""Two people at two connections, led step by step: one that has to wait is seen waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from django.db import connections

PATIENCE = 30.0
WAITING = {
    "postgresql": (  # for another one of the two, not for an autovacuum that is gone in a moment
        "SELECT 1 FROM pg_stat_activity"
        " WHERE pid = ANY (pg_blocking_pids(%s)) AND backend_type = 'client backend'"
    ),
    "mysql": (
        "SELECT 1 FROM information_schema.innodb_trx"
        " WHERE trx_mysql_thread_id = %s AND trx_state = 'LOCK WAIT'"
    ),
}

T = TypeVar("T")


class Player:
    """Someone with a thread, and so with connections and locks, of their own."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._thread = ThreadPoolExecutor(1)
        self._entered: list[AbstractContextManager[Any]] = []
        self._pid: int | None = None

    def does(self, step: Callable[..., T], *arguments: Any) -> T:
        """Take a step, and return what came of it."""
        return self.begins(step, *arguments).result(PATIENCE)

    def begins(self, step: Callable[..., T], *arguments: Any) -> Future[T]:
        """Begin a step that may have to wait."""
        return self._thread.submit(step, *arguments)

    def enters(self, block: AbstractContextManager[T]) -> T:
        """Enter a `with` block."""
        return self.begins_to_enter(block).result(PATIENCE)

    def begins_to_enter(self, block: AbstractContextManager[T]) -> Future[T]:
        """Begin to enter a `with` block, which may have to wait."""
        self._entered.append(block)
        self._pid = self.does(self._process)
        return self._thread.submit(block.__enter__)

    def leaves(self) -> None:
        """Leave the block that was entered last."""
        block = self._entered.pop()
        self.does(block.__exit__, None, None, None)

    def is_seen_waiting(self) -> bool:
        """Whether the database says that this one waits for a lock; asked until it does."""
        connection = connections[self._alias]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with connection.cursor() as cursor:
                cursor.execute(WAITING[connection.vendor], [self._pid])
                if cursor.fetchone():
                    return True
            # The very table that is asked is refreshed ten times a second only.
            threading.Event().wait(0.01 if connection.vendor == "postgresql" else 0.15)
        return False

    def _process(self) -> int | None:
        connection = connections[self._alias]
        question = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
        if connection.vendor not in question:
            return None
        with connection.cursor() as cursor:
            cursor.execute(question[connection.vendor])
            pid: int = cursor.fetchone()[0]
        return pid

    def goes_home(self) -> None:
        """Close the connections, with whatever is still open in them."""
        self._thread.submit(connections.close_all)
        self._thread.shutdown()


@contextmanager
def two_players(alias: str) -> Iterator[tuple[Player, Player]]:
    """Give two players who work on the database `alias`."""
    players = Player(alias), Player(alias)
    try:
        yield players
    finally:
        for player in players:
            player.goes_home()
