"""The worker processes as their parent sees them: started, raced, replaced when they die, ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from django.conf import settings
from django.db import connections

from orders.race.messages import Finished, Go, Hello, Outcome, Progress, Ready, Round, Stop

READY_WITHIN = 60.0
GRACE = 15.0
LEAVE_WITHIN = 10.0
HEAD_START = 0.05

OnProgress = Callable[[int], None]


class WorkerProcess:
    """One worker process and the pipe to it.

    Args:
        shared: the settings that it must share with its parent.
    """

    def __init__(self, shared: Mapping[str, object]) -> None:
        self.channel, far_end = Pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self.process = self._start(far_end)
        self.answered = 0
        self.outcomes: tuple[Outcome, ...] = ()
        self.dead = False
        self._round: Round | None = None
        self.send(Hello(shared))

    def _start(self, far_end: Connection) -> subprocess.Popen[bytes]:
        with far_end:
            return subprocess.Popen(
                [sys.executable, "-m", "orders.race.worker", str(far_end.fileno())],
                pass_fds=[far_end.fileno()],
                cwd=Path(settings.BASE_DIR),
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                # A session of its own: Ctrl-C reaches the parent alone, which sends everybody home in order.
                start_new_session=True,
            )

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
            message = self.channel.recv()
        except (EOFError, OSError):
            self.give_up(self._epitaph())
            return True
        if isinstance(message, Progress):
            self.answered = message.answered
        if isinstance(message, Finished):
            self.outcomes = message.outcomes
        return isinstance(message, kind)

    def give_up(self, reason: str) -> None:
        """Write this worker off: its buyers got nothing but the reason."""
        numbers = self._round.buyers if self._round else ()
        self.outcomes = tuple(Outcome(number, "error", problem=reason) for number in numbers)
        self.answered = len(numbers)
        self.dead = True
        self.process.kill()

    def close(self, deadline: float) -> None:
        """Wait for its end until `deadline` (monotonic seconds), then kill it."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()
        self._errors.close()

    def _epitaph(self) -> str:
        """How it ended, with its last words."""
        try:
            code: object = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = "unknown"
        self._errors.seek(0)
        last_words = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        return " ".join([f"worker process {self.process.pid} died, exit status {code}", *last_words])[:200]


class WorkerPool:
    """All worker processes of a race; a context manager that leaves none behind.

    Args:
        size: how many processes.

    Example:
        with WorkerPool(4) as pool:
            outcomes = pool.race(rounds, on_progress=print)
    """

    def __init__(self, size: int) -> None:
        self._shared = shared_settings()
        self._workers: list[WorkerProcess] = []
        self._size = size

    def __enter__(self) -> Self:
        try:
            for _ in range(self._size):
                self._workers.append(WorkerProcess(self._shared))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def race(self, rounds: Sequence[Round], on_progress: OnProgress) -> list[Outcome]:
        """Run one round on each worker, all starting at the same moment.

        Args:
            rounds: one for each worker; a round without buyers is allowed.
            on_progress: called with the number of buyers who have their answer.

        Returns:
            An outcome for every buyer, in the order of their numbers. The buyers of a worker that died have
            an `error` with the reason, and the worker is replaced.
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
        """Send everybody home; who doesn't leave in time is killed."""
        for worker in self._workers:
            worker.send(Stop())
        deadline = time.monotonic() + LEAVE_WITHIN
        for worker in self._workers:
            worker.close(deadline)
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
                    worker.give_up(
                        f"worker process {worker.process.pid} had not answered after {seconds:g} s"
                    )
                return
            for channel in spoken:
                if waiting[channel].hear(kind):
                    del waiting[channel]
            on_progress(sum(worker.answered for worker in self._workers))

    def _replace_the_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.dead:
                worker.close(time.monotonic())
                self._workers[place] = WorkerProcess(self._shared)


def shared_settings() -> dict[str, object]:
    """The settings that a worker must share with this process, which may be a test with databases of its own.

    DEBUG is off, because it would keep every SQL statement in memory and slow the buyers down.
    """
    databases = {alias: dict(connections[alias].settings_dict) for alias in connections}
    shared = {name: getattr(settings, name) for name in ("CACHES", "LOCKING", "REDIS_URL")}
    return shared | {"DATABASES": databases, "DEBUG": False}
