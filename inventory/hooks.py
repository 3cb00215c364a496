"""One hook through which a lesson or a test stops a sale between two steps.

Strategies call `reach` with the name of each step; without a hook it does nothing. The names, in order:
`waiting` `locked` `read` `decided` `written` `recorded` `committed` `unlocked`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Hook(Protocol):
    """Called with the name of each step and the facts known there."""

    def __call__(self, name: str, /, **facts: object) -> None:
        """Look, wait or raise."""


_hook: ContextVar[Hook | None] = ContextVar("inventory_hook", default=None)


def reach(name: str, /, **facts: object) -> None:
    """Call the hook of this context, where there is one."""
    hook = _hook.get()
    if hook is not None:
        hook(name, **facts)


@contextmanager
def installed(hook: Hook) -> Iterator[None]:
    """Call `hook` at each step that this thread or task reaches inside the block."""
    token = _hook.set(hook)
    try:
        yield
    finally:
        _hook.reset(token)
