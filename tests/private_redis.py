"""A Redis server that belongs to one test module: it may be paused, killed and flushed."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from config.embedded import redis_program
from tests.support.processes import ServerProcess, until


class PrivateRedis(ServerProcess):
    """A running server and its socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "redis.sock")
        self.url = f"unix://{self.path}?db=0"
        options = ["--port", "0", "--unixsocket", self.path, "--save", ""]
        super().__init__(folder, [str(redis_program()), *options])
        self.client = redis.Redis(unix_socket_path=self.path)
        until(self.client.ping, "a private redis-server", despite=(redis.ConnectionError,))

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.kill()


@contextmanager
def private_redis() -> Iterator[PrivateRedis]:
    """A server for the length of the block; its folder is short, as Unix sockets want."""
    with tempfile.TemporaryDirectory(prefix="holdfast") as folder:
        server = PrivateRedis(Path(folder))
        try:
            yield server
        finally:
            server.close()
