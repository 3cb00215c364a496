"""Where a strategy is written, and which line of it a buyer executes."""

from __future__ import annotations

import inspect
import sys

from orders.lab.strategies import STRATEGIES, Strategy


def home_of(strategy: type[Strategy]) -> type[Strategy]:
    """Return the class that has the body: several strategies may share one."""
    return next(each for each in strategy.__mro__ if "sell" in vars(each))


def strategy_file(name: str) -> str:
    """Return the file in which the body of a strategy is written."""
    return inspect.getfile(home_of(STRATEGIES[name]))


def line_in(file: str) -> int | None:
    """Return the line of `file` on which the caller, or a caller of that, is; None if none of them is there.

    The innermost wins: a helper in the strategy's own file before the method that called it.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back
    return None
