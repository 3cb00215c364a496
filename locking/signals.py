"""Events of locks for observers, receivers and the log, never at the cost of the critical section.

An event is queued, and one thread a process sends it: a receiver may be slow or raise, and the section
neither waits for it nor fails by it. Receivers run in that thread, in the order of the events, outside the
section, its transaction and its request. Without receivers nothing is made or queued, and the thread doesn't
start: that costs 0.1 µs an event; with one, about 15 µs (measured on two shared cores, the sending included).

    from django.dispatch import receiver
    from locking.signals import lock_lost

    @receiver(lock_lost)
    def alarm(sender, event, **kwargs):
        logger.error("%s lost after %.1f s", event.name, event.held)

Two others hear of the same events, at once and in the thread where they happen: the logger `locking.events`,
and observers. An observer must be quick; metrics and traces are made of them (`locking.contrib.prometheus`,
`locking.contrib.opentelemetry`), and so are statistics, heartbeats and the liveness of processes: the core
knows none of them.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from django.db import close_old_connections
from django.dispatch import Signal

from locking.backends.base import BaseLockBackend
from locking.utils.background import Worker, after_fork

__all__ = [
    "LockEvent",
    "Observer",
    "flush",
    "lock_acquired",
    "lock_deadlocked",
    "lock_force_released",
    "lock_lost",
    "lock_orphaned",
    "lock_refused",
    "lock_released",
    "observe",
    "stop_observing",
]

logger = logging.getLogger(__name__)
events_logger: Final = logging.getLogger("locking.events")
"""Has a record of each event."""


class RobustSignal(Signal):
    """Django's, whose `send_robust` outlives the failure of a receiver without a name, such as a partial."""

    # Django 5.2 to 6.1 log a failure with the receiver's `__qualname__`, and raise where there is none.
    def _log_robust_failure(self, receiver: Callable[..., Any], err: Exception) -> None:
        named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
        super()._log_robust_failure(named, err)  # type: ignore[misc]


lock_acquired = RobustSignal()
"""A lock was granted; a re-entry sends nothing."""
lock_refused = RobustSignal()
"""A lock was not acquired: `contended`, `unavailable` or `deadlock`."""
lock_deadlocked = RobustSignal()
"""A waiter gave up because the locks wait for each other in a circle; `lock_refused` is sent as well."""
lock_released = RobustSignal()
"""The backend has let a lock go, or will when its ttl ends (`kept`); an unanswered release sends nothing."""
lock_lost = RobustSignal()
"""A lease ended before its holder was done."""
lock_force_released = RobustSignal()
"""A hold was broken by force."""

lock_orphaned = RobustSignal()
"""The lock of a process that has died was released by another one on its host."""

Outcome = Literal[
    "acquired", "contended", "unavailable", "deadlock",
    "released", "kept", "lost", "force_released", "orphaned",
]  # fmt: skip

Renewal = Literal["renewed", "failed", "lost"]

Count = Literal["acquired", "refused", "deadlock", "lost", "ended"]
"""What is counted per minute."""

MOST_WAITING: Final = 10_000  # events that wait for slow receivers; new ones are dropped then, and logged
LAST_WORDS: Final = 2.0  # seconds for which the end of the process waits for receivers


class LockEvent(NamedTuple):
    """What happened to one lock; several names taken together send one event each.

    A tuple, because a frozen dataclass takes four times as long to make.

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
        holder: a refusal's reason: who has the lock, where the backend can tell; of an orphaned lock its
            dead process.
        template: what the names of its kind have in common, such as `order:<order_id>`; None where unknown.
        reason: of a deadlock, the circle in words.
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
    template: str | None = None
    reason: str | None = None
    at: float = 0.0
    thread: str = ""


# --- who hears at once ------------------------------------------------------------------------------------


class Observer:
    """Hears of everything at once, in the thread or task in which it happens: be quick.

    Subclass it, override what you need, and pass an instance to `observe`. What it raises is logged, and
    reaches neither the lock's user nor another observer.
    """

    def happened(self, event: LockEvent) -> None:
        """A lock was acquired, refused, released, kept, lost, force-released, or released for the dead."""

    def waiting(self, name: str, template: str | None, backend: str, change: int) -> None:
        """A caller began (`change` = 1) or ceased (-1) to wait for a lock that others have."""

    def renewed(self, backend: str, outcome: Renewal, leases: int) -> None:
        """The watchdog renewed that many leases in one batch, or didn't: `failed` ones are tried again."""

    def counted(self, backend: str, what: Count) -> None:
        """An acquisition or a hold came to its end; comes cheaper than `happened`, and must not raise."""

    def used(self, backend: BaseLockBackend) -> None:
        """A backend was built, or a guarded lock of it is about to be acquired."""

    def kept(self, owner: str, until: float) -> None:
        """A lock was left to its ttl, which ends at this Unix time."""


OBSERVERS: Final[dict[str, list[Callable[..., object]]]] = {
    name: [] for name in ("happened", "waiting", "renewed", "counted", "used", "kept")
}
"""The methods that observers have overridden, by name: what no observer hears of costs nothing."""

HAPPENED, COUNTED = OBSERVERS["happened"], OBSERVERS["counted"]


def observe(observer: Observer) -> None:
    """Register an observer. Idempotent."""
    for name, methods in OBSERVERS.items():
        method = getattr(observer, name)
        if getattr(method, "__func__", None) is not getattr(Observer, name) and method not in methods:
            methods.append(method)


def stop_observing(observer: Observer) -> None:
    """Unregister an observer, if it is registered."""
    for name, methods in OBSERVERS.items():
        if (method := getattr(observer, name)) in methods:
            methods.remove(method)


def tell(what: str, *facts: object) -> None:
    """Call this method of all observers; what one raises is logged."""
    for method in OBSERVERS[what]:
        try:
            method(*facts)
        except Exception:
            logger.exception("the observer %r of locks failed", method)


def is_heard(signal: Signal, level: int) -> bool:
    """Return True if an event of this level has listeners, without which none is made."""
    return bool(HAPPENED or signal.receivers) or events_logger.isEnabledFor(level)


def notify(signal: Signal, **fields: Any) -> None:
    """Announce an event to observers, the log and the receivers of `signal`, where there are any."""
    level = LEVELS[signal]
    if is_heard(signal, level) or (signal is lock_deadlocked and lock_refused.receivers):
        publish(signal, level, **fields)


def publish(signal: Signal, level: int, **fields: Any) -> None:
    """Announce the event with these fields, of this moment in this thread."""
    at, thread = time.time(), threading.current_thread().name  # noqa: TID251 shown
    event = LockEvent(at=at, thread=thread, **fields)
    tell("happened", event)
    if events_logger.isEnabledFor(level):
        facts = event._asdict()
        extra = {f"lock_{name}": value for name, value in facts.items() if name not in ("at", "thread")}
        events_logger.log(level, SENTENCES[event.outcome], facts | {"lock": event.name}, extra=extra)
    for each in (signal, lock_refused) if signal is lock_deadlocked else (signal,):  # it is a refusal, too
        if each.receivers:
            _dispatcher.put(each, event)


# --- the log ----------------------------------------------------------------------------------------------

LEVELS: Final[dict[Signal, int]] = {
    lock_refused: logging.INFO,
    lock_deadlocked: logging.WARNING,
    lock_lost: logging.WARNING,
    lock_force_released: logging.WARNING,
    lock_orphaned: logging.WARNING,
}

LONG_WAIT: Final = 5.0
"""Seconds after which an acquisition is logged at INFO, as a hold is that lasted longer than its ttl."""

SENTENCES: Final[dict[Outcome, str]] = {
    "acquired": "acquired the lock %(lock)r on backend %(backend)r after %(waited).3f s",
    "contended": "the lock %(lock)r on backend %(backend)r was not free within %(waited).3f s",
    "unavailable": "the lock %(lock)r could not be acquired: backend %(backend)r failed after %(waited).3f s",
    "deadlock": "gave up the lock %(lock)r on backend %(backend)r after %(waited).3f s: %(reason)s",
    "released": "released the lock %(lock)r on backend %(backend)r after %(held).3f s",
    "kept": "left the lock %(lock)r on backend %(backend)r to its ttl (%(ttl)g s) after %(held).3f s",
    "lost": "lost the lock %(lock)r (ttl %(ttl)g s) on backend %(backend)r",
    "force_released": "the lock %(lock)r on backend %(backend)r was taken from %(owner)s by force",
    "orphaned": "released the lock %(lock)r on backend %(backend)r, whose process %(holder)s has died",
}


# --- the queue of the receivers ---------------------------------------------------------------------------


class Dispatcher:
    """Sends queued events from one thread, which starts with the first of them."""

    def __init__(self) -> None:
        self._worker = Worker("locking-call-receivers", self._send_queued)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child's parent sends its own events."""
        self._queue: deque[tuple[Signal, LockEvent] | threading.Event] = deque()

    def put(self, signal: Signal, event: LockEvent) -> None:
        """Queue an event; never blocks."""
        if len(self._queue) >= MOST_WAITING:
            logger.error(
                "receivers of lock signals are too slow: dropped %s of %r", event.outcome, event.name
            )
            return
        self._queue.append((signal, event))
        self._worker.wake()

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until every event so far was sent; for tests and for the end of a process.

        Args:
            timeout: seconds to wait at most.

        Returns:
            False when receivers were still busy after that time.
        """
        thread = self._worker.thread
        if (not self._queue and thread is None) or thread is threading.current_thread():
            return True
        self._queue.append(reached := threading.Event())
        return self._worker.wake() and reached.wait(timeout)

    def _send_queued(self) -> float:
        """Send everything that is queued, then sleep until more is."""
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, threading.Event):
                item.set()
                continue
            signal, event = item
            try:
                signal.send_robust(sender=LockEvent, event=event)  # logs what a receiver raises
                close_old_connections()  # this thread has no request whose end would do so
            except Exception:  # the thread must outlive a broken connection too
                logger.exception("sending %s of the lock %r failed", event.outcome, event.name)
        return math.inf


_dispatcher: Final = Dispatcher()


flush = _dispatcher.flush
atexit.register(flush, LAST_WORDS)
