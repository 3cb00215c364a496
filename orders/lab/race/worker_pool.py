"""The worker processes as their parent sees them: started, raced, replaced when they die, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Self

from django.conf import settings
from django.db import connections

from orders.lab.race.messages import Born, Died, Finished, Go, Hello, Outcome, Progress, Ready, Round, Stop

READY_WITHIN = 60.0
GRACE = 15.0
LEAVE_WITHIN = 10.0
HEAD_START = 0.05

OnProgress = Callable[[int], None]


class WorkerProcess:
    """One worker process as its parent sees it: the pipe to it, and what came of its round."""

    def __init__(self, channel: Connection) -> None:
        self.channel = channel
        self.answered = 0
        self.outcomes: tuple[Outcome, ...] = ()
        self.dead = False
        self._pid: int | None = None
        self._round: Round | None = None

    @property
    def pid(self) -> int:
        """Its process id; waits until there is one."""
        while self._pid is None:
            self._receive()
        return self._pid

    def send(self, message: object) -> None:
        """Send a message; a worker that is gone will be noticed when its answer is awaited."""
        with suppress(OSError):
            self.channel.send(message)

    def begin(self, round_: Round) -> None:
        """Hand over the next round."""
        self._round, self.answered, self.outcomes = round_, 0, ()
        self.send(round_)

    def hear(self, kind: type[Ready | Finished]) -> bool:
        """Take the next message; say whether it was the awaited kind, or this worker's last."""
        try:
            message = self._receive()
        except (EOFError, OSError):
            message = Died("unknown")
        if isinstance(message, Died):
            self.give_up(f"died, exit status {message.status}")
            return True
        return isinstance(message, kind)

    def _receive(self) -> object:
        message = self.channel.recv()
        if isinstance(message, Born):
            self._pid = message.pid
        if isinstance(message, Progress):
            self.answered = message.answered
        if isinstance(message, Finished):
            self.outcomes = message.outcomes
        return message

    def give_up(self, reason: str) -> None:
        """Write this worker off: its buyers got nothing but the reason."""
        numbers = self._round.buyers if self._round else ()
        problem = f"worker process {self._pid or 'that was to be'} {reason}"[:200]
        self.outcomes = tuple(Outcome(number, "error", problem=problem) for number in numbers)
        self.answered = len(numbers)
        self.dead = True

    def kill(self) -> None:
        """Kill a process that is silent; one that has ended was heard of, and its id may be another's."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


class WorkerGroup:
    """Workers that are forked by a process which has loaded the shop once for all of them."""

    def __init__(self, size: int, shared: Mapping[str, object]) -> None:
        pipes = [Pipe() for _ in range(size)]
        self.workers = [WorkerProcess(near) for near, _ in pipes]
        self._process = self._start([far for _, far in pipes])
        self.workers[0].send(Hello(shared))

    def _start(self, far_ends: Sequence[Connection]) -> subprocess.Popen[bytes]:
        numbers = [far.fileno() for far in far_ends]
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "orders.lab.race.worker", *map(str, numbers)],
                pass_fds=numbers,
                cwd=Path(settings.BASE_DIR),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # A session of its own: Ctrl-C reaches the parent alone, which stops all workers in order.
                start_new_session=True,
            )
        finally:
            for far in far_ends:
                far.close()

    def close(self, deadline: float) -> None:
        """Wait for the end of all until `deadline` (monotonic seconds), then kill them."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for worker in self.workers:
            worker.channel.close()


class WorkerPool:
    """All worker processes of a race; a context manager that leaves none behind.

    Example:
        with WorkerPool(4) as pool:
            outcomes = pool.race(rounds, on_progress=print)
    """

    def __init__(self, size: int) -> None:
        self._shared = shared_settings()
        self._groups: list[WorkerGroup] = []
        self._workers: list[WorkerProcess] = []
        self._size = size

    def __enter__(self) -> Self:
        self._workers = self._started(self._size)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _started(self, size: int) -> list[WorkerProcess]:
        group = WorkerGroup(size, self._shared)
        self._groups.append(group)
        return list(group.workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.pid for worker in self._workers)

    def race(self, rounds: Sequence[Round], on_progress: OnProgress) -> list[Outcome]:
        """Run one round on each worker, all starting at the same moment; return an outcome for every buyer.

        Those of a worker that died have an `error` with the reason, and the worker is replaced.
        """
        for worker, round_ in zip(self._workers, rounds, strict=True):
            worker.begin(round_)
        self._await(Ready, READY_WITHIN, on_progress)
        start = Go(time.monotonic() + HEAD_START)
        for worker in self._workers:
            worker.send(start)
        self._await(Finished, max(round_.deadline for round_ in rounds) + GRACE, on_progress)
        outcomes = [outcome for worker in self._workers for outcome in worker.outcomes]
        self._replace_the_dead()
        return sorted(outcomes, key=lambda outcome: outcome.buyer)

    def close(self) -> None:
        """Stop all workers; kill those that exceed the timeout."""
        for worker in self._workers:
            worker.send(Stop())
        deadline = time.monotonic() + LEAVE_WITHIN
        for group in self._groups:
            group.close(deadline)
        self._groups.clear()
        self._workers.clear()

    def _await(self, kind: type[Ready | Finished], seconds: float, on_progress: OnProgress) -> None:
        """Return when each worker has sent a `kind`, has died, or has been silent for so many seconds."""
        deadline = time.monotonic() + seconds
        waiting: dict[object, WorkerProcess] = {w.channel: w for w in self._workers if not w.dead}
        while waiting:
            spoken = wait(
                [worker.channel for worker in waiting.values()], max(0.0, deadline - time.monotonic())
            )
            if not spoken:
                for worker in waiting.values():
                    worker.give_up(f"had not answered after {seconds:g} s")
                    worker.kill()
                return
            for channel in spoken:
                if waiting[channel].hear(kind):
                    del waiting[channel]
            on_progress(sum(worker.answered for worker in self._workers))

    def _replace_the_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.dead:
                (self._workers[place],) = self._started(1)


def shared_settings() -> dict[str, object]:
    """Return the settings that a worker must share with this process, which may be a test.

    DEBUG is off, because it would keep every SQL statement in memory and slow the buyers down.
    """
    databases = {alias: dict(connections[alias].settings_dict) for alias in connections}
    shared = {name: getattr(settings, name) for name in ("CACHES", "LOCKING", "REDIS_URL")}
    return shared | {"DATABASES": databases, "DEBUG": False}
