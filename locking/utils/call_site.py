"""Call site and activity of a holder: determined late, so that acquiring stays cheap.

The place is noted at the acquisition as a code object and an offset (0.3 µs); the rest, from the file's name
to the request or task around it, is read from the holder's stack once the hold has lasted, by another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

OURS: Final = (f"{Path(__file__).parent.parent}{os.sep}", contextlib.__file__)
"""Files of no interest begin so: this package, and what makes context managers of its functions."""

LONGEST: Final = 200  # characters of a path that are kept


class CallSite(NamedTuple):
    """A place in the code."""

    code: CodeType
    offset: int

    def describe(self) -> str:
        """Return `file:line in function`; the file as far as its last two parts."""
        starts = (line for start, end, line in self.code.co_lines() if start <= self.offset < end and line)
        line = next(starts, self.code.co_firstlineno)
        file = "/".join(Path(self.code.co_filename).parts[-2:])
        return f"{file}:{line} in {self.code.co_qualname}"


def call_site_of(function: Callable[..., object]) -> CallSite | None:
    """Return the beginning of a function, under whatever decorators."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else CallSite(code, 0)


def caller_site() -> CallSite | None:
    """Return the innermost place outside this package that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
    return None if frame is None else tuple.__new__(CallSite, (frame.f_code, frame.f_lasti))  # is quicker


def activity_of(context: object) -> str | None:
    """Return the request or task in which a thread, or an asyncio task, is at work; None: neither is seen."""
    # A request's path is shown, never its query or its body.
    for frame in _frames(context):
        code, local = frame.f_code, frame.f_locals
        if code.co_filename.endswith("django/core/handlers/base.py") and "request" in local:
            return f"{local['request'].method} {local['request'].path}"[:LONGEST]
        if code.co_name == "trace_task" and code.co_filename.endswith("celery/app/trace.py"):
            return f"{local['task'].name} {local['uuid']}"[:LONGEST]
    return None


def _frames(context: object) -> Iterator[FrameType]:
    """Yield the stack of a thread from the inside, or the awaiting chain of a task from the outside."""
    if isinstance(context, asyncio.Task):
        coroutine: Any = context.get_coro()
        while (awaiting := getattr(coroutine, "cr_frame", None)) is not None:
            yield awaiting
            coroutine = coroutine.cr_await
    elif isinstance(context, threading.Thread):
        frame = sys._current_frames().get(context.ident or 0)
        while frame is not None:
            yield frame
            frame = frame.f_back


def name_of(context: object) -> str | None:
    """Return the name of a thread or task."""
    return context.get_name() if isinstance(context, asyncio.Task) else getattr(context, "name", None)
