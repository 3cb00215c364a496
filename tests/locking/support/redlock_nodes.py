"""Independent Redis servers that can lose their memory, their place, or the time."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from config.embedded import redis_program
from tests.support import processes
from tests.support.processes import ServerProcess

PATIENCE = 20.0
SHIM = Path(__file__).with_name("clock_shim.c")


class Node:
    """A server behind a path that stays, no matter who answers there."""

    def __init__(self, folder: Path, shim: Path | None) -> None:
        folder.mkdir(parents=True)
        self._folder, self._shim = folder, shim
        self._path = folder / "node.sock"
        self._clock = folder / "clock"
        self._count = 0
        self._running: dict[Path, ServerProcess] = {}
        self.set_clock(0)
        self.waiter = self.start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"unix://{self._path}?db=0"

    def start(self, *, in_place: bool = True) -> Path:
        """Start an empty server and, by default, put it in the node's place."""
        self._count += 1
        path = self._folder / f"{self._count}.sock"
        command = [str(redis_program()), "--port", "0", "--unixsocket", str(path), "--save", ""]
        environment = dict(os.environ)
        if self._shim:
            environment |= {"LD_PRELOAD": str(self._shim), "CLOCK_OFFSET_FILE": str(self._clock)}
        self._running[path] = ServerProcess(self._folder, command, environment)
        until(lambda: client(path).ping(), "a server that answers")
        if in_place:
            self.put(path)
        return path

    def put(self, path: Path) -> None:
        """Let the server at `path` answer for this node from now on."""
        self._path.unlink(missing_ok=True)
        self._path.symlink_to(path)
        self.waiter = path

    def kill(self) -> None:
        """End the server that is in place; nothing that it knew is kept."""
        self._running.pop(self.waiter).kill()

    def pause(self) -> None:
        """Freeze it."""
        self._running[self.waiter].pause()

    def resume(self) -> None:
        """Let it go on."""
        self._running[self.waiter].resume()

    def set_clock(self, seconds: int) -> None:
        """Have its clock be off by so many seconds, at once."""
        with self._clock.open("r+b" if self._clock.exists() else "w+b") as file:
            file.write(struct.pack("q", seconds))

    def knows(self, key: str) -> bool:
        """Whether it has a lock of this name."""
        return bool(client(self.waiter).exists(key))

    def close(self) -> None:
        """End all its servers."""
        for process in self._running.values():
            process.kill()


def client(path: Path) -> redis.Redis:
    """A plain client, for looking behind the scenes."""
    return redis.Redis(unix_socket_path=str(path), socket_timeout=5)


def until(condition, what: str) -> None:
    processes.until(condition, what, within=PATIENCE, despite=(redis.RedisError,))


def compiled_shim(folder: Path) -> Path:
    """The shim that moves a process's clock."""
    library = folder / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"], check=True)
    return library


@contextmanager
def nodes(folder: Path, count: int, shim: Path | None = None) -> Iterator[list[Node]]:
    """Run this many nodes for the length of the block."""
    made = []
    try:
        for number in range(count):
            made.append(Node(folder / str(number), shim))
        yield made
    finally:
        for node in made:
            node.close()
