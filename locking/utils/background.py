"""Background threads, once for all of `locking`: how they start, wait, fail, stop, and what a fork does.

There are four kinds, and a thread's name begins with its kind: `locking-renew` keeps leases alive,
`locking-listen` hears of events, `locking-tidy` retries releases and publishes heartbeats, `locking-call`
runs the user's code. All are daemons. See `docs/contributing/threads.md`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import MethodType
from typing import Final
from weakref import WeakMethod

from django.db import connections

from locking.utils.clock import now

logger = logging.getLogger(__name__)

RETRY_PAUSE: Final = 0.5  # seconds until a step that raised is called again
LONGEST_PAUSE: Final = 3600.0  # seconds of sleep: a condition cannot wait for an infinite time
CANNOT_START: Final = (RuntimeError, MemoryError)  # raised where no thread is left, or the interpreter ends

Reset = Callable[[], object]
_RESETS: Final[dict[Callable[[], Reset | None], None]] = {}


def after_fork(reset: Reset) -> None:
    """Call `reset`, a function or a method of an object that this does not keep alive, in a forked child."""
    if isinstance(reset, MethodType):
        resets = _RESETS  # at the interpreter's end the module may have lost its names before the object goes
        _RESETS[WeakMethod(reset, lambda gone: resets.pop(gone, None))] = None
    else:
        _RESETS[lambda: reset] = None


def _reset_all() -> None:
    # All objects stay alive until the last has run: they refer to each other, and one that is collected too
    # early would close its parent's connections.
    for reset in [found for get in list(_RESETS) if (found := get()) is not None]:
        try:
            reset()
        except Exception:
            logger.exception("resetting %r after a fork failed", reset)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)

Step = Callable[[], float | None]


def start_thread(name: str, run: Callable[[], object]) -> threading.Thread | None:
    """Run `run` in a new daemon thread and close its database connections behind it."""
    # Returns None where the system has no thread left, which is logged; never raises.

    def run_and_close() -> None:
        with suppress(OSError):  # only Linux has it
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name[:15])
        try:
            run()
        finally:
            connections.close_all()  # this thread's own: no other thread could

    thread = threading.Thread(target=run_and_close, name=name, daemon=True)
    try:
        thread.start()
    except CANNOT_START as error:
        logger.error("the background thread %r cannot start: %s", name, error)
        return None
    return thread


class Worker:
    """One background thread that starts with the first `wake` and ends when there is nothing left to do.

    Each step does what is due and returns the `clock.now()` of its next call; the thread ends when all return
    None, unless a `wake` came meanwhile. What one raises is logged, and it is called again after
    `RETRY_PAUSE`. A `wake` calls them all.
    """

    def __init__(self, name: str, *steps: Step) -> None:
        self._name, self.steps = name, list(steps)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child has no such thread."""
        self._changed = threading.Condition(threading.Lock())
        self.thread: threading.Thread | None = None
        self._wanted = self._sleeps_until = math.inf

    def wake(self, at: float = -math.inf) -> bool:
        """Have the steps called at `at` (`clock.now()`) at the latest; False when the thread cannot start."""
        with self._changed:
            self._wanted = min(self._wanted, at)
            self._changed.notify_all()
            if self.thread is None:
                self._sleeps_until = math.inf
                self.thread = start_thread(self._name, self._run)
            return self.thread is not None

    def wake_by(self, at: float) -> bool:
        """`wake` for the hot path: takes no lock while the thread sleeps and wakes by then anyway."""
        return (self._sleeps_until <= at and self.thread is not None) or self.wake(at)

    def stop(self) -> None:
        """End the thread after the step that runs now; the next `wake` starts another."""
        with self._changed:
            self.thread = None
            self._changed.notify_all()

    def _run(self) -> None:
        me, due = threading.current_thread(), None
        with self._changed:
            self.thread = me  # also where a signal's handler interrupted the start
        try:
            while self._sleep_until(due, me):
                times = [self._next_time(step) for step in self.steps]
                due = min((time for time in times if time is not None), default=None)
        finally:
            with self._changed:
                if self.thread is me:
                    self.thread = None

    def _next_time(self, step: Step) -> float | None:
        try:
            return step()
        except Exception:  # the thread must outlive every surprise
            logger.exception("the background thread %r failed and continues", self._name)
            return now() + RETRY_PAUSE

    def _sleep_until(self, due: float | None, me: threading.Thread) -> bool:
        """Sleep until `due`, or until a `wake`; False ends the thread."""
        with self._changed:
            while self.thread is me:
                moment = min(math.inf if due is None else due, self._wanted)
                if due is None and moment == math.inf:
                    self.thread = None
                    return False
                self._sleeps_until = moment
                if (pause := moment - now()) <= 0:
                    # Infinite while the step runs: a `wake_by` for what it has not seen counts.
                    self._wanted = self._sleeps_until = math.inf
                    return True
                self._changed.wait(min(pause, LONGEST_PAUSE))
            return False


tidier: Final = Worker("locking-tidy")
"""Does what may wait; each chore adds a step, which may ask a silent server and so delay the others."""
