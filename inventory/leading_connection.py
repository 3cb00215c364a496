"""One connection for all who lead a batch in a process: they take turns, so one backend serves them.

A backend of PostgreSQL that works for one batch after another keeps its plans and caches warm; sixteen that
take turns each find them cold. What that brings was measured: docs/adr/0037.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from inventory.statements import is_silent


class LeadingConnection:
    """The connection over which batches go to one database, once there is one, and whose turn it is."""

    def __init__(self, using: str) -> None:
        self.using, self._turn = using, threading.Lock()
        self._shared: Any = None
        self._opened_by = 0  # the process

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Have this thread's statements go over it within the block, outside of any transaction.

        Where connections end with their request (`CONN_MAX_AGE` 0), and while another thread is in such a
        block, they go over this thread's own.
        """
        own: Any = connections[self.using]
        kept = own.settings_dict.get("CONN_MAX_AGE") != 0 and own.vendor == "postgresql"
        if not kept or own.in_atomic_block or not self._turn.acquire(blocking=False):
            yield
            return
        try:
            connections[self.using] = self._opened()
            yield
        finally:
            connections[self.using] = own
            self._turn.release()

    def _opened(self) -> Any:
        """Return it as a request finds its own: closed if too old or broken, to be checked if not silent."""
        shared: Any = self._shared
        if shared is None or self._opened_by != os.getpid():  # a fork's child leaves its parent's alone
            shared = self._shared = connections.create_connection(self.using)
            self._opened_by = os.getpid()
            shared.inc_thread_sharing()
        shared.close_if_unusable_or_obsolete()
        shared.health_check_done = is_silent(shared)
        return shared
