"""Pauses between attempts, as pure functions."""

from __future__ import annotations

import random


def exponential(attempt: int, *, first: float = 0.005, cap: float = 0.25) -> float:
    """Return the seconds before attempt number `attempt` (from 0): doubled each time, up to `cap`."""
    return float(min(cap, first * 2 ** min(attempt, 30)))


def jittered(attempt: int, *, first: float = 0.005, cap: float = 0.25) -> float:
    """Return an exponential pause with *equal jitter*: half of it fixed, half random.

    Without the random half, waiters that were refused together would come back together. Source: M. Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """
    pause = exponential(attempt, first=first, cap=cap)
    return pause / 2 + random.uniform(0, pause / 2)  # noqa: S311 - spreads load, hides nothing
