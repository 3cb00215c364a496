"""What the two embedded servers have in common: starting once, waiting for an answer, stopping."""

import os
import re
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

from config.embedded.errors import EmbeddedError, demand_space, disk_full, spoken
from config.embedded.home import Home

READY_SECONDS = 60.0  # crash recovery on a slow disk takes its time
STOP_SECONDS = 15.0
TELLING = re.compile(r"FATAL|PANIC|Fatal|ERROR|No space left|error:|can't|Can't")


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
    def launch(self) -> None:
        """Clear what a killed server left, then start a new one."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask for an orderly shutdown."""

    def complete(self) -> None:  # noqa: B027  only PostgreSQL has more to do
        """Do what remains once a new server answers."""

    def is_up(self) -> bool:
        """Whether a new server takes connections, complete or not."""
        return self.answers()

    def start(self) -> None:
        """Have the server running, whoever starts it.

        Raises:
            EmbeddedError: it can't be started; the message says why and what to do.
        """
        if self.answers():
            return
        with spoken(self.home.path), self.home.locked():
            self.start_alone()

    def start_alone(self) -> None:
        """Start under the file lock; whoever held it before us may have done so already."""
        if self.process() is None:
            demand_space(self.home.path)
            self.log_start = self.log.stat().st_size if self.log.exists() else 0
            self.launch()
        self.await_up()
        self.complete()

    def await_up(self) -> None:
        """Wait until the server takes connections; it may be replaying its log after a crash."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.is_up():
            if self.process() is None:
                raise self.failure("stopped while starting")
            if time.monotonic() > deadline:
                raise self.failure(f"runs but has not answered for {READY_SECONDS:.0f} s (make stop ends it)")
            time.sleep(0.05)

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
        words = telling_line(self.new_log()) or telling_line(said) or "it said nothing"
        if "No space left on device" in words:
            return disk_full(self.home.path)
        return EmbeddedError(
            f"the embedded {self.label} {what}: {words}; see {self.log}, "
            f"or set {self.variable} to a server of your own."
        )

    def new_log(self) -> str:
        """What the log says since this start."""
        with suppress(OSError), self.log.open(errors="replace") as file:
            file.seek(self.log_start)
            return file.read()
        return ""


def telling_line(text: str) -> str:
    """The last line that says what went wrong, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ([line for line in lines if TELLING.search(line)] or lines or [""])[-1]


def end(process: psutil.Process) -> None:
    """Wait for a server to go; one that doesn't is killed, and recovers at its next start."""
    with suppress(psutil.NoSuchProcess):
        if process.status() != psutil.STATUS_STOPPED:
            with suppress(psutil.TimeoutExpired):
                process.wait(timeout=STOP_SECONDS)
        if process.is_running():
            process.kill()
            process.wait(timeout=STOP_SECONDS)


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
