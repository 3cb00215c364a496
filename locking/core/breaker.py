"""A breaker per alias: while its server is silent, acquisitions are refused at once instead of hanging.

Renewals, releases and what cleans up are tried all the same: only new work is kept from piling up. Nothing is
sent by the breaker itself: about once a second one acquisition is let through, whose answer ends it.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import ManyServers
from locking.exceptions import BackendUnavailable
from locking.utils.background import after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

SLOW: Final = 0.1
"""Seconds after which a failure counts as silence; a closed port, which refuses at once, keeps no thread."""

PAUSE: Final = 1.0
"""Seconds for which acquisitions are refused before the next one is let through."""

LONGEST_TRY: Final = 15.0
"""Seconds after which another one is let through, should the one before have ended without a word."""

Where = tuple[str, object]


class Breaker:
    """The silent servers of this process, by alias and, in a cluster, by server."""

    def __init__(self) -> None:
        self.silent: dict[Where, float] = {}
        """When the next acquisition is let through; nearly always empty, and then a caller need not ask."""
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Know of no silent server: in a forked child, and between tests."""
        self.silent.clear()
        self._mutex = threading.Lock()

    def admit(self, backend: BaseLockBackend, key: str) -> None:
        """Let an acquisition through, or raise BackendUnavailable where the server was asked just now."""
        where = _where(backend, key)
        with self._mutex:
            if self.silent.get(where, 0.0) <= now():
                if where in self.silent:
                    self.silent[where] = now() + LONGEST_TRY
                return
        error = BackendUnavailable(
            f"the backend {backend.alias!r} did not answer lately, so nothing was sent to it; one acquisition"
            f" per {PAUSE:g} s tries again"
        )
        error.sent = False
        raise error

    def failed(self, backend: BaseLockBackend, key: str, after: float) -> None:
        """Note that an acquisition got no answer in so many seconds; `ended` follows its clean-up."""
        where = _where(backend, key)
        if after < SLOW:
            self.silent.pop(where, None)
            return
        self.silent[where] = now() + LONGEST_TRY
        message = "the lock backend %r is silent: acquisitions fail at once, but for one per %g s that tries"
        log_rarely(logger, logging.ERROR, ("silent", where), message, backend.alias, PAUSE)

    def ended(self, backend: BaseLockBackend, key: str) -> None:
        """Have the next one let through after the pause."""
        where = _where(backend, key)
        with self._mutex:
            if where in self.silent:
                self.silent[where] = now() + PAUSE

    def answered(self, backend: BaseLockBackend, key: str) -> None:
        """Note that the server is there."""
        self.silent.pop(_where(backend, key), None)


def _where(backend: BaseLockBackend, key: str) -> Where:
    server = backend.server_of(key) if isinstance(backend, ManyServers) else None
    return backend.settings.alias, server


breaker = Breaker()
