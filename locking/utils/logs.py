"""Log records that an outage would repeat many times a second: one per minute, with the number left out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from locking.utils.background import after_fork
from locking.utils.clock import now

PERIOD: Final = 60.0  # seconds between two records of one trouble
MOST: Final = 1_000  # troubles that are remembered; beyond that all are forgotten, and each is logged again


@dataclass(slots=True)
class _Trouble:
    since: float
    logged: float
    left_out: int = 0


TROUBLES: Final[dict[Hashable, _Trouble]] = {}
"""What is wrong at the moment; nearly always nothing, and then a caller needs no `available`."""
_mutex = threading.Lock()
after_fork(_mutex._at_fork_reinit)  # type: ignore[attr-defined]
after_fork(TROUBLES.clear)  # a forked child logs its own


def log_rarely(
    logger: logging.Logger, level: int, trouble: Hashable, message: str, *values: object, **fields: object
) -> None:
    """Log a record with these `fields`, unless one of the same trouble was logged within the last minute."""
    # Its attribute `lock_repeated` says how many were left out before.
    with _mutex:
        if len(TROUBLES) >= MOST:
            TROUBLES.clear()
        moment = now()
        known = TROUBLES.setdefault(trouble, _Trouble(moment, moment - PERIOD))
        if moment < known.logged + PERIOD:
            known.left_out += 1
            return
        left_out, known.left_out, known.logged = known.left_out, 0, moment
    more = f" ({left_out} more since the last record)" if left_out else ""
    logger.log(level, f"{message}%s", *values, more, extra={**fields, "lock_repeated": left_out})


def unavailable(logger: logging.Logger, alias: str, error: Exception) -> None:
    """Log at ERROR, once per alias and minute, that a backend does not answer, or only with errors."""
    message = "the lock backend %r fails: %s"
    log_rarely(logger, logging.ERROR, ("unavailable", alias), message, alias, error, lock_backend=alias)


def available(logger: logging.Logger, alias: str) -> None:
    """Log the end of an outage, if there was one."""
    with _mutex:
        ended = TROUBLES.pop(("unavailable", alias), None)
    if ended is not None:
        message = "the lock backend %r answers again, %.1f s after its first failure"
        logger.warning(message, alias, now() - ended.since)
