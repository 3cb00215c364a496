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
from typing import Final

from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

RETRY_PAUSE: Final = 0.5
"""Seconds until an end that the engine didn't hear, or that waits for a request under way, is tried again."""


@dataclass(slots=True, eq=False)
class LocalLease:
    """One hold: its node on the engine, and the moment (`clock.now()`) at which it ends.

    Attributes:
        node: where it is on the engine.
        token: its fencing token.
        deadline: when it ends.
        session: the engine's session or lease that it depends on.
        length: seconds that the engine's lease lasts without renewal, where it has one.
        permits: of a semaphore, as many as its entry says.
        over: it has ended, though the engine may not have heard yet.
        mutex: the requests about this hold are sent one after the other.
    """

    node: str
    token: int
    deadline: float
    session: int = 0
    length: int = 0
    permits: int = 0
    over: bool = field(default=False, init=False)
    mutex: threading.Lock = field(default_factory=threading.Lock, init=False)


class LeaseExpirer:
    """The holds of one backend; its thread starts with the first.

    Args:
        end: tells the engine that a hold is over; when it raises, it is called again.
        beat: called every `pause()` seconds while there are holds.
        pause: seconds between two beats; asked again each time.
        rest: called when the last hold has gone.
    """

    def __init__(
        self,
        end: Callable[[str, LocalLease], object],
        beat: Callable[[], None] = lambda: None,
        pause: Callable[[], float] = lambda: math.inf,
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        self._end, self._beat, self._pause, self._rest = end, beat, pause, rest
        self._worker = Worker("locking-renew-expiry", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child has none of its parent's holds."""
        self._mutex = threading.Lock()
        self._beat_at = 0.0
        self._holds: dict[tuple[str, str], LocalLease] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, key: str, owner: str, hold: LocalLease) -> None:
        """Watch over `hold` from now on."""
        with self._mutex:
            self._holds[key, owner] = hold
        self._worker.wake()

    def get(self, key: str, owner: str) -> LocalLease | None:
        """Return the hold, if it isn't over."""
        hold = self._holds.get((key, owner))
        return hold if hold is not None and not hold.over and hold.deadline > now() else None

    def discard(self, key: str, owner: str, hold: LocalLease) -> None:
        """Forget this very hold, and no newer one of the same owner."""
        with self._mutex:
            if self._holds.get((key, owner)) is hold:
                del self._holds[key, owner]
            is_last = not self._holds
        if is_last:
            self._rest()

    def extend(
        self, key: str, owner: str, ttl: float, ask: Callable[[LocalLease, float], bool], *, exactly: bool
    ) -> bool:
        """Have a hold last `ttl` seconds from now, at least or `exactly`; False when it is over.

        Args:
            ask: extends it on the engine to the seconds that it is given; one at a time per hold.
        """
        hold = self.get(key, owner)
        if hold is None:
            return False
        try:
            with hold.mutex:
                sent = now()
                seconds = ttl if exactly else max(ttl, hold.deadline - sent)
                held = not hold.over and ask(hold, seconds)
                if held:  # before the next one compares
                    hold.deadline = sent + seconds
        finally:
            self._worker.wake()
        if not held and not hold.over:
            self.discard(key, owner, hold)
        return held

    def _step(self) -> float:
        """Ask for the session if it is time, end what is due, and return when to look again."""
        with self._mutex:
            holds = list(self._holds.items())
        if holds and now() >= self._beat_at:
            self._beat_at = now() + self._pause()
            self._beat()
        for at, hold in holds:
            # It doesn't end while a request about it is under way, whose end wakes the thread.
            if hold.deadline <= now() and hold.mutex.acquire(blocking=False):
                try:
                    if hold.deadline <= now():  # it wasn't extended just now
                        self._finish(*at, hold)
                finally:
                    hold.mutex.release()
        with self._mutex:
            again = now() + RETRY_PAUSE
            moments = [hold.deadline if hold.deadline > now() else again for hold in self._holds.values()]
        return min([*moments, self._beat_at]) if moments else math.inf

    def _finish(self, key: str, owner: str, hold: LocalLease) -> None:
        hold.over = True
        try:
            self._end(key, hold)
        except Exception as error:  # one that can't be ended must not keep the others from their end
            message = "ending the lease of %r failed (%r); it is tried again"
            log_rarely(logger, logging.WARNING, ("end", key), message, key, error)
        else:
            self.discard(key, owner, hold)
