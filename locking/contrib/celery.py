"""Celery: whose task is running, and how it is tried again. Imported only when Celery already is."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any, Final, NoReturn

from celery import current_task

from locking.exceptions import LockError

LONGEST_COUNTDOWN: Final = 60.0
"""Seconds; a busy lock is asked for again at least this often."""


def running_task(function: Callable[..., Any]) -> Any | None:
    """Return the Celery task that is running, if `function` is its body and not merely called by it."""
    if not current_task or inspect.unwrap(current_task.run) is not inspect.unwrap(function):
        return None
    return current_task


def retry(task: Any, error: LockError) -> NoReturn:
    """Send the task back to its queue; when its retries have run out, raise `error`."""
    raise task.retry(
        exc=error, countdown=countdown(task.request.retries, getattr(error, "retry_after", None))
    )


def countdown(retries: int, lease_left: float | None) -> float:
    """Seconds until the next try: doubled each time, at most what is left of the lease, and scattered.

    Args:
        retries: how often the task was tried again before.
        lease_left: seconds until the holder's lease ends at the latest, where known.
    """
    longest = LONGEST_COUNTDOWN if lease_left is None else min(lease_left, LONGEST_COUNTDOWN)
    return float(min(2.0 ** min(retries, 10), longest)) + random.uniform(0.0, 1.0)  # noqa: S311 - spreads load, hides nothing
