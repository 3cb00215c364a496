"""What the two embedded servers have in common: starting once, waiting for an answer, stopping."""

import os
import re
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from config.embedded.account import own
from config.embedded.errors import EmbeddedError, demand_space, disk_full, spoken
from config.embedded.home import Home, lock_file

READY_SECONDS = 60.0  # crash recovery on a slow disk takes its time
STOP_SECONDS = 15.0
TELLING = re.compile(r"FATAL|PANIC|Fatal|ERROR|error:|invalid|[Cc]an't|could not")


class Server(ABC):
    """One embedded server.

    Args:
        home: a settled home.
    """

    label: ClassVar[str]
    variable: ClassVar[str]  # the environment variable that names another server

    def __init__(self, home: Home) -> None:
        self.home = home
        self.log_start = 0

    @property
    @abstractmethod
    def log(self) -> Path:
        """The server's log file."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves us now."""

    @abstractmethod
    def process(self) -> psutil.Process | None:
        """The running server of this home, or None."""

    @abstractmethod
    def launch(self, alive: int) -> None:
        """Clear what a killed server left, then start a new one.

        Args:
            alive: an open file that everything launched must inherit.
        """

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask for an orderly shutdown."""

    def complete(self) -> None:  # noqa: B027  only PostgreSQL has more to do
        """Do what remains once a new server answers."""

    def is_up(self) -> bool:
        """Whether a new server takes connections, complete or not."""
        return self.answers()

    def start(self) -> None:
        """Have the server running, no matter who starts it.

        Raises:
            EmbeddedError: it can't be started; the message says why and what to do.
        """
        if self.answers():
            return
        with spoken(self.home.path), self.home.locked():
            self.start_alone()

    def start_alone(self) -> None:
        """Start under the file lock; anyone who held it before us may have done so already."""
        launched = False
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_up():
            if not launched:
                launched = self.launch_if_dead()
            elif not self.lives():
                raise self.failure("stopped while starting")
            if time.monotonic() > deadline:
                raise self.failure(f"runs but has not answered for {READY_SECONDS:.0f} s (make stop ends it)")
            time.sleep(0.02)
        self.complete()

    @property
    def alive(self) -> Path:
        """The file on which everything launched holds a lock."""
        return self.home.path / f"{self.label.lower()}.alive"

    def lives(self) -> bool:
        """Whether anything launched still runs."""
        with self.alive.open("a") as file:
            return not lock_file(file.fileno())

    def launch_if_dead(self) -> bool:
        """Launch the server unless something that works on its data lives.

        Whatever is launched inherits a lock, which the kernel frees with the last of these processes. So
        nothing is started beside the child of a killed server, or the unfinished work of a killed starter.

        Returns:
            Whether it was launched.
        """
        with self.alive.open("a") as file:
            own(self.alive, self.home.account)
            if not lock_file(file.fileno()):
                return False
            demand_space(self.home.path)
            self.log_start = self.log.stat().st_size if self.log.exists() else 0
            self.launch(file.fileno())
        return True

    def stop(self) -> bool:
        """Stop the server, by force if it doesn't listen.

        Returns:
            Whether there was one to stop.
        """
        with spoken(self.home.path), self.home.locked():
            process = self.process()
            if process is None:
                return False
            if process.status() != psutil.STATUS_STOPPED:  # a paused one can't hear
                self.ask_to_stop()
            end(process)
        return True

    def failure(self, what: str, said: str = "") -> EmbeddedError:
        """The error for a failed start, with the telling line of the log or of what the command said."""
        words = f"{self.new_log()}\n{said}"
        if "No space left on device" in words:
            return disk_full(self.home.path)
        return EmbeddedError(
            f"the embedded {self.label} {what}: {telling_line(words)}; see {self.log}, "
            f"or set {self.variable} to a server of your own."
        )

    def new_log(self) -> str:
        """What the log says since this start."""
        with suppress(OSError), self.log.open(errors="replace") as file:
            file.seek(self.log_start)
            return file.read()
        return ""


def telling_line(text: str) -> str:
    """The first line that says what went wrong, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if TELLING.search(line)]
    return (telling or lines[-1:] or ["it said nothing"])[0]


def end(process: psutil.Process) -> None:
    """Wait for a server to go; one that doesn't is killed, and recovers at its next start."""
    with suppress(psutil.NoSuchProcess):
        if process.status() == psutil.STATUS_STOPPED or not gone_within(process, STOP_SECONDS):
            process.kill()
            gone_within(process, STOP_SECONDS)


def gone_within(process: psutil.Process, seconds: float) -> bool:
    """Whether the process ends in time; one that its parent has yet to reap has ended."""
    deadline = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def living(pid_file: Path, cwd: Path, name: str) -> psutil.Process | None:
    """The process that `pid_file` names, if it still is the server `name` working in `cwd`.

    A pid file outlives a killed server, and its number may be another program's by now; a copied checkout
    brings the pid file of the original's server along.
    """
    try:
        process = psutil.Process(int(pid_file.read_text().split()[0]))
        alive = process.status() != psutil.STATUS_ZOMBIE and name in process.name()
        return process if alive and os.path.samefile(process.cwd(), cwd) else None
    except (psutil.Error, OSError, ValueError, IndexError):
        return None
