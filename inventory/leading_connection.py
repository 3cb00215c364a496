"""One connection for all who lead in a process: they take turns, so one backend of PostgreSQL serves them.

A backend that works for one batch after another has its plans and caches at hand; sixteen that take turns
each have them from a while ago. What that brings was measured: docs/adr/0037.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper


class _Shared:
    """The connection, once there is one, and whose turn it is."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.connection: BaseDatabaseWrapper | None = None

    def opened(self) -> BaseDatabaseWrapper:
        """Return it as a request finds its own: closed if too old or broken, to be checked if not."""
        if self.connection is None:
            self.connection = connections.create_connection(DEFAULT_DB_ALIAS)
            self.connection.inc_thread_sharing()
        self.connection.close_if_unusable_or_obsolete()
        return self.connection


_shared = _Shared()


@contextmanager
def leading_connection() -> Iterator[None]:
    """Have the block's statements go over the connection of those who lead; then over this thread's again.

    Where connections end with their request (`CONN_MAX_AGE` 0), and while another thread is in such a block,
    they go over this thread's own. Don't call it in a transaction: the block would be outside of it.
    """
    own, shared = connections[DEFAULT_DB_ALIAS], _shared
    if own.settings_dict["CONN_MAX_AGE"] == 0 or not shared.turn.acquire(blocking=False):
        yield
        return
    try:
        connections[DEFAULT_DB_ALIAS] = shared.opened()
        yield
    finally:
        connections[DEFAULT_DB_ALIAS] = own
        shared.turn.release()


def _forget() -> None:
    """Leave the connection to the parent of this process, which goes on with it."""
    global _shared
    _shared = _Shared()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget)
