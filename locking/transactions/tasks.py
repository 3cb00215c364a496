"""Task queues: how a locked function finds that it is a task's body, and is queued again where it must wait.

A queue's adapter registers here (`locking.contrib` does); this module knows none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

from locking.core.lock import Lock
from locking.exceptions import LockError

AN_HOUR: Final = 3600.0
"""Seconds for which a task waits in its queue for a lock, in all, unless `retry_for` says otherwise."""


class RunningTask(Protocol):
    """A task that is running."""

    def act_for(self, lock: Lock) -> None:
        """Have the task take the lock in its own name, which a redelivery has too."""

    def retry(self, error: LockError, retry_for: float | None) -> NoReturn:
        """Send the task back to its queue, or raise `error` once it has waited there for `retry_for`."""


FindTask = Callable[[Callable[..., Any]], RunningTask | None]
"""Returns the task that is running if a function is its body, and not merely called by it."""

ADAPTERS: Final[dict[str, Callable[[], FindTask]]] = {}
"""By the module of a task queue, what loads its adapter where that module is in use."""


def running_task(function: Callable[..., Any]) -> RunningTask | None:
    """Return the task that is running, if `function` is its body and not merely called by it."""
    for module, load in ADAPTERS.items():
        if module in sys.modules and (task := load()(function)) is not None:
            return task
    return None
