"""On which line of its strategy a buyer stands: looked up only while somebody watches the checkpoints."""

from __future__ import annotations

import inspect
import sys

from inventory.strategies import STRATEGIES


def strategy_file(name: str) -> str:
    """The file in which a strategy is written."""
    return inspect.getfile(STRATEGIES[name])


def line_in(file: str) -> int | None:
    """The line of `file` on which the caller, or a caller of that, is; None if none of them is there.

    The innermost wins: a helper in the strategy's own file before the method that called it.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None
