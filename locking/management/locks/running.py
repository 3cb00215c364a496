"""`locks run NAME -- command`: the lock is held for as long as the command runs, and no longer the command.

The command gets a process group of its own, so that it can be stopped with all that it started. When the
lease is found lost the group gets SIGTERM, and SIGKILL after a grace; when the lease is about to end because
the backend doesn't answer, SIGTERM comes so much earlier that the grace is over by then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from locking.core.lease import Lease
from locking.core.lock import get_lock
from locking.exceptions import BackendError, LockError, LockLost, LockNotAcquired
from locking.keys.names import Unset, check_wait
from locking.utils.background import start_thread

CONTENDED: Final = 75
"""Exit status when others have the lock: EX_TEMPFAIL of sysexits.h, *try again later*."""
UNAVAILABLE: Final = 69
"""When the backend doesn't answer: EX_UNAVAILABLE."""
LOST: Final = 70
"""When the lease was lost and the command was stopped: EX_SOFTWARE."""
NOT_FOUND, NOT_EXECUTABLE, KILLED = 127, 126, 128
"""As shells have them; KILLED is added to the signal's number."""

GRACE: Final = 5.0
"""Seconds between SIGTERM and SIGKILL, or a third of a short lease."""

AGAIN: Final = 0.05  # seconds after which a signal that wasn't heard is sent again
NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED: Final = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
TERMINAL: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run under which lock.

    Attributes:
        name: the lock's name.
        command: the program and its arguments.
        backend: alias in `LOCKING`.
        ttl: seconds after which the command is stopped at the latest; None = the lease is renewed.
        wait: seconds to wait for the lock; 0 = don't, None = without end.
        fenced: keep the counter of fencing tokens forever, because a database checks them.
        grace: seconds between SIGTERM and SIGKILL; None = see `GRACE`.
        on_conflict: exit status when others have the lock.
    """

    name: str
    command: Sequence[str]
    backend: str
    ttl: float | Unset | None
    wait: float | Unset | None
    fenced: bool = False
    grace: float | None = None
    on_conflict: int = CONTENDED

    def __post_init__(self) -> None:
        if self.grace is not None:
            check_wait(self.grace, source="grace")
        if not 0 <= self.on_conflict <= 255:
            raise ValueError(f"on_conflict must be an exit status from 0 to 255, not {self.on_conflict}")
        if not hasattr(os, "killpg"):
            raise ValueError("locks run needs process groups, which this system does not have")
        if not self.command:
            raise ValueError("say what to run after two dashes: locks run NAME -- command")


@dataclass(frozen=True, slots=True)
class Report:
    """How it ended: the exit status, what to say about it, and seconds."""

    status: int
    message: str = ""
    waited: float | None = None
    held: float | None = None


class Stopped(BaseException):
    """A signal came before the command was started."""

    def __init__(self, number: int) -> None:
        self.number = number


def run(job: Job) -> Report:
    """Acquire the lock, run the command, release; see the module."""
    begun = time.monotonic()
    running = Running(job)
    lock = get_lock(
        job.name,
        ttl=job.ttl,
        wait=job.wait,
        fenced=job.fenced,
        backend=job.backend,
        on_lost=running.note_loss,
    )
    with _forwarding(running):
        try:
            lease = lock.acquire()
            taken = time.monotonic()
            status, message = _under(lease, running)
        except Stopped as stopped:
            running.heard.set()
            with suppress(LockError):
                lock.release()  # it may have come between the grant and its note
            return Report(KILLED + stopped.number, "stopped while waiting for the lock")
        except LockNotAcquired as error:
            return Report(job.on_conflict, str(error), time.monotonic() - begun)
        except BackendError as error:
            return Report(UNAVAILABLE, str(error), time.monotonic() - begun)
    return Report(status, message, taken - begun, time.monotonic() - taken)


def _under(lease: Lease, running: Running) -> tuple[int, str]:
    try:
        status, message = running.under(lease)
    except BaseException:
        _let_go(lease)
        raise
    problem = _let_go(lease)
    if isinstance(problem, LockLost) and status != LOST:
        return LOST, f"{problem}; the command had ended with exit status {status}"
    return status, message or (str(problem) if isinstance(problem, BackendError) else "")


def _let_go(lease: Lease) -> LockError | None:
    try:
        lease.release()
    except LockError as error:
        return error
    return None


class Running:
    """The command while it runs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._pending: list[int] = []
        self._changed, self.heard = threading.Event(), threading.Event()
        self._lost = False

    def note_loss(self, lease: Lease) -> None:
        """Called in a thread of its own when the lease is found lost."""
        self._lost = True
        self._changed.set()

    def forward(self, number: int, frame: FrameType | None) -> None:
        """Hand a signal on; while there is no command yet, it ends the waiting."""
        if self._process is not None:
            self._send(number)
        elif self._starting:
            self._pending.append(number)
        else:
            raise Stopped(number)

    def send_until_heard(self, number: int) -> None:
        """Send this process a signal until it has ended the waiting, or the command is there to get it."""
        while not self._starting and not self.heard.wait(AGAIN):
            os.kill(os.getpid(), number)

    def under(self, lease: Lease) -> tuple[int, str]:
        """Start the command, watch over it and the lease; return the exit status and what to say."""
        self._starting = True
        try:
            self._start(lease)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            return NOT_FOUND if missing else NOT_EXECUTABLE, f"can't run {self._job.command[0]!r}: {error}"
        try:
            with _terminal_of(self._started):
                return self._watch_over(lease)
        except BaseException:  # the lock is about to be released: nothing of the command may go on
            self._send(signal.SIGKILL)
            self._started.wait()
            raise

    def _start(self, lease: Lease) -> None:
        environment = {"HOLDFAST_LOCK": lease.name, "HOLDFAST_FENCING_TOKEN": str(lease.fencing_token)}
        self._process = subprocess.Popen(self._job.command, env=os.environ | environment, process_group=0)

        def await_end() -> None:
            self._started.wait()
            self._changed.set()

        if not start_thread("locking-listen-command", await_end):
            self._process.kill()
            raise OSError("no thread can be started to wait for its end")
        for number in self._pending:
            self._send(number)

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _watch_over(self, lease: Lease) -> tuple[int, str]:
        grace = min(GRACE, lease.ttl / 3) if self._job.grace is None else self._job.grace
        while self._started.poll() is None:
            left = lease.remaining() - grace
            if self._lost or left <= 0:
                return LOST, self._stop(grace)
            self._changed.wait(left)
        return _exit_status(self._started.returncode), ""

    def _stop(self, grace: float) -> str:
        """Stop the whole group: nothing of it may go on without the lock."""
        self._send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._started.wait(grace)
        self._send(signal.SIGKILL)
        status = _exit_status(self._started.wait())
        why = "was lost" if self._lost else "was about to end"
        return f"the lock {self._job.name!r} {why}: the command was stopped (its exit status was {status})"

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # it has just ended
            os.killpg(self._started.pid, number)


def _exit_status(code: int) -> int:
    return code if code >= 0 else KILLED - code


@contextmanager
def _forwarding(running: Running) -> Iterator[None]:
    """Have signals go to the command; only the main thread may ask for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored, as under nohup, stays so for the command too, which inherits it.
    heard = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, running.forward) for number in heard}
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited: the kernel would keep no exit status
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    hook = sys.unraisablehook

    def raise_again(ignored: sys.UnraisableHookArgs) -> None:
        """Have a signal come again whose handler raised in a finalizer, where Python ignores it."""
        stopped = ignored.exc_value
        if isinstance(stopped, Stopped):
            start_thread("locking-listen-signal", lambda: running.send_until_heard(stopped.number))
        else:
            hook(ignored)

    sys.unraisablehook = raise_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        running.heard.set()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _terminal_of(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Give the terminal, where there is one and it is ours, to the command's group, and take it back."""
    if not _has_terminal():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else taking it back would stop us
    _give_terminal(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)  # it may have asked for the terminal before it had it
    try:
        yield
    finally:
        _give_terminal(os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _has_terminal() -> bool:
    """Whether the terminal is ours to give: after setsid, as `su -c` does, it is another session's."""
    if threading.current_thread() is not threading.main_thread():
        return False  # who may not change what SIGTTOU does can't take it back
    with suppress(OSError):
        return os.isatty(TERMINAL) and os.tcgetpgrp(TERMINAL) == os.getpgrp()
    return False


def _give_terminal(group: int) -> None:
    with suppress(OSError):  # the group has ended, or the terminal has
        os.tcsetpgrp(TERMINAL, group)
