"""Server processes of the tests: started, frozen, killed, started again; they end with the tests."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orders.lab.race.process_guard import guard_over, relieve


class ServerProcess:
    """One process in a folder of its own, where it logs; it is started at once.

    Args:
        folder: made if need be; where the process works.
        command: the program and its arguments.
        environment: its variables; None for those of this process.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._command, self._environment = folder, list(command), environment
        self.start()

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self.folder, env=self._environment
            )
        self._guard = guard_over(self.process.pid)

    def kill(self) -> None:
        """End it at once, frozen or not."""
        self.process.kill()
        self.process.wait()
        relieve(self._guard)

    def pause(self) -> None:
        """Freeze it; its sockets stay open."""
        self.process.send_signal(signal.SIGSTOP)
        await_standstill(self.process.pid)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def await_standstill(pid: int) -> None:
    """Return once every thread of a process that was sent SIGSTOP stands still.

    On a busy machine they go on for a while, and answer.
    """
    threads = Path(f"/proc/{pid}/task")

    def stopped() -> bool:
        return all(
            each.read_text().rpartition(")")[2].split()[0] in "TtZX" for each in threads.glob("*/stat")
        )

    until(stopped, f"process {pid} stands still", despite=(FileNotFoundError, ProcessLookupError))


def until(
    condition: Callable[[], Any],
    what: str = "what was waited for",
    *,
    within: float = 60.0,
    despite: tuple[type[Exception], ...] = (),
) -> Any:
    """Return what `condition` returns as soon as that is true; fail when it isn't `within` so many seconds.

    Args:
        condition: asked again and again.
        what: how a failure names what never came.
        within: seconds.
        despite: errors that mean not yet.
    """
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with contextlib.suppress(*despite):
            if found := condition():
                return found
        time.sleep(0.01)  # asks again until it is so
    raise AssertionError(f"{what}: not within {within:g} s")


def free_ports(number: int) -> list[int]:
    """Return free ports, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
