"""`locks run NAME -- command`: the lock is held for as long as the command runs, and no longer the command.

The command gets a process group of its own, so that it can be stopped with all that it started. When the
lease is found lost the group gets SIGTERM, and SIGKILL after a grace; when the lease is about to end because
the backend doesn't answer, SIGTERM comes so much earlier that the grace is over by then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from locking.core.lease import Lease
from locking.core.lock import get_lock
from locking.exceptions import BackendError, LockError, LockLost, LockNotAcquired
from locking.keys.names import Unset

CONTENDED: Final = 75  # exit status when others have the lock: EX_TEMPFAIL of sysexits.h, *try again later*
UNAVAILABLE: Final = 69  # when the backend doesn't answer: EX_UNAVAILABLE
LOST: Final = 70  # when the lease was lost and the command was stopped: EX_SOFTWARE
NOT_FOUND, NOT_EXECUTABLE, KILLED = 127, 126, 128
"""As shells have them; KILLED is added to the signal's number."""

GRACE: Final = 5.0  # seconds between SIGTERM and SIGKILL, or a third of a short lease

NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FORWARDED: Final = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
TERMINAL: Final = 0


@dataclass(frozen=True, slots=True)
class Report:
    """How it ended: the exit status, what to say about it, and seconds."""

    status: int
    message: str = ""
    waited: float | None = None
    held: float | None = None


@dataclass(kw_only=True)
class Job:
    """What to run under which lock: the wait for the lock, and then the command while it runs."""

    name: str
    command: Sequence[str]
    backend: str  # alias in `LOCKING`
    ttl: float | Unset | None  # seconds after which the command is stopped; None: the lease is renewed
    wait: float | Unset | None  # seconds to wait for the lock; 0: don't, None: without end
    fenced: bool = False  # a database checks the fencing tokens
    grace: float | None = None  # seconds between SIGTERM and SIGKILL; None: see `GRACE`
    on_conflict: int = CONTENDED  # exit status when others have the lock

    def __post_init__(self) -> None:
        if not 0 <= self.on_conflict <= 255:
            raise ValueError(f"on_conflict must be an exit status from 0 to 255, not {self.on_conflict}")
        if not hasattr(os, "killpg"):
            raise ValueError("locks run needs process groups, which this system does not have")
        if not self.command:
            raise ValueError("say what to run after two dashes: locks run NAME -- command")
        self._process: Process | None = None
        self._lost = asyncio.Event()
        self._early: list[int] = []  # signals that came before there was a command

    async def run(self, signals: Sequence[int]) -> Report:
        """Acquire, run, release; these signals end the wait, or go to the command."""
        loop, begun = asyncio.get_running_loop(), time.monotonic()

        def note_loss(lease: Lease) -> None:
            with suppress(RuntimeError):  # the loop has ended: the release reports the loss
                loop.call_soon_threadsafe(self._lost.set)

        lock = get_lock(
            self.name,
            ttl=self.ttl,
            wait=self.wait,
            fenced=self.fenced,
            backend=self.backend,
            on_lost=note_loss,
        )
        self._waiting = asyncio.ensure_future(lock.aacquire())
        for number in signals:
            loop.add_signal_handler(number, self._forward, number)
        try:
            lease = await self._waiting
        except asyncio.CancelledError:
            return Report(KILLED + self._early[0], "stopped while waiting for the lock")
        except LockNotAcquired as error:
            return Report(self.on_conflict, str(error), time.monotonic() - begun)
        except BackendError as error:
            return Report(UNAVAILABLE, str(error), time.monotonic() - begun)
        taken = time.monotonic()
        status, message = await self._under(lease)
        return Report(status, message, taken - begun, time.monotonic() - taken)

    def _forward(self, number: int) -> None:
        """Hand a signal on; while there is no command yet, the first one ends the waiting."""
        if self._process is not None:
            self._send(number)
            return
        self._early.append(number)
        if len(self._early) == 1:
            self._waiting.cancel()  # without effect once the lock is granted: the command gets the signal

    async def _under(self, lease: Lease) -> tuple[int, str]:
        """Run the command and release the lock; return the exit status and what to say."""
        problem: LockError | None = None
        try:
            status, message = await self._execute(lease)
        finally:
            try:
                await lease.arelease()
            except LockError as error:
                problem = error
        if isinstance(problem, LockLost) and status != LOST:
            return LOST, f"{problem}; the command had ended with exit status {status}"
        return status, message or (str(problem) if isinstance(problem, BackendError) else "")

    async def _execute(self, lease: Lease) -> tuple[int, str]:
        """Start the command, watch over it and the lease."""
        environment = {"HOLDFAST_LOCK": lease.name, "HOLDFAST_FENCING_TOKEN": str(lease.fencing_token)}
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self.command, env=os.environ | environment, process_group=0
            )
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            return NOT_FOUND if missing else NOT_EXECUTABLE, f"can't run {self.command[0]!r}: {error}"
        try:
            for number in self._early:
                self._send(number)
            with _terminal_of(process):
                return await self._watch_over(lease, process)
        except BaseException:  # the lock is about to be released: nothing of the command may go on
            self._send(signal.SIGKILL)
            await process.wait()
            raise

    async def _watch_over(self, lease: Lease, process: Process) -> tuple[int, str]:
        grace = min(GRACE, lease.ttl / 3) if self.grace is None else self.grace
        either = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(self._lost.wait())]
        while process.returncode is None:
            left = lease.remaining() - grace
            if self._lost.is_set() or left <= 0:
                return LOST, await self._stop(process, grace)
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return _exit_status(process.returncode), ""

    async def _stop(self, process: Process, grace: float) -> str:
        """Stop the whole group: nothing of it may go on without the lock."""
        self._send(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), grace)
        self._send(signal.SIGKILL)
        status = _exit_status(await process.wait())
        why = "was lost" if self._lost.is_set() else "was about to end"
        return f"the lock {self.name!r} {why}: the command was stopped (its exit status was {status})"

    def _send(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):  # it has just ended
            os.killpg(self._process.pid, number)


def run(job: Job) -> Report:
    """Acquire the lock, run the command, release; see the module."""
    with _signals_put_back() as heard:
        return asyncio.run(job.run(heard))


def _exit_status(code: int) -> int:
    return code if code >= 0 else KILLED - code


@contextmanager
def _signals_put_back() -> Iterator[list[int]]:
    """Yield the signals to forward, and put their handlers back."""
    before = {number: signal.getsignal(number) for number in (*FORWARDED, signal.SIGCHLD)}
    if before[signal.SIGCHLD] is signal.SIG_IGN:  # inherited: the kernel would keep no exit status
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        # What is ignored, as under nohup, stays so for the command too, which inherits it.
        yield [number for number in FORWARDED if before[number] is not signal.SIG_IGN]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _terminal_of(process: Process) -> Iterator[None]:
    """Give the terminal, where there is one and it is ours, to the command's group, and take it back.

    After setsid, as `su -c` does, it is another session's.
    """
    try:
        is_ours = os.isatty(TERMINAL) and os.tcgetpgrp(TERMINAL) == os.getpgrp()
    except OSError:
        is_ours = False
    if not is_ours:
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else taking it back would stop us
    with suppress(OSError):  # the command has ended, or the terminal has
        os.tcsetpgrp(TERMINAL, process.pid)
        os.killpg(process.pid, signal.SIGCONT)  # it may have asked for the terminal before it had it
    try:
        yield
    finally:
        with suppress(OSError):
            os.tcsetpgrp(TERMINAL, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)
