"""Whether this thread's database connection still works, asked before others wait for its sale."""

from __future__ import annotations

import select
import time
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DEFAULT_DB_ALIAS, connections

TRUSTED: Final = 1.0
"""Seconds for which an answer of the server says that a connection works, unless something arrives on it."""

_answered: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
"""When each connection was last asked and answered, by `time.monotonic()`."""


def check_connection() -> None:
    """Replace a connection that has died, before a lock is held on which others wait meanwhile.

    A server that ends a connection says so on its socket: that costs no question. Only a network that has
    fallen silent needs one, so a thread that sells all the time asks once per second.
    """
    connection: Any = connections[DEFAULT_DB_ALIAS]
    raw: Any = connection.connection
    if raw is None or connection.health_check_done or not connection.health_check_enabled:
        return
    if time.monotonic() - _answered.get(raw, -TRUSTED) < TRUSTED and not _has_news(raw):
        connection.health_check_done = True  # Django would ask when the transaction begins, under the lock
        return
    connection.close_if_health_check_failed()
    if connection.connection is raw:
        _answered[raw] = time.monotonic()


def _has_news(raw: Any) -> bool:
    """Return whether the server has sent something that nobody asked for, such as the end."""
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))
