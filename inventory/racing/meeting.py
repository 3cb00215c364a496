"""Where the buyers of a race meet, across threads and processes."""

from __future__ import annotations

import time
from multiprocessing.context import BaseContext
from typing import Any, Final

QUIET_SECONDS: Final = 1.0
"""How long nothing may happen in the whole race until those who have come to a meeting go on."""
ALONE_SECONDS: Final = 0.02
"""The same once the code has shown that it lets one buyer at a time come so far."""
RUNNING, WAITING, DONE = 0, 1, 2


class Meeting:
    """Holds each buyer right before its first write to a table, until all others are there or can't come.

    A buyer behind a lock of the code's own can't come: when nothing happens for a while, those who wait go
    on. So code that is right isn't stopped, and what is read before a write is read before anyone writes.
    """

    def __init__(self, context: BaseContext, buyers: int, quiet: float = QUIET_SECONDS) -> None:
        self._changed: Any = context.Condition()
        self._states: Any = context.Array("b", [RUNNING] * buyers, lock=False)
        self._opened: Any = context.Value("i", 0, lock=False)
        self._alone: Any = context.Value("i", 0, lock=False)
        self._last: Any = context.Value("d", time.monotonic(), lock=False)
        self._quiet = quiet

    def touch(self) -> None:
        """Note that something happens in the race."""
        self._last.value = time.monotonic()

    def leave(self, buyer: int) -> None:
        """Note that a buyer is done: the others no longer wait for it."""
        with self._changed:
            self._states[buyer] = DONE
            self.touch()
            self._changed.notify_all()

    def attend(self, buyer: int) -> None:
        """Wait until all other buyers wait as well, are done, or can't come."""
        with self._changed:
            opened = self._opened.value
            self._states[buyer] = WAITING
            self.touch()
            self._changed.notify_all()
            while self._opened.value == opened:
                patience = ALONE_SECONDS if self._alone.value > 1 else self._quiet
                left = self._last.value + patience - time.monotonic()
                if RUNNING not in self._states[:] or left <= 0:
                    self._open()
                else:
                    self._changed.wait(left)

    def _open(self) -> None:
        there = [buyer for buyer, state in enumerate(self._states) if state == WAITING]
        alone = len(there) == 1 and RUNNING in self._states[:]
        self._alone.value = self._alone.value + 1 if alone else 0
        for buyer in there:
            self._states[buyer] = RUNNING
        self._opened.value += 1
        self.touch()
        self._changed.notify_all()
