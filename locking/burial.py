"""Ghosts: holds that their taker knows nothing of, released wherever they turn up.

An acquisition whose reply never came may still take effect later, on a server that was only paused. A release
that found nobody is made up for in the same way. A thread of its own does it, which lasts as long as there is
something to bury: a server that doesn't answer must not keep the watchdog from renewing other leases.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass

from locking.backends.base import BaseLockBackend
from locking.clock import now
from locking.exceptions import LockError
from locking.lease import Lease

logger = logging.getLogger("locking")

RETRY_PAUSE = 0.5
"""Seconds between attempts while a backend doesn't answer."""

SETTLING = 0.1
"""Seconds after which a server that answers again has surely worked off what it had received before."""


@dataclass(slots=True, eq=False)
class Ghost:
    """An acquisition of unknown outcome, to be released wherever it turns up."""

    backend: BaseLockBackend
    key: str
    owner: str
    until: float
    answered_at: float | None = None
    next_try: float = 0.0


class Undertaker:
    """Buries ghosts, one at a time."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from nothing; a forked child has neither the thread nor its parent's ghosts."""
        self._changed = threading.Condition(threading.Lock())
        self._ghosts: list[Ghost] = []
        self._thread: threading.Thread | None = None

    def bury(self, backend: BaseLockBackend, key: str, owner: str, ttl: float) -> None:
        """Release `owner`'s hold of `key`, should it appear within `ttl` seconds of the backend's next
        answer.
        """
        with self._changed:
            self._ghosts.append(Ghost(backend, key, owner, until=now() + max(ttl, 60.0)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="locking-burial", daemon=True)
                self._thread.start()
            self._changed.notify()

    def let_go_later(self, lease: Lease) -> None:
        """Release what its user has given up and an outage kept taken, once the backend answers again."""
        for single in lease.leases:
            # Under a shared name it may be another's by then, and a min_hold isn't over yet.
            if single.unreleased and not single.shared_name and not single.min_hold:
                self.bury(single.backend, single.key, single.owner, single.ttl)

    def forget(self) -> None:
        """Let all ghosts be; their leases end by themselves."""
        with self._changed:
            self._ghosts.clear()
            self._changed.notify()

    def _run(self) -> None:
        while ghost := self._next():
            if _gone(ghost):
                self._strike(ghost)

    def _next(self) -> Ghost | None:
        """Wait for the next that is due and return it; None, and the end of the thread, when none is left."""
        with self._changed:
            while self._ghosts:
                ghost = min(self._ghosts, key=lambda each: each.next_try)
                if (pause := ghost.next_try - now()) <= 0:
                    return ghost
                self._changed.wait(pause)
            self._thread = None
            return None

    def _strike(self, ghost: Ghost) -> None:
        with self._changed:
            if ghost in self._ghosts:  # it may have been forgotten meanwhile
                self._ghosts.remove(ghost)


def _gone(ghost: Ghost) -> bool:
    try:
        return exorcise(ghost)
    except Exception:  # the thread must outlive every surprise: the next ghost is another one
        logger.exception("releasing %r for a holder that never was failed and is tried again", ghost.key)
        ghost.next_try = now() + RETRY_PAUSE
        return now() >= ghost.until


def exorcise(ghost: Ghost) -> bool:
    """Try to release a ghost; True when it can't come back.

    A paused server works off what it had received in no given order, so one answer isn't proof: a second one
    a little later is.
    """
    ghost.next_try = now() + SETTLING
    with contextlib.suppress(LockError):
        ghost.backend.release(ghost.key, ghost.owner)
        if ghost.answered_at is not None:
            return True
        ghost.answered_at = now()
        return False
    ghost.next_try = now() + RETRY_PAUSE
    return now() >= ghost.until


undertaker = Undertaker()
os.register_at_fork(after_in_child=undertaker.reset)
