"""Ghosts: holds that their taker knows nothing of, released wherever they turn up.

An acquisition whose reply never came may still take effect later, on a server that was only paused. A release
that found nobody is made up for in the same way. A thread of its own does it, which lasts as long as there is
something to bury: a server that doesn't answer must not keep the watchdog from renewing other leases.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from enum import Enum

from locking.backends.base import BaseLockBackend
from locking.background import Worker, after_fork
from locking.clock import now
from locking.exceptions import LockError
from locking.lease import Lease

logger = logging.getLogger("locking")

RETRY_PAUSE = 0.5
"""Seconds between attempts while a backend doesn't answer."""

SETTLING = 0.1
"""Seconds after which a server that answers again has surely worked off what it had received before."""


class Found(Enum):
    """What came of one attempt."""

    GONE = "it can't come back"
    ANSWERED = "to be sought once more"
    SILENCE = "nobody answers"


@dataclass(slots=True, eq=False)
class Ghost:
    """An acquisition of unknown outcome, to be released wherever it turns up."""

    backend: BaseLockBackend
    key: str
    owner: str
    until: float
    answered_at: float | None = None
    next_try: float = 0.0


class Line:
    """The ghosts of one backend, in the order in which they are sought.

    An outage may leave thousands of them. While nobody answers, one attempt stands for all, and each time
    another ghost makes it, so that a server of a cluster that stays away keeps no other's from being buried.
    """

    def __init__(self) -> None:
        self.ghosts: deque[Ghost] = deque()
        self._silent_until = 0.0

    def due(self) -> float:
        """Return when the next attempt is to be made."""
        return max(self._silent_until, self.ghosts[0].next_try)

    def settle(self, ghost: Ghost, found: Found) -> None:
        """Strike the first ghost or put it last; it may have been forgotten meanwhile."""
        if not self.ghosts or self.ghosts[0] is not ghost:
            return
        self.ghosts.popleft()
        if found is not Found.GONE:
            self.ghosts.append(ghost)
        if found is Found.SILENCE:
            self._silent_until = now() + RETRY_PAUSE
            self.ghosts = deque(each for each in self.ghosts if each.until > now())


class Undertaker:
    """Buries ghosts, one at a time."""

    def __init__(self) -> None:
        self._worker = Worker("locking-burial", self._step)
        self.reset()

    def reset(self) -> None:
        """Start from nothing; a forked child has none of its parent's ghosts."""
        self._mutex = threading.Lock()
        self._lines: dict[BaseLockBackend, Line] = {}

    def bury(self, backend: BaseLockBackend, key: str, owner: str, ttl: float) -> None:
        """Release `owner`'s hold of `key`, should it appear within `ttl` seconds of the backend's next
        answer.
        """
        ghost = Ghost(backend, key, owner, until=now() + max(ttl, 60.0))
        with self._mutex:
            self._lines.setdefault(backend, Line()).ghosts.append(ghost)
        self._worker.wake()

    def let_go_later(self, lease: Lease) -> None:
        """Release what its user has given up and an outage kept taken, once the backend answers again."""
        for single in lease.leases:
            # Under a shared name it may be another's by then, and a min_hold isn't over yet.
            if single.unreleased and not single.shared_name and not single.min_hold:
                self.bury(single.backend, single.key, single.owner, single.ttl)

    def forget(self) -> None:
        """Let all ghosts be; their leases end by themselves."""
        with self._mutex:
            for line in self._lines.values():
                line.ghosts.clear()
        if self._worker.running:
            self._worker.wake()

    def _step(self) -> float | None:
        """Seek the next ghost that is due; return when the next will be, None when none is left."""
        with self._mutex:
            waiting = [line for line in self._lines.values() if line.ghosts]
            if not waiting:
                self._lines.clear()
                return None
            line = min(waiting, key=Line.due)
            if line.due() > now():
                return line.due()
            ghost = line.ghosts[0]
        found = _sought(ghost)
        with self._mutex:
            line.settle(ghost, found)
        return now()


def _sought(ghost: Ghost) -> Found:
    try:
        return exorcise(ghost)
    except Exception:  # the thread must outlive every surprise: the next ghost is another one
        logger.exception("releasing %r for a holder that never was failed and is tried again", ghost.key)
        return Found.SILENCE


def exorcise(ghost: Ghost) -> Found:
    """Try to release a ghost.

    A paused server works off what it had received in no given order, so one answer isn't proof: a second one
    a little later is.
    """
    try:
        ghost.backend.release(ghost.key, ghost.owner)
    except LockError:
        return Found.SILENCE
    if ghost.answered_at is not None:
        return Found.GONE
    ghost.answered_at = now()
    ghost.next_try = ghost.answered_at + SETTLING
    return Found.ANSWERED


undertaker = Undertaker()
after_fork(undertaker.reset)
