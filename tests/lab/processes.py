"""Leading buyers that are processes: two memories, and a death that no handler sees."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.lab.interleaving import PATIENCE
from tests.support.warm import WarmProcess


class ProcessBuyer:
    """A buyer whose checkpoints are read from its output."""

    def __init__(self, strategy: str, sku: str, quantity: int, stop: str) -> None:
        command = ["-m", "tests.lab.process_buyer", strategy, sku, str(quantity), stop]
        self._process = WarmProcess(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # Reading its output has no time-out of its own; ending the process ends it.
        self._alarm = threading.Timer(PATIENCE * 2, self._process.kill)
        self._alarm.start()

    def reaches(self, name: str) -> ProcessBuyer:
        """Wait until the buyer says `name`."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == name:
                return self
        raise AssertionError(f"the process ended before it came to {name}")

    def goes_on(self) -> ProcessBuyer:
        """Let it leave its stop."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self

    def ends(self) -> str:
        """Let it run to its end and return the last word it said: `sold`, or the name of its error."""
        output, _ = self._process.communicate("\n", timeout=PATIENCE)
        assert self._process.returncode == 0
        return output.split()[-1]

    def is_killed(self) -> None:
        """Kill it with SIGKILL and wait until it is gone."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Leave nothing behind."""
        self._alarm.cancel()
        self.is_killed()


@contextmanager
def process_buyers() -> Iterator[Callable[..., ProcessBuyer]]:
    """Give a function that starts buyers in processes; afterwards none of them is left."""
    started: list[ProcessBuyer] = []

    def start(strategy: str, sku: str, quantity: int = 1, stop: str = "read") -> ProcessBuyer:
        started.append(ProcessBuyer(strategy, sku, quantity, stop))
        return started[-1]

    try:
        yield start
    finally:
        for buyer in started:
            buyer.close()
