"""Client-side expiry of holds, for engines without sub-second leases.

ZooKeeper binds a hold to a session and etcd counts whole seconds; the ttl that was asked for is kept here, by
the holder's process: a thread ends each hold at its deadline, unless that was moved. If the process is killed
or frozen, the engine ends the hold by its own means.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from locking.exceptions import LockError
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

RETRY_PAUSE: Final = 0.5
"""Seconds until an end that the engine didn't hear is sent again."""


@dataclass(slots=True, eq=False)
class LocalLease:
    """One hold: its node on the engine, and the moment (`clock.now()`) at which it ends.

    Attributes:
        node: where it stands on the engine.
        token: its fencing token.
        deadline: when it ends.
        session: the engine's session or lease that it depends on.
        length: seconds that the engine's lease lasts without renewal, where it has one.
        prolonging: requests under way that may move the deadline.
        over: it has ended, though the engine may not have heard yet.
        mutex: held by an engine that must send the requests about this hold one after the other.
    """

    node: str
    token: int
    deadline: float
    session: int = 0
    length: int = 0
    prolonging: int = field(default=0, init=False)
    over: bool = field(default=False, init=False)
    mutex: threading.Lock = field(default_factory=threading.Lock, init=False)


Hold = TypeVar("Hold", bound=LocalLease)


class LeaseExpirer(Generic[Hold]):
    """The holds of one backend; its thread starts with the first.

    Args:
        end: tells the engine that a hold is over; may raise LockError, and is then called again.
        beat: called every `pause()` seconds while there are holds.
        pause: seconds between two beats; asked again each time.
    """

    def __init__(
        self,
        end: Callable[[str, Hold], object],
        beat: Callable[[], None] | None = None,
        pause: Callable[[], float] = lambda: 3600.0,
    ) -> None:
        self._end, self._beat, self._pause = end, beat, pause
        self._worker = Worker("locking-renew-expiry", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child has none of its parent's holds."""
        self._mutex = threading.Lock()
        self._beat_at = 0.0
        self._holds: dict[tuple[str, str], Hold] = {}

    def add(self, key: str, owner: str, hold: Hold) -> None:
        """Watch over `hold` from now on."""
        with self._mutex:
            self._holds[key, owner] = hold
        self._worker.wake()

    def get(self, key: str, owner: str) -> Hold | None:
        """Return the hold, if it isn't over."""
        with self._mutex:
            return self._live(key, owner)

    def pop(self, key: str, owner: str) -> Hold | None:
        """Forget the hold and return it, if it wasn't over."""
        with self._mutex:
            hold = self._live(key, owner)
            if hold is not None:  # what is over stays until the engine has heard
                del self._holds[key, owner]
            return hold

    def begin(self, key: str, owner: str) -> Hold | None:
        """Return the hold and keep it from ending until `settle` is called; None if it is over."""
        with self._mutex:
            hold = self._live(key, owner)
            if hold is not None:
                hold.prolonging += 1
            return hold

    def settle(self, hold: Hold, deadline: float | None, *, exactly: bool = False) -> None:
        """Move the deadline, but `exactly` to no earlier moment; with None leave it where it is."""
        if deadline is not None:
            self._move(hold, deadline, exactly=exactly)
        with self._mutex:
            hold.prolonging -= 1
        self._worker.wake()

    def _move(self, hold: Hold, deadline: float, *, exactly: bool) -> None:
        with self._mutex:
            hold.deadline = deadline if exactly else max(hold.deadline, deadline)

    def extend(
        self, key: str, owner: str, ttl: float, ask: Callable[[Hold, float], bool], *, exactly: bool = False
    ) -> bool:
        """Have a hold last `ttl` seconds from now, at least or `exactly`.

        Args:
            ask: extends it on the engine to the seconds that it is given; one at a time per hold.

        Returns:
            False when the hold is over.
        """
        hold = self.begin(key, owner)
        if hold is None:
            return False
        try:
            with hold.mutex:
                sent = now()
                seconds = ttl if exactly else max(ttl, hold.deadline - sent)
                held = ask(hold, seconds)
                if held:  # before the next one compares
                    self._move(hold, sent + seconds, exactly=exactly)
        finally:
            self.settle(hold, None)
        if not held:
            self.discard(key, owner, hold)
        return held

    def __len__(self) -> int:
        with self._mutex:
            return len(self._holds)

    def _live(self, key: str, owner: str) -> Hold | None:
        hold = self._holds.get((key, owner))
        return hold if hold is not None and not hold.over and hold.deadline > now() else None

    def _step(self) -> float:
        """End what is due, ask for the session if it is time, and return when to look again."""
        if self._beat is not None and now() >= self._beat_at and len(self):
            self._beat_at = now() + self._pause()
            self._beat_once(self._beat)
        for key, owner, hold in self._due():
            self._finish(key, owner, hold)
        return self._next_due()

    @staticmethod
    def _beat_once(beat: Callable[[], None]) -> None:
        try:
            beat()
        except Exception:  # as below
            logger.exception("asking for the session failed and is tried again")

    def _due(self) -> list[tuple[str, str, Hold]]:
        """Return what has ended, marked as over."""
        with self._mutex:
            moment = now()
            due = [(*at, hold) for at, hold in self._holds.items() if hold.deadline <= moment]
            due = [item for item in due if not item[2].prolonging]
            for _, _, hold in due:
                hold.over = True
            return due

    def _finish(self, key: str, owner: str, hold: Hold) -> None:
        try:
            self._end(key, hold)
        except LockError as error:
            message = "ending the lease of %r failed (%s); it is tried again"
            log_rarely(logger, logging.WARNING, ("end", key), message, key, error)
            hold.deadline = now() + RETRY_PAUSE
        except Exception:  # the thread must outlive every surprise: without it no lease ends in time
            logger.exception("ending the lease of %r failed and is tried again", key)
            hold.deadline = now() + RETRY_PAUSE
        else:
            self.discard(key, owner, hold)

    def discard(self, key: str, owner: str, hold: Hold) -> None:
        """Forget this very hold, and no newer one of the same owner."""
        with self._mutex:
            if self._holds.get((key, owner)) is hold:
                del self._holds[key, owner]

    def _next_due(self) -> float:
        with self._mutex:
            # One that is overdue waits for a request under way: its `settle` wakes the thread.
            moments = [hold.deadline for hold in self._holds.values() if not hold.prolonging]
            if self._beat is not None and self._holds:
                moments.append(self._beat_at)
            return min(moments, default=math.inf)
