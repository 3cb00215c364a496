"""Who is asking: the owner of an acquisition, the thread or task that re-enters, the process."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import secrets
import sys
import threading
import time
from asyncio.events import _get_running_loop
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from asgiref.sync import SyncToAsync

from locking.utils.background import after_fork
from locking.utils.clock import now


def _as_uuid8(digits: str) -> str:
    """Write 32 hex digits as a UUID of version 8 (RFC 9562, "custom"), variant 10."""
    # Redisson's clients are version 4: a script can tell a Java holder from one of ours by a single letter.
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


PLAIN, GUARDED = "a", "b"
"""The variant digit of a client id: what may become of the acquisition once its process is dead.

`PLAIN`: left to its lease. `GUARDED`: released at once, because the database orders or refuses what comes
late. The owner alone tells, so nothing has to be written down when a lock is acquired.
"""

_VARIANT: Final = 19  # where in a UUID the variant digit is


class _Process:
    """What identifies this process; made again in a forked child, which must never pass for its parent."""

    def __init__(self) -> None:
        self.generation = -1
        self.renew()

    def renew(self) -> None:
        self.client_id = _as_uuid8(secrets.token_hex(16))
        self.counter = itertools.count(1)
        self.generation += 1
        self.started, self.started_at = time.time(), now()  # noqa: TID251 shown

    def date_of(self, moment: float) -> float:
        """Return the Unix time of a `clock.now()`, the same if asked twice."""
        return round(self.started + moment - self.started_at, 3)


PROCESS = _Process()
after_fork(PROCESS.renew)


def new_owner(client_id: str | None = None) -> str:
    """Return an owner, never used twice: `<uuid of this process, or of a client of work>:<number>`."""
    if client_id is None:
        return f"{PROCESS.client_id}:{next(PROCESS.counter)}"
    return f"{client_id}:{secrets.randbits(48)}"


def new_guarded_owner() -> str:
    """Return the owner of an acquisition under which a late write does no harm."""
    return f"{_with_variant(PROCESS.client_id, GUARDED)}:{next(PROCESS.counter)}"


def _with_variant(client_id: str, digit: str) -> str:
    return client_id[:_VARIANT] + digit + client_id[_VARIANT + 1 :]


def process_of(owner: str) -> str:
    """Return the client id of the process that made this owner.

    Example:
        >>> process_of("01234567-89ab-8def-b123-456789abcdef:7")
        '01234567-89ab-8def-a123-456789abcdef'
    """
    return _with_variant(owner.split(":", 1)[0], PLAIN)


def is_guarded(owner: str) -> bool:
    """Return whether this owner was made by `new_guarded_owner`."""
    return owner[_VARIANT : _VARIANT + 1] == GUARDED


def client_of_work(work: str) -> str:
    """Return the client id of a unit of work, such as a Celery task's id: the same one in every process."""
    if _UUID4.fullmatch(work):
        return _as_uuid8(work.replace("-", ""))
    return _as_uuid8(hashlib.sha256(work.encode()).hexdigest()[:32])


def owner_of_work(work: str, attempt: int = 0) -> str:
    """Return an owner from which `work_of` reads the work; attempts, below 2**48, tell acquisitions apart."""
    variant = int(work[_VARIANT], 16) if _UUID4.fullmatch(work) else 0
    return f"{client_of_work(work)}:{_NAMES_WORK | attempt << 4 | variant}"


def work_of(owner: str) -> str | None:
    """Return the id of the work that `owner_of_work` made this owner for, if it was a UUID of version 4.

    Example:
        >>> work_of(owner_of_work("01234567-89ab-4def-9123-456789abcdef"))
        '01234567-89ab-4def-9123-456789abcdef'
    """
    client, _, number = owner.partition(":")
    if not number.isdecimal() or int(number) < _NAMES_WORK:
        return None
    work = _with_variant(f"{client[:14]}4{client[15:]}", f"{int(number) & 15:x}")
    return work if _UUID4.fullmatch(work) else None


_UUID4: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAMES_WORK: Final = 1 << 52
"""In an owner's number: the client is a UUID of version 4, whose variant digit is the last four bits."""


def is_owner_of(client_id: str, owner: str) -> bool:
    """Whether this owner acquired as this client."""
    return owner.startswith(f"{client_id}:")


def current_sync_call() -> Callable[..., object] | None:
    """Return what identifies the call of `sync_to_async` that runs in this thread, or None."""
    # Many tasks share one thread that way, so that the thread alone does not identify the holder of a lock.
    if not hasattr(SyncToAsync.threadlocal, "main_event_loop"):
        return None  # the thread has never served one
    return next(_sync_calls(), None)


def runs_in(call: Callable[..., object] | None) -> bool:
    """Whether this `sync_to_async` call is still under way in this thread, perhaps around others."""
    return call is not None and any(each is call for each in _sync_calls())


def _sync_calls() -> Iterator[Callable[..., object]]:
    """Yield what each `sync_to_async` call on this thread's stack runs, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _SERVES_A_CALL:
            yield frame.f_locals["func"]
        frame = frame.f_back


_SERVES_A_CALL: Final = SyncToAsync.thread_handler.__code__


def current_context() -> object:
    """Return the running asyncio task, or else the running thread: who may re-enter what it holds."""
    # The object itself is returned, not its ident (idents are reused) and not a ContextVar (those leak into
    # child tasks and into threads started by `asyncio.to_thread`).
    if _get_running_loop() is None:
        return threading.current_thread()
    return asyncio.current_task() or threading.current_thread()
