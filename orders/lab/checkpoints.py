"""Named points in a sale where a test, the race or the step mode may look, wait, or stop.

Every strategy calls `checkpoint` between its small steps. Outside the lab no hook is installed and a
checkpoint costs one look-up. The names, in the order of their use:

    waiting    about to wait for a lock
    locked     the lock is held (facts: its fencing token and its ttl, where the strategy relies on them)
    fenced     the fence in the database has let the holder pass
    read       the stock was read
    decided    there is enough of it (a refused buyer never comes here)
    written    the new stock was written, not committed yet
    recorded   order, items and movements were written, not committed yet
    committed  the transaction is over and visible to all
    unlocked   the lock was released

A sound strategy commits before it unlocks. `early_release` has the last two the other way round.

Four names are outside this order: `second_line`, where the database refused what the lock should have
prevented, `stale_token`, where the fence refused an overtaken holder, `lost`, where a holder noticed the end
of its lease, and `deadlocked`, where one of the buyers that waited for each other was made to give up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Hook(Protocol):
    """Called at each checkpoint with its name and the facts known there (`sku`, `lock`, `on_hand` …)."""

    def __call__(self, name: str, /, **facts: object) -> None:
        """Look, wait or raise."""


_hook: ContextVar[Hook | None] = ContextVar("inventory_checkpoint_hook", default=None)


def checkpoint(name: str, /, **facts: object) -> None:
    """Tell the hook of this context, if there is one, that the sale has come to `name`.

    Args:
        name: one of the names above.
        facts: what is known here, for example `on_hand={"mug": 3}`.

    Raises:
        Whatever the hook raises: a test ends a buyer in mid-sale that way.
    """
    hook = _hook.get()
    if hook is not None:
        hook(name, **facts)


@contextmanager
def installed(hook: Hook) -> Iterator[None]:
    """Let `hook` see the checkpoints of this thread or task (new threads begin without one) inside the block.

    Example:
        >>> with installed(lambda name, **facts: print(name)):
        ...     checkpoint("read")
        read
    """
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)
