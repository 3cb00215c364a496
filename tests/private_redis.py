"""A Redis server that belongs to one test module: it may be paused, killed and flushed."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from config.embedded.redis import program
from orders.race.guard import guard_over, relieve


class PrivateRedis:
    """A running server and its socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "redis.sock")
        self.url = f"unix://{self.path}?db=0"
        command = [
            str(program()),
            "--port",
            "0",
            "--unixsocket",
            self.path,
            "--save",
            "",
            "--dir",
            str(folder),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._guard = guard_over(self.process.pid)
        self.client = redis.Redis(unix_socket_path=self.path)
        self._await_answer()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self.client.ping()
            except redis.ConnectionError:
                assert time.monotonic() < deadline, "the private redis-server did not start"
                time.sleep(0.01)
            else:
                return

    def pause(self) -> None:
        """Stop it in its tracks; sockets stay open."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.resume()
        self.process.kill()
        self.process.wait()
        relieve(self._guard)


@contextmanager
def private_redis() -> Iterator[PrivateRedis]:
    """A server for the length of the block; its folder is short, as Unix sockets want."""
    with tempfile.TemporaryDirectory(prefix="holdfast") as folder:
        server = PrivateRedis(Path(folder))
        try:
            yield server
        finally:
            server.close()
