"""Group commit: the first caller does the work of all that wait behind it.

No thread is kept for it and nothing polls. The first caller leads: it takes those who wait, does their work
in one go, wakes each with its own answer, and hands the lead to the first of those who came meanwhile. A
leader leads once, so none works for others without end.

A batch sizes itself. Callers that were here a moment ago are likely to be back, and each that is left out
costs a commit more: so a leader waits until as many are here again, but no longer than a commit takes. A
caller who is alone waits for no other.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from inventory.exceptions import Busy, OutcomeUnknown
from inventory.hooks import reach

if TYPE_CHECKING:
    from inventory.strategies.base import Sale

LONGEST_WAIT: Final = 0.05
"""Seconds that a leader waits at most for others, however slow the commits are."""

SMOOTHING: Final = 8
"""The duration of a commit is averaged over about so many."""

LONGEST_WORK: Final = 60.0
"""Seconds after which a caller no longer waits for the leader that works for it."""


class Ticket:
    """One caller's place in the queue, and its answer.

    Attributes:
        sale: what it wants. error: why it didn't get it; None when it did.
        leads: it is this caller's turn to work. answered: it has its answer, whatever happens to the leader.
        alone: its own thread has to make the sale, beside no other.
    """

    __slots__ = ("alone", "answered", "error", "leads", "sale", "wake")

    def __init__(self, sale: Sale) -> None:
        self.sale = sale
        self.error: BaseException | None = None
        self.leads = self.answered = self.alone = False
        self.wake = threading.Lock()
        self.wake.acquire()


Work = Callable[[list[Ticket]], None]
"""Does the work of a batch: sets `answered` and, for those who are refused, `error`; or `alone`."""


class GroupCommit:
    """Queue, lead and hand over, for one process.

    Args:
        work: called by one thread at a time. When it raises, that is the answer of every caller of the batch.
        most: callers in a batch.
    """

    def __init__(self, work: Work, most: int = 64) -> None:
        self._work = work
        self._most = most
        self._reset()
        _instances.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._arrived = threading.Condition(self._mutex)
        self._queue: list[Ticket] = []
        self._led = False
        self._expected = 0
        self._ended = -math.inf
        self._commit_seconds = 0.0

    def submit(self, sale: Sale, wait: float) -> Ticket:
        """Have `sale` done, by this thread or another, and return its ticket when it is.

        Args:
            wait: seconds to wait until a leader begins with it; after that it is seen through.

        Raises:
            Busy: none began in time, or the leader was stopped before the commit.
            OutcomeUnknown: the leader was stopped in the commit.
            Exception: this caller's answer, or what the work of its batch raised.
        """
        ticket = Ticket(sale)
        try:
            if not self._enter(ticket):
                self._follow(ticket, wait)
            if ticket.leads:
                self._lead(ticket)
        except BaseException:  # a signal may come between any two steps; its lead would never end
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket

    def _enter(self, ticket: Ticket) -> bool:
        with self._mutex:
            self._queue.append(ticket)
            ticket.leads, self._led = not self._led, True
            if self._is_complete():
                self._arrived.notify()
            return ticket.leads

    def _follow(self, ticket: Ticket, wait: float) -> None:
        reach("waiting", lock="combined")
        if ticket.wake.acquire(timeout=wait):
            return
        if self._leave(ticket):
            raise Busy(f"no leader began with this sale for {wait:g} s")
        if not ticket.wake.acquire(timeout=LONGEST_WORK):
            raise OutcomeUnknown(ticket.sale.cause)

    def _leave(self, ticket: Ticket) -> bool:
        """Take a ticket out of the queue, its lead handed on; False when a leader has begun with it."""
        with self._mutex:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
        if ticket.leads:
            self._hand_off()
        return True

    def _lead(self, ticket: Ticket) -> None:
        batch: list[Ticket] = []
        begun = monotonic()
        try:
            self._gather(batch)
            begun = monotonic()
            self._work(batch)
        except BaseException as error:
            _answer(batch or [ticket], error)
        finally:
            self._learn(len(batch), monotonic() - begun)
            self._hand_off(done=batch or [ticket])
            for served in batch:
                served.wake.release()

    def _gather(self, batch: list[Ticket]) -> None:
        """Fill `batch` with those who wait, once as many are here as before or it has taken too long."""
        with self._mutex:
            left = self._ended + min(self._commit_seconds, LONGEST_WAIT) - monotonic()
            self._arrived.wait_for(self._is_complete, max(0.0, left))
            batch += self._queue[: self._most]
            del self._queue[: self._most]

    def _is_complete(self) -> bool:
        return len(self._queue) >= min(self._expected, self._most)

    def _learn(self, size: int, seconds: float) -> None:
        """Note who will be expected, and how long the commit has taken."""
        with self._mutex:
            self._expected, self._ended = size + len(self._queue), monotonic()
            self._commit_seconds += (seconds - self._commit_seconds) / SMOOTHING

    def _hand_off(self, done: list[Ticket] = []) -> None:  # noqa: B006 - never changed
        """Give the lead to who waits first; a signal may have left some of `done` in the queue."""
        with self._mutex:
            self._queue[:] = [ticket for ticket in self._queue if ticket not in done]
            self._led = bool(self._queue)
            if self._led:
                self._queue[0].leads = True
                self._queue[0].wake.release()


def _answer(batch: list[Ticket], error: BaseException) -> None:
    """Give each of the batch the error; the leader's own end tells the others what is known."""
    for place, ticket in enumerate(batch):
        if not ticket.answered:
            ticket.error = error if place == 0 else _error_for_follower(ticket, error)


def _error_for_follower(ticket: Ticket, error: BaseException) -> Exception:
    """Return an error of the caller's own: one object raised in two threads has the traceback of both."""
    if ticket.sale.written:
        unknown: Exception = OutcomeUnknown(ticket.sale.cause)
    else:
        unknown = Busy(f"the sale that led this one ended with {type(error).__name__}")
    unknown.__cause__ = error
    return unknown


_instances: WeakSet[GroupCommit] = WeakSet()


def _reset_all() -> None:
    for group_commit in _instances:
        group_commit._reset()


# The child of a fork has none of the threads that wait or lead, and must not wait for them.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_reset_all)
