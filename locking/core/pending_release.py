"""Releases acquisitions whose outcome is unknown.

A request whose reply never came may still take effect later, on a server that was only paused. A release
that was not answered is retried in the same way. The watchdog has another thread: a server that doesn't
answer must not keep it from renewing other leases.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass

from locking.backends.base import BaseLockBackend
from locking.exceptions import LockError
from locking.utils.background import after_fork, tidier
from locking.utils.clock import now

logger = logging.getLogger(__name__)

RETRY_PAUSE = 0.5  # seconds between attempts while a backend doesn't answer
CONFIRM_PAUSE = 0.1  # seconds after which a server that answers again has processed what came before


@dataclass(slots=True, eq=False)
class PendingRelease:
    """An acquisition of unknown outcome, to be released if it took effect."""

    backend: BaseLockBackend
    key: str
    owner: str
    until: float
    answers: int = 0  # one isn't proof: a paused server works off what it had received in no given order
    next_try: float = 0.0

    def attempt(self) -> bool:
        """Make one attempt; False when the backend does not answer."""
        try:
            self.backend.release(self.key, self.owner)
        except LockError:
            return False
        except Exception:  # the thread must outlive every surprise: the next release is another one
            logger.exception("the pending release of %r failed and is retried", self.key)
            return False
        self.answers, self.next_try = self.answers + 1, now() + CONFIRM_PAUSE
        return True


class ReleaseQueue:
    """The pending releases of one backend, in the order of their next attempts."""

    # An outage may leave thousands. While no server answers, one attempt stands for all, each time another's:
    # a server of a cluster that stays away keeps no other's from being released.

    def __init__(self) -> None:
        self.releases: deque[PendingRelease] = deque()
        self._unavailable_until = 0.0

    def due(self) -> float:
        """Return when the next attempt is to be made."""
        return max(self._unavailable_until, self.releases[0].next_try)

    def record(self, release: PendingRelease, *, answered: bool) -> None:
        """Remove the first release, or move it to the end."""
        self.releases.popleft()
        if release.answers < 2:
            self.releases.append(release)
        if not answered:
            self._unavailable_until = now() + RETRY_PAUSE
            self.releases = deque(each for each in self.releases if each.until > now())


class ReleaseRetrier:
    """Retries releases, one at a time."""

    def __init__(self) -> None:
        tidier.steps.append(self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing; a forked child has none of its parent's releases."""
        self._mutex = threading.Lock()
        self._queues: dict[BaseLockBackend, ReleaseQueue] = {}

    def schedule(self, backend: BaseLockBackend, key: str, owner: str, ttl: float) -> None:
        """Release `owner`'s hold of `key`, should it appear while the ttl lasts, or a minute."""
        release = PendingRelease(backend, key, owner, until=now() + max(ttl, 60.0))
        with self._mutex:
            self._queues.setdefault(backend, ReleaseQueue()).releases.append(release)
        tidier.wake()

    def _step(self) -> float | None:
        """Attempt the next release that is due; return when the next will be, None when none is left."""
        with self._mutex:
            waiting = [queue for queue in self._queues.values() if queue.releases]
            if not waiting:
                self._queues.clear()
                return None
            queue = min(waiting, key=ReleaseQueue.due)
            if queue.due() > now():
                return queue.due()
            release = queue.releases[0]
        answered = release.attempt()
        with self._mutex:
            queue.record(release, answered=answered)
        return now()


release_retrier = ReleaseRetrier()
