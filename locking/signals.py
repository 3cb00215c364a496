"""Signals: what became of a lock, told to whoever listens, and never at the cost of the locked section.

An event is queued, and one thread a process sends it: a receiver may be slow or raise, and the section
neither waits for it nor fails by it. Receivers run in that thread, in the order of the events, outside the
section, its transaction and its request. Without receivers nothing is made or queued, and the thread doesn't
start: that costs 0.1 µs an event; with one, about 15 µs (measured on two shared cores, the sending included).

    from django.dispatch import receiver
    from locking.signals import lock_lost

    @receiver(lock_lost)
    def alarm(sender, event, **kwargs):
        logger.error("%s lost after %.1f s", event.name, event.held)
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from django.db import close_old_connections
from django.dispatch import Signal

logger = logging.getLogger("locking")

lock_acquired = Signal()
"""A lock was granted; a re-entry sends nothing."""
lock_refused = Signal()
"""A lock was not to be had: `contended` or `unavailable`."""
lock_released = Signal()
"""The backend has let a lock go, or will when its ttl ends (`kept`); an unanswered release sends nothing."""
lock_lost = Signal()
"""A lease ended before its holder was done."""
lock_force_released = Signal()
"""Somebody broke another's hold."""

Outcome = Literal["acquired", "contended", "unavailable", "released", "kept", "lost", "force_released"]

MOST_WAITING: Final = 10_000
"""Events that wait for slow receivers at most; beyond that new ones are dropped, and the log says so."""

LAST_WORDS: Final = 2.0
"""Seconds for which the end of the process waits for receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEvent:
    """What happened to one lock; several names taken together send one event each.

    Attributes:
        outcome: what happened, in one word.
        name: what was locked, as its user named it.
        key: where the backend keeps it.
        backend: alias in `LOCKING`.
        owner: the identity of the acquisition (`<uuid>:<int>`).
        token: its fencing token; 0 where there is none.
        ttl: seconds of the lease when it was taken or last extended.
        waited: seconds from the first try to the grant or refusal; None afterwards.
        held: seconds from the grant to the end of the hold (of a lost one: to the discovery); None before it.
        holder: a refusal's reason: who has the lock, where the backend can tell.
        at: Unix time of the event.
        thread: name of the thread in which it happened.
    """

    outcome: Outcome
    name: str
    key: str
    backend: str
    owner: str
    token: int = 0
    ttl: float | None = None
    waited: float | None = None
    held: float | None = None
    holder: str | None = None
    at: float = field(default_factory=time.time)
    thread: str = field(default_factory=lambda: threading.current_thread().name)


def tell(signal: Signal, describe: Callable[[], LockEvent]) -> None:
    """Have `signal` sent with the event that `describe` makes; both only where somebody listens."""
    if signal.receivers:
        _dispatcher.put(signal, describe())


def flush(timeout: float = 5.0) -> bool:
    """Wait until every event so far was sent; for tests and for the end of a process.

    Args:
        timeout: seconds to wait at most.

    Returns:
        False when receivers were still busy after that time.
    """
    return _dispatcher.flush(timeout)


class Dispatcher:
    """Sends queued events from one thread, which starts with the first of them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from nothing: a forked child has no such thread, and its parent tells its own events."""
        self._queue: queue.Queue[tuple[Signal, LockEvent] | threading.Event] = queue.Queue(MOST_WAITING)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, signal: Signal, event: LockEvent) -> None:
        """Queue an event; never blocks."""
        self._start()
        try:
            self._queue.put_nowait((signal, event))
        except queue.Full:
            logger.error(
                "receivers of lock signals are too slow: dropped %s of %r", event.outcome, event.name
            )

    def flush(self, timeout: float) -> bool:
        """See the function."""
        if self._thread is None or threading.current_thread() is self._thread:
            return True
        reached = threading.Event()
        try:
            self._queue.put(reached, timeout=timeout)
        except queue.Full:
            return False
        return reached.wait(timeout)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="locking-signals", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                _send(*item)


def _send(signal: Signal, event: LockEvent) -> None:
    """Call the receivers; whatever one raises is logged by Django and reaches nobody else."""
    try:
        signal.send_robust(sender=LockEvent, event=event)
        close_old_connections()  # this thread has no request whose end would do so
    except Exception:  # the thread must outlive a broken connection too
        logger.exception("sending %s of the lock %r failed", event.outcome, event.name)


_dispatcher: Final = Dispatcher()
os.register_at_fork(after_in_child=_dispatcher.reset)
atexit.register(flush, LAST_WORDS)
