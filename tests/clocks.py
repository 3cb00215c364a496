"""A process whose wall clock is wrong, as a worker on a host without NTP has it."""

from __future__ import annotations

import datetime as real
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.utils import timezone


@contextmanager
def wall_clock_off(hours: float) -> Iterator[None]:
    """Let this process's wall clock be `hours` ahead (behind if negative) for the block.

    Django's `timezone.now` and `time.time` are wrong then; the database's clock and the monotonic one aren't.
    """
    difference = real.timedelta(hours=hours)
    right_time = time.time

    class WrongDatetime(real.datetime):
        """Tells the wrong time, wherever `timezone.now` was imported or made a model's default."""

        @classmethod
        def now(cls, tz: real.tzinfo | None = None) -> real.datetime:  # type: ignore[override]
            """Return the wrong time."""
            return real.datetime.now(tz) + difference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timezone, "datetime", WrongDatetime)
        patch.setattr(time, "time", lambda: right_time() + difference.total_seconds())
        yield
