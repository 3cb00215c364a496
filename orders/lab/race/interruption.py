"""Ctrl-C, a closed terminal and a polite kill end a race in order, once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Never

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end. `signal` is its number."""

    def __init__(self, number: int) -> None:
        self.signal = number
        super().__init__(signal.Signals(number).name)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted at the first signal and ignore the next, so that clearing up is not cut short.

    An error that the interruption led to, such as that of a statement cut short, doesn't hide it. Outside the
    main thread, where Python delivers no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A hang-up that is ignored already is `nohup`'s: the race was meant to outlive its terminal.
    wanted = [n for n in _SIGNALS if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    raised: list[Interrupted] = []

    def interrupt(number: int, _: FrameType | None) -> Never:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raised.append(Interrupted(number))
        raise raised[0]

    before = {number: signal.signal(number, interrupt) for number in wanted}
    try:
        yield
    except Exception as error:
        if raised:
            raise raised[0] from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
