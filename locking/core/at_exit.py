"""The end of a process: what its finished threads and tasks still hold is released, and waiters get it.

A lease whose holder may still be at work, in a daemon thread, stays: it expires or, where it is guarded,
another process of the host releases it. `LockingConfig.ready` registers this.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from locking.core.lease import DROPPED, live_leases
from locking.exceptions import BackendUnavailable

logger = logging.getLogger(__name__)


def exit_on_sigterm() -> bool:
    """Have SIGTERM end the main thread like Ctrl-C, so that `with` blocks are left and locks released.

    Without a handler the signal ends a Python process at once. Web servers and Celery have handlers of their
    own; call this from scripts and management commands.

    Returns:
        False when the signal has a handler already, which stays.

    Raises:
        ValueError: called outside the main thread.

    Example:
        >>> exit_on_sigterm()  # doctest: +SKIP
        True
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return False
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    return True


def release_what_is_left() -> None:
    """Release the leases of finished threads and tasks, and leave the others to their end."""
    silent: set[str] = set()
    for lease in live_leases():
        if lease.open and not lease.unreleased and _is_finished(lease.context()):
            lease.depth = 1  # however often it was entered
            _try(lease.release, lease, lease.backend.settings.alias, silent)
    while DROPPED:  # by functions that have returned
        backend, key, owner = DROPPED.popleft()
        _try(partial(backend.release, key, owner), key, backend.settings.alias, silent)


def _is_finished(context: object) -> bool:
    """Whether a thread or task can do nothing any more under its lock; the main thread is here."""
    if isinstance(context, asyncio.Task):
        return context.done() or context.get_loop().is_closed()
    if isinstance(context, threading.Thread):
        return context is threading.current_thread() or not context.is_alive()
    return context is None


def _try(release: Callable[[], object], what: object, alias: str, silent: set[str]) -> None:
    """Release, unless the backend of `alias` did not answer before."""
    if alias in silent:
        return
    try:
        release()
    except BackendUnavailable:
        silent.add(alias)
    except Exception as error:  # the interpreter is ending, and so may be what a release needs
        logger.debug("at the end of the process %r could not be released: %s", what, error)
