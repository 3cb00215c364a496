"""Group commit: the first caller does the work of all that wait behind it.

No thread is kept for it and nobody polls. The first caller leads: it takes those who wait, does their work in
one go, wakes each with its own answer, and hands the lead to the first of those who came meanwhile. A leader
leads once, so nobody works for others without end.

A batch sizes itself. Buyers that were here a moment ago, in the batch before or in the queue behind it, are
likely to be back, and each that is left out costs a commit more: so a leader waits until as many are here
again, but no longer after that batch than a commit takes. A buyer who is alone waits for nobody.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final
from weakref import WeakSet

from inventory.checkpoints import checkpoint
from inventory.domain import Busy
from inventory.progress import OutcomeUnknown
from inventory.strategies.base import Sale

LONGEST_WAIT: Final = 0.05
"""Seconds that a leader waits at most for others, however slow the commits are."""

SMOOTHING: Final = 8
"""The duration of a commit is averaged over about so many."""


class Ticket:
    """One caller's place in the queue, and its answer.

    Attributes:
        sale: what it wants. error: why it didn't get it; None when it did.
        leads: it is this caller's turn to work. settled: the work is done for good, committed, and whatever
            happens to the leader after that is no longer this caller's answer.
    """

    __slots__ = ("error", "leads", "sale", "settled", "wake")

    def __init__(self, sale: Sale) -> None:
        self.sale = sale
        self.error: BaseException | None = None
        self.leads = False
        self.settled = False
        self.wake = threading.Lock()
        self.wake.acquire()


Work = Callable[[list[Ticket]], None]
"""Does the work of a batch, all or nothing, and sets the `error` of those who are refused."""


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
        _combiners.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._arrived = threading.Condition(self._mutex)
        self._queue: deque[Ticket] = deque()
        self._led = False
        self._expected = 0
        self._ended = -math.inf
        self._commit_seconds = 0.0

    def submit(self, sale: Sale, wait: float) -> None:
        """Have `sale` done, by this thread or another; return when it is.

        Args:
            sale: the work.
            wait: seconds to wait until somebody begins with it; after that it is seen through.

        Raises:
            Busy: nobody began in time, or the leader was stopped before the commit.
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

    def _enter(self, ticket: Ticket) -> bool:
        with self._mutex:
            self._queue.append(ticket)
            ticket.leads, self._led = not self._led, True
            if self._is_complete():
                self._arrived.notify()
            return ticket.leads

    def _follow(self, ticket: Ticket, wait: float) -> None:
        checkpoint("waiting", lock="combined")
        if ticket.wake.acquire(timeout=wait):
            return
        if self._leave(ticket):
            raise Busy(f"nobody began with this sale for {wait:g} s")
        ticket.wake.acquire()

    def _leave(self, ticket: Ticket) -> bool:
        """Take a ticket out of the queue, its lead handed on; False when somebody has begun with it."""
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
            _answer(batch or [self._withdrawn(ticket)], error)
        finally:
            self._learn(len(batch), monotonic() - begun)
            self._hand_off()
            for served in batch:
                served.wake.release()

    def _gather(self, batch: list[Ticket]) -> None:
        """Fill `batch` with those who wait, once as many are here as before or it has taken too long."""
        with self._mutex:
            left = self._ended + min(self._commit_seconds, LONGEST_WAIT) - monotonic()
            self._arrived.wait_for(self._is_complete, max(0.0, left))
            while self._queue and len(batch) < self._most:
                batch.append(self._queue.popleft())

    def _withdrawn(self, ticket: Ticket) -> Ticket:
        """Take a leader out of the queue that was stopped before it had a batch."""
        with self._mutex:
            self._queue.remove(ticket)
        return ticket

    def _is_complete(self) -> bool:
        return len(self._queue) >= min(self._expected, self._most)

    def _learn(self, size: int, seconds: float) -> None:
        """Note who will be expected, and how long the commit has taken."""
        with self._mutex:
            self._expected, self._ended = size + len(self._queue), monotonic()
            self._commit_seconds += (seconds - self._commit_seconds) / SMOOTHING

    def _hand_off(self) -> None:
        with self._mutex:
            self._led = bool(self._queue)
            if self._led:
                self._queue[0].leads = True
                self._queue[0].wake.release()


def _answer(batch: list[Ticket], error: BaseException) -> None:
    """Give each of the batch the error; the leader's own end tells the others what is known."""
    batch[0].error = error
    for ticket in batch[1:]:
        if not (ticket.settled or ticket.sale.progress.committed):
            ticket.error = error if isinstance(error, Exception) else _stopped(ticket.sale)


def _stopped(sale: Sale) -> Exception:
    """Return what to tell a follower whose leader was stopped before it was answered."""
    if sale.progress.written:
        return OutcomeUnknown("the buyer that worked for this one was stopped in the commit")
    return Busy("the buyer that worked for this one was stopped")


_combiners: WeakSet[GroupCommit] = WeakSet()


def _reset_all() -> None:
    for group_commit in _combiners:
        group_commit._reset()


# The child of a fork has none of the threads that wait or lead, and must not wait for them.
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_reset_all)
