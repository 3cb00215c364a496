"""A Redis of the benchmark's own: on loopback TCP, as people run it, and without persistence."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from config.embedded import redis_program

START_SECONDS = 10.0


class Work(NamedTuple):
    """What the server has done since it started, as it says itself.

    Attributes:
        requests: reads from clients. Where a client sends one request and waits for its reply, as every peer
            here does, that is the number of requests.
        commands: commands run, those inside scripts included.
        cpu: seconds of processor time.
    """

    requests: int
    commands: int
    cpu: float

    def since(self, earlier: Work) -> Work:
        """Return what was done after `earlier`, without the INFO that read `earlier`."""
        return Work(
            self.requests - earlier.requests - 1,
            self.commands - earlier.commands - 1,
            self.cpu - earlier.cpu,
        )


class Server:
    """The running server and a connection that asks it for its counters."""

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self.client = Redis.from_url(self.url)

    def work(self) -> Work:
        """Return the counters of this moment."""
        facts: dict[str, Any] = self.client.info("everything")
        cpu = facts["used_cpu_user"] + facts["used_cpu_sys"]
        return Work(facts["total_reads_processed"], facts["total_commands_processed"], cpu)

    def clear(self) -> None:
        """Forget every key; scripts stay known."""
        self.client.flushall()

    def wait_until_ready(self) -> None:
        """Return when it answers, or raise after `START_SECONDS`."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.ping()
                return
            except RedisConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


@contextmanager
def private_redis() -> Iterator[Server]:
    """Start a server on a free port and stop it at the end."""
    port = _free_port()
    settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        process = subprocess.Popen(
            [redis_program(), *settings, "--dir", folder, "--logfile", "redis.log"],
            stdout=subprocess.DEVNULL,
        )
        try:
            server = Server(port)
            server.wait_until_ready()
            yield server
        finally:
            process.terminate()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
