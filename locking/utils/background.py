"""Background threads, once for all of `locking`: how they start, wait, fail, stop, and what a fork does.

A `Worker` is one daemon thread that calls a step again and again for as long as the step names a next time. A
thread that cannot start is retried at the next use of any worker: nothing is noted before the thread runs.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from types import MethodType
from typing import Final
from weakref import WeakMethod

from django.db import connections

from locking.utils.clock import now

logger = logging.getLogger(__name__)

RETRY_PAUSE: Final = 0.5
"""Seconds until a step that raised is called again."""

LONGEST_PAUSE: Final = 3600.0
"""Seconds that a worker sleeps at most: a condition cannot wait for an infinite time."""

CANNOT_START: Final = (RuntimeError, MemoryError)
"""What `Thread.start` raises when the system has no thread left, or when the interpreter is shutting down."""


# --- forks ------------------------------------------------------------------------------------------------

Reset = Callable[[], object]
_RESETS: Final[dict[Callable[[], Reset | None], None]] = {}


def after_fork(reset: Reset) -> None:
    """Call `reset` in every forked child; without effect where the system cannot fork, such as Windows.

    Args:
        reset: a function, or a method of an object, which this does not keep alive.
    """
    if isinstance(reset, MethodType):
        _RESETS[WeakMethod(reset, _forget)] = None
    else:
        _RESETS[lambda: reset] = None


def _forget(method: Callable[[], Reset | None]) -> None:
    _RESETS.pop(method, None)


def _reset_all() -> None:
    """Run every reset in a forked child. All objects stay alive until the last has run: they refer to each
    other, and one that is collected too early would close its parent's connections.
    """
    for reset in [found for get in list(_RESETS) if (found := get()) is not None]:
        try:
            reset()
        except Exception:
            logger.exception("resetting %r after a fork failed", reset)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)


# --- threads ----------------------------------------------------------------------------------------------


def _started(name: str, run: Callable[[], object]) -> threading.Thread:
    def run_and_close() -> None:
        try:
            run()
        finally:
            connections.close_all()  # this thread's own: no other thread could

    thread = threading.Thread(target=run_and_close, name=name, daemon=True)
    thread.start()
    return thread


def start_thread(name: str, run: Callable[[], object]) -> threading.Thread | None:
    """Run `run` in a new daemon thread and return that.

    Returns:
        None when no thread could be started, which is logged; never raises.
    """
    try:
        return _started(name, run)
    except CANNOT_START as error:
        _log_failure(name, error)
        return None


def _log_failure(name: str, error: Exception) -> None:
    logger.error("the background thread %r cannot start: %s", name, error)


class Worker:
    """One background thread that starts with the first `wake` and ends when there is nothing left to do.

    Args:
        name: of the thread.
        step: does what is due and returns the `clock.now()` of its next call; None ends the thread, unless
            a `wake` came while the step ran. What it raises is logged, and it is called again after
            `RETRY_PAUSE`.
    """

    def __init__(self, name: str, step: Callable[[], float | None]) -> None:
        self._name, self._step = name, step
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child has no such thread."""
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._wanted = math.inf
        self._sleeps_until = math.inf
        _NOT_STARTED.discard(self)

    @property
    def running(self) -> bool:
        """Whether the thread has started and has not ended."""
        return self._thread is not None

    def runs_here(self) -> bool:
        """Whether the caller is the worker's own thread."""
        return self._thread is threading.current_thread()

    def wake(self, at: float = -math.inf) -> bool:
        """Have the step called at `at` (`clock.now()`) at the latest; without it, at once.

        Returns:
            False when the thread cannot start, which is logged. The next `wake`, and every worker that
            runs, retries it.
        """
        with self._changed:
            self._wanted = min(self._wanted, at)
            self._changed.notify_all()
            return self._start()

    def wake_by(self, at: float) -> bool:
        """`wake` for the hot path: takes no lock while the thread sleeps and wakes by then anyway.

        While the step runs `_sleeps_until` is infinite, so that a wake-up for what the step has not seen
        counts.
        """
        return (self._sleeps_until <= at and self._thread is not None) or self.wake(at)

    def stop(self) -> None:
        """End the thread after the step that runs now; the next `wake` starts another."""
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _start(self) -> bool:
        if self._thread is not None:
            return True
        try:
            self._thread = _started(self._name, self._run)
        except CANNOT_START as error:
            if self not in _NOT_STARTED:
                _log_failure(self._name, error)
            _NOT_STARTED.add(self)
            return False
        _NOT_STARTED.discard(self)
        self._sleeps_until = math.inf
        return True

    def _run(self) -> None:
        me, due = threading.current_thread(), None
        with self._changed:
            if self._thread not in (None, me):
                return  # an interrupted start was repeated meanwhile
            self._thread = me
        try:
            while self._sleep_until(due, me):
                due = self._call_step()
        finally:
            with self._changed:
                if self._thread is me:
                    self._thread = None

    def _call_step(self) -> float | None:
        try:
            due = self._step()
        except Exception:  # the thread must outlive every surprise
            logger.exception("the background thread %r failed and continues", self._name)
            due = now() + RETRY_PAUSE
        _retry_starts()
        return due

    def _sleep_until(self, due: float | None, me: threading.Thread) -> bool:
        """Sleep until `due`, or until a `wake`; False ends the thread."""
        with self._changed:
            while self._thread is me:
                moment = min(math.inf if due is None else due, self._wanted)
                if due is None and moment == math.inf:
                    self._thread = None
                    return False
                self._sleeps_until = moment
                if (pause := moment - now()) <= 0:
                    self._wanted = self._sleeps_until = math.inf
                    return True
                self._changed.wait(min(pause, LONGEST_PAUSE))
            return False


_NOT_STARTED: Final[set[Worker]] = set()


def _retry_starts() -> None:
    """Start the workers whose threads could not start before."""
    for worker in list(_NOT_STARTED):
        worker.wake()
