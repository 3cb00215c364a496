"""Process liveness: which processes of this host are alive, as the kernel knows it.

Every process that uses locks has a file in a directory of its user, and an flock on it for as long as it
lives. The kernel releases an flock with the process that has it, however that one ends; so a file whose flock
can be had belongs to a dead process. What the file says (JSON) is what another process must know to release
the dead one's locks: see `locking.core.dead_processes`.

A process is judged only on its own host (boot id) and in its own PID namespace, where `/proc` has to agree
that it is gone. Everybody else's locks end with their leases.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from locking.utils.background import after_fork
from locking.utils.ownership import PROCESS, process_of

logger = logging.getLogger(__name__)

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None
"""None on Windows, which has no flock: dead processes' locks end with their leases there."""

SETTING: Final = "LOCKING_RUNTIME_DIR"

LEFT_OVER: Final = 24 * 3600.0
"""Seconds after which a file that nobody here may judge is deleted, as one from before a reboot. A living
process touches its own every minute.
"""


# --- where -------------------------------------------------------------------------------------------------


def base_directory() -> Path | None:
    """Return the directory that `LOCKING_RUNTIME_DIR` names; None when it turns process liveness off.

    Raises:
        ImproperlyConfigured: the setting is no path.
    """
    chosen = getattr(settings, SETTING, ...)
    if chosen is None or (chosen is ... and fcntl is None):
        return None
    if chosen is ...:
        return Path(tempfile.gettempdir()) / f"holdfast-{os.geteuid()}"
    if not isinstance(chosen, str | Path) or not Path(chosen).is_absolute():
        raise ImproperlyConfigured(
            f"{SETTING} must be an absolute path, or None to leave dead processes to their leases; not"
            f" {chosen!r}"
        )
    return Path(chosen)


def deployment() -> str:
    """Return what tells the processes of one deployment from others: they share locks and databases.

    A process can release only what it reaches itself, so it leaves the files of other deployments alone.
    """
    aliases = getattr(settings, "LOCKING", None) or {}
    caches = getattr(settings, "CACHES", {})
    locks = {
        alias: [str(entry.get(key)) for key in ("BACKEND", "LOCATION", "KEY_PREFIX", "OPTIONS")]
        + [str(caches.get(entry.get("CACHE") or "default", {}).get("LOCATION"))]
        for alias, entry in aliases.items()
    }
    databases = {
        alias: [str(entry.get(key)) for key in ("ENGINE", "HOST", "PORT", "NAME")]
        for alias, entry in connections.settings.items()
    }
    text = json.dumps([locks, databases], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def directory() -> Path | None:
    """Return this deployment's directory, made if need be; None when process liveness is turned off.

    Raises:
        OSError: it can't be made or used; PermissionError where another user could put files there.
    """
    base = base_directory()
    if base is None:
        return None
    if fcntl is None:
        raise PermissionError(f"this system has no flock; leave {SETTING} out")
    shared = hasattr(settings, SETTING)
    with suppress(FileExistsError):
        base.mkdir(mode=0o700, parents=True)
    mode = _require_private(base, shared=shared)
    folder = base / deployment()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(mode)  # processes that share the one share the other
    _require_private(folder, shared=shared)
    return folder


def _require_private(folder: Path, *, shared: bool) -> int:
    """Return the mode of a directory, or refuse one to which a stranger may write: he could pass living
    processes off as dead. Only one that the setting names may be shared with a group.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a directory; set {SETTING} to another path")
    if found.st_mode & (stat.S_IWOTH if shared else stat.S_IWOTH | stat.S_IWGRP):
        raise PermissionError(f"other users may write to {folder}: chmod o-w,g-w, or set {SETTING}")
    if not shared and found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to the user {found.st_uid}: set {SETTING} to another path")
    return stat.S_IMODE(found.st_mode)


# --- who ---------------------------------------------------------------------------------------------------


def host_identity() -> str:
    """Return what identifies this host since it was booted, and the namespace that its pids are of."""
    boot, namespace = "", 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{boot or platform.node()}/{namespace}"


def start_of(pid: int) -> str | None:
    """Return the moment at which a running process was started, in the kernel's own count; None: it is gone.

    With its pid that names a process for good, where a pid alone may have been given to another.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() or not exists(pid) else "unknown"
    except OSError:
        return "unknown"
    return None if fields[0] in "ZX" else fields[19]  # a zombie has ended, though nobody has asked how


def exists(pid: int) -> bool:
    """Return whether a process has this pid, as far as the kernel tells without `/proc`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


class Session(NamedTuple):
    """A connection to a PostgreSQL: which one, and the process number of the server's side.

    Attributes:
        alias: of the database.
        server: host, port and name of the database as the connection knows them.
        pid: on the server.
        inherited: a parent has opened it, and may go on with it.
    """

    alias: str
    server: str
    pid: int
    inherited: bool = False


@dataclass(slots=True)
class Record:
    """What a process's file says.

    Attributes:
        client: the process's client id.
        host: see `host_identity`.
        pid: of the process.
        start: see `start_of`.
        name: of the machine, for people.
        aliases: the backends that it has used.
        acting: owners that it made in the name of a unit of work, such as a Celery task.
        kept: by owner, the Unix time until which a lease has to stay although its process is dead.
        only: where the process ended in order, the owners that may be released; None: all.
        sessions: its connections to PostgreSQL.
        unwatched: aliases of databases to which it is connected and whose sessions can't be told apart.
    """

    client: str
    host: str
    pid: int
    start: str | None
    name: str
    aliases: list[str] = field(default_factory=list)
    acting: list[str] = field(default_factory=list)
    kept: dict[str, float] = field(default_factory=dict)
    only: list[str] | None = None
    sessions: list[Session] = field(default_factory=list)
    unwatched: list[str] = field(default_factory=list)

    def as_text(self) -> str:
        """Return it as the file has it."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def parse(cls, text: bytes) -> Record | None:
        """Return what a file says; None where it can't be read: its process was killed while it wrote."""
        try:
            fields = json.loads(text)
            fields["sessions"] = [Session(*each) for each in fields["sessions"]]
            return cls(**fields)
        except (ValueError, TypeError, KeyError):
            return None

    def is_running(self) -> bool:
        """Return whether `/proc` still has the process, whatever became of its flock."""
        now_there = start_of(self.pid)
        return now_there is not None and now_there in (self.start, "unknown")

    def made(self, owner: str) -> bool:
        """Return whether this owner is of an acquisition that the process made."""
        return process_of(owner) == self.client or owner in self.acting

    def keeps(self, owner: str) -> bool:
        """Return whether this owner's lease has to stay until it ends."""
        return owner in self.kept or (self.only is not None and owner not in self.only)


# --- the sessions of this process ----------------------------------------------------------------------


class Sessions:
    """The database connections that Django has opened in this process.

    A forked child notes its parent's, too: it may go on with one of them, though not safely.
    """

    def __init__(self) -> None:
        self._open: list[tuple[weakref.ref[Any], Session | str]] = []
        self._mutex = threading.Lock()
        self._untold: set[str] = set()

    def reset(self) -> None:
        """Tell a forked child's connections from those that it has inherited."""
        self._mutex = threading.Lock()
        self._open = [
            (raw, told._replace(inherited=True) if isinstance(told, Session) else told)
            for raw, told in self._open
        ]

    def add(self, connection: BaseDatabaseWrapper) -> bool:
        """Note a new connection; False when there is nothing new to tell.

        SQLite has no sessions: what a dead process had begun there is rolled back by the next one. And on the
        connections of locks in a database nothing of the application's runs.
        """
        if connection.vendor == "sqlite" or getattr(connection, "locks_only", False):
            return False
        raw: Any = connection.connection
        with self._mutex:
            if any(known() is raw for known, _ in self._open):  # a pool gives the same one again
                return False
            try:
                self._open.append((weakref.ref(raw), _session_of(connection)))
            except TypeError:  # nobody could tell when it ends
                self._untold.add(connection.alias)
        return True

    def now(self) -> tuple[list[Session], list[str]]:
        """Return the open sessions on PostgreSQL, and the aliases of other open connections."""
        with self._mutex:
            self._open = [each for each in self._open if _is_open(each[0]())]
            told = [session for _, session in self._open]
        unwatched = self._untold.union(each for each in told if isinstance(each, str))
        return [each for each in told if isinstance(each, Session)], sorted(unwatched)


def _is_open(raw: Any) -> bool:
    """Tell whether a driver's connection is open: psycopg knows `closed`, MySQL's drivers `open`."""
    return raw is not None and not getattr(raw, "closed", False) and bool(getattr(raw, "open", True))


def _session_of(connection: BaseDatabaseWrapper) -> Session | str:
    if connection.vendor != "postgresql":
        return connection.alias
    info = connection.connection.info
    return Session(connection.alias, server_of(connection), info.backend_pid)


def server_of(connection: BaseDatabaseWrapper) -> str:
    """Return which database a connection to PostgreSQL has reached, without asking it."""
    info = connection.connection.info
    parts = (getattr(info, name, "") for name in ("host", "hostaddr", "port", "dbname"))
    return " ".join(str(part) for part in parts)


sessions = Sessions()


def _on_connection(connection: BaseDatabaseWrapper, **_: object) -> None:
    if sessions.add(connection):
        registration.rewrite()


# --- this process's file ---------------------------------------------------------------------------------


class Registration:
    """The file of this process, with the flock on it."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why this process has no file; None where it has one, or needs none."""
        self.fd: int | None = None
        """The file descriptor whose flock says that this process is alive."""
        self.reset()

    def reset(self) -> None:
        """Start from nothing: a forked child closes its parent's file, whose flock the parent keeps."""
        if self.fd is not None:
            with suppress(OSError):
                os.close(self.fd)
        self._mutex = threading.RLock()
        self.fd = None
        self.path: Path | None = None
        self.aliases: set[str] = set()
        """The backends that this process has used; asked before every acquisition."""
        self._acting: set[str] = set()
        self._kept: dict[str, float] = {}
        self._identity: tuple[str, int, str | None, str] = ("", 0, None, "")

    @property
    def folder(self) -> Path | None:
        """The directory of this process's file; None while it has none."""
        return None if self.fd is None or self.path is None else self.path.parent

    def enter(self, *aliases: str) -> None:
        """Say that this process uses these backends; the first time it gets its file.

        Never fails for want of a directory: that is logged once, and the leases decide.
        """
        with self._mutex:
            self.aliases.update(aliases)
            if self.fd is not None:
                self.rewrite()
            elif self.problem is None:
                self._open()

    def _open(self) -> None:
        try:
            self._create()
        except OSError as error:
            self._fail(f"locks of killed processes end with their leases: no process liveness, {error}")

    def _create(self) -> None:
        """Make the file under another name first: under its own it never stands without an flock."""
        folder = directory()
        if folder is None:
            return
        self._identity = (host_identity(), os.getpid(), start_of(os.getpid()), platform.node())
        path, draft = folder / PROCESS.client_id, folder / f".{PROCESS.client_id}"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write(fd, self._record().as_text())
            os.rename(draft, path)
        except OSError:
            os.close(fd)
            with suppress(OSError):
                os.unlink(draft)
            raise
        self.fd, self.path, self.problem = fd, path, None

    def _fail(self, problem: str) -> None:
        if self.problem is None:
            logger.warning("%s", problem)
        self.problem = problem

    def _record(self) -> Record:
        told, unwatched = sessions.now()
        if not apps.is_installed("locking"):  # connections from before our import weren't noted
            unwatched.append("INSTALLED_APPS")
        return Record(
            PROCESS.client_id,
            *self._identity,
            aliases=sorted(self.aliases),
            acting=sorted(self._acting),
            kept=dict(self._kept),
            sessions=told,
            unwatched=unwatched,
        )

    def rewrite(self, only: list[str] | None = None) -> None:
        """Bring the file up to date; nothing to do without one."""
        with self._mutex:
            if self.fd is None:
                return
            record = self._record()
            record.only = only
            try:
                _write(self.fd, record.as_text())
            except OSError as error:
                self._withdraw(error)

    def _withdraw(self, error: OSError) -> None:
        """Give the file up: what it says isn't true any more, and nobody may go by it."""
        fd, self.fd = self.fd, None
        assert fd is not None
        with suppress(OSError):
            os.ftruncate(fd, 0)  # first of all: the flock ends with the next line
        with suppress(OSError):
            os.unlink(str(self.path))
        os.close(fd)
        self._fail(f"process liveness is given up ({error}): locks of this process end with their leases")

    def keep(self, owner: str, until: float) -> None:
        """Have `owner`'s lease stay until the Unix time `until`, even if this process dies before."""
        with self._mutex:
            moment = time.time()  # noqa: TID251 this host's own dates
            self._acting.discard(owner)
            self._kept = {each: end for each, end in self._kept.items() if end > moment} | {owner: until}
            self.rewrite()

    def act(self, owner: str) -> None:
        """Note an acquisition in the name of a unit of work, whose owner doesn't tell that it is ours."""
        with self._mutex:
            self._acting.add(owner)
            self.rewrite()

    def act_no_more(self, owner: str) -> None:
        """Note that such an acquisition has ended."""
        with self._mutex:
            if owner in self._acting:
                self._acting.discard(owner)
                self.rewrite()

    def refresh(self) -> None:
        """Keep the file from looking old to a sweep of `/tmp`; make one where there is none any more."""
        with self._mutex:
            if self.fd is not None and os.fstat(self.fd).st_nlink == 0:
                fd, self.fd = self.fd, None
                os.close(fd)
            if self.fd is not None:
                os.utime(self.fd)
            elif self.aliases:
                self._open()

    def leave(self, left: list[str], *, waiting: bool = False) -> None:
        """End in order: delete the file, or leave it for others to clean up.

        Args:
            left: owners of leases that others may release.
            waiting: a daemon thread of this process is still in the queue of a lock.
        """
        with self._mutex:
            if self.fd is None:
                return
            if left or waiting:
                self.rewrite(only=left)
            else:
                with suppress(OSError):
                    os.unlink(str(self.path))


def _write(fd: int, text: str) -> None:
    """Write a whole file in one call. One that is cut off can't be parsed, and so isn't gone by."""
    data = text.encode() + b"\n"
    try:
        if os.pwrite(fd, data, 0) < len(data):
            raise OSError("the disk is full")
        os.ftruncate(fd, len(data))
    except OSError:
        with suppress(OSError):
            os.ftruncate(fd, 0)
        raise


registration = Registration()
after_fork(sessions.reset)
after_fork(registration.reset)
connection_created.connect(_on_connection, dispatch_uid="locking.core.liveness")


# --- other processes -------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class DeadProcess:
    """A process that has ended, and the flock on its file, which admits one process to its clean-up."""

    record: Record
    path: Path
    fd: int

    def forget(self) -> None:
        """Delete the file, where that is allowed: nothing is left to release."""
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let others have a look; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def peers(folder: Path) -> Iterator[Path]:
    """Yield the files of the other processes."""
    for name in os.listdir(folder):
        if not name.startswith(".") and name != PROCESS.client_id:
            yield folder / name


def read(path: Path) -> Record | None:
    """Return what the file of another process says; None where that can't be told."""
    try:
        return Record.parse(path.read_bytes())
    except OSError:
        return None


def seize(path: Path) -> DeadProcess | None:
    """Return the dead process of a file; None when it lives, or when it isn't for this process to judge."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # gone, or another user's
        return None
    dead = None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        dead = _judged(path, fd)
    except OSError:  # alive, or another process is at it
        pass
    finally:
        if dead is None:
            os.close(fd)
    return dead


def _judged(path: Path, fd: int) -> DeadProcess | None:
    """Return the dead process, once we have its flock.

    A process that closed all its file descriptors has lost its flock and lives: /proc has the last word.
    """
    found = os.fstat(fd)
    record = Record.parse(os.pread(fd, found.st_size, 0))
    if record is None or record.host != host_identity():
        if time.time() - found.st_mtime > LEFT_OVER:  # noqa: TID251 a file of this host
            path.unlink()
        return None
    return None if not found.st_nlink or record.is_running() else DeadProcess(record, path, fd)
