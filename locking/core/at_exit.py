"""The end of a process: what its finished threads and tasks still hold is released, and waiters get it.

A lease whose holder may still be at work, in a daemon thread, stays: it expires or, where it is guarded,
another process of the host releases it (`locking.core.dead_processes`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

from locking.core.lease import DROPPED, SingleLease, live_leases
from locking.core.liveness import registration
from locking.core.waits import waiters
from locking.exceptions import BackendUnavailable
from locking.utils.ownership import is_guarded

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
    signal.signal(signal.SIGTERM, _exit)
    return True


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def release_what_is_left() -> None:
    """Release the leases of finished threads and tasks, and leave the others to their end."""
    silent: set[str] = set()
    for lease in _leases():
        alias = lease.backend.settings.alias
        if alias not in silent and _is_finished(lease.context()) and not _try_release(lease):
            silent.add(alias)
    _release_dropped(silent)
    left = [lease.owner for lease in _leases() if lease.renewed and is_guarded(lease.owner)]
    registration.leave(left, waiting=waiters.total > 0)


def _release_dropped(silent: set[str]) -> None:
    """Release renewed leases that were garbage collected, as those are whose function has returned."""
    while DROPPED:
        backend, key, owner = DROPPED.popleft()
        alias = backend.settings.alias
        if alias not in silent and not _try(partial(backend.release, key, owner), key):
            silent.add(alias)


def _leases() -> list[SingleLease]:
    return [lease for lease in live_leases() if lease.open and not lease.unreleased]


def _is_finished(context: object) -> bool:
    """Whether a thread or task can do nothing any more under its lock; the main thread is here."""
    if isinstance(context, asyncio.Task):
        return context.done() or context.get_loop().is_closed()
    if isinstance(context, threading.Thread):
        return context is threading.current_thread() or not context.is_alive()
    return context is None


def _try_release(lease: SingleLease) -> bool:
    """Release a lease however often it was entered; False when its backend does not answer."""
    lease.depth = 1
    return _try(lease.release, lease)


def _try(release: Callable[[], object], what: object) -> bool:
    try:
        release()
    except BackendUnavailable:
        return False
    except Exception as error:  # the interpreter is ending, and so may be what a release needs
        logger.debug("at the end of the process %r could not be released: %s", what, error)
    return True


atexit.register(release_what_is_left)
