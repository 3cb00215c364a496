"""Process liveness: which processes of this host are alive, as the kernel knows it.

Every process that uses locks has a file in a directory of its user, and an flock on it for as long as it
lives. The kernel releases an flock with the process that has it, however that one ends; so a file whose flock
can be taken belongs to a dead process. What the file says (JSON) is what another process must know to release
the dead one's locks: see `locking.core.dead_processes`.

A process is judged only on its own host (boot id) and in its own PID namespace, where `/proc` has to agree
that it is gone. All other locks end with their leases.
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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from locking.utils.background import after_fork
from locking.utils.ownership import PROCESS, is_guarded, process_of

logger = logging.getLogger(__name__)

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None
"""None on Windows, which has no flock: dead processes' locks end with their leases there."""

SETTING: Final = "LOCKING_RUNTIME_DIR"

MOST_KEPT: Final = 100
"""Guarded leases that are left to their ends of which a process's file tells."""

LEFT_OVER: Final = 24 * 3600.0
"""Seconds after which a file that can't be judged here is deleted, as one from before a reboot. A living
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


SHARED_BY_CACHES: Final = ("LOCATION", "KEY_PREFIX", "VERSION")
"""What a cache passes on to the locks that share it."""


def deployment() -> str:
    """Return what tells the processes of one deployment from others: they share locks and databases.

    A process can release only what it reaches itself, so it leaves the files of other deployments alone.
    """
    aliases = getattr(settings, "LOCKING", None) or {}
    caches = getattr(settings, "CACHES", {})
    locks = {
        alias: [str(entry.get(key)) for key in ("BACKEND", "LOCATION", "KEY_PREFIX", "OPTIONS")]
        + [str(caches.get(entry.get("CACHE") or "default", {}).get(key)) for key in SHARED_BY_CACHES]
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
    return None if fields[0] in "ZX" else fields[19]  # a zombie has ended, though its parent hasn't asked how


def exists(pid: int) -> bool:
    """Return whether a process has this pid, as far as the kernel tells without `/proc`."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


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
        kept: by owner, the Unix time until which a guarded lease has to stay although its process is dead.
        only: the owners that may be released; None: all that are guarded.
    """

    client: str
    host: str
    pid: int
    start: str | None
    name: str
    aliases: list[str] = field(default_factory=list)
    kept: dict[str, float] = field(default_factory=dict)
    only: list[str] | None = None

    def as_text(self) -> str:
        """Return it as the file has it."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def parse(cls, text: bytes) -> Record | None:
        """Return what a file says; None where it can't be read: its process was killed while it wrote."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def is_running(self) -> bool:
        """Return whether `/proc` still has the process, whatever became of its flock."""
        now_there = start_of(self.pid)
        return now_there is not None and now_there in (self.start, "unknown")

    def made(self, owner: str) -> bool:
        """Return whether this owner is of an acquisition that the process made."""
        return process_of(owner) == self.client

    def leaves(self, owner: str) -> bool:
        """Return whether this owner's lease may be released now that the process is dead."""
        chosen = self.only is None or owner in self.only
        return self.made(owner) and is_guarded(owner) and chosen and owner not in self.kept


# --- this process's file ---------------------------------------------------------------------------------


class Registration:
    """The file of this process, with the flock on it."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why this process has no file; None where it has one, or needs none."""
        self._fd: int | None = None
        self._inode = (0, 0)
        self.reset()

    def reset(self) -> None:
        """Start from nothing: a forked child closes its parent's file, whose flock the parent keeps."""
        if (fd := self.fd) is not None:
            os.close(fd)
        self._mutex = threading.RLock()
        self._fd = None
        self.path: Path | None = None
        self.aliases: set[str] = set()
        """The backends that this process has used; asked before every acquisition."""
        self._kept: dict[str, float] = {}
        self._all_kept_until = 0.0
        self._identity: tuple[str, int, str | None, str] = ("", 0, None, "")

    @property
    def fd(self) -> int | None:
        """The file descriptor whose flock says that this process is alive; None: there is none.

        Who closes all descriptors, as a library does that makes a daemon, has closed this one as well. Its
        number may be another file's by now, which is neither written to nor closed.
        """
        with suppress(OSError):
            if self._fd is not None and _inode_of(os.fstat(self._fd)) == self._inode:
                return self._fd
        self._fd = None
        return None

    @property
    def folder(self) -> Path | None:
        """The directory of this process's file; None while it has none."""
        return None if self._fd is None or self.path is None else self.path.parent

    def enter(self, *aliases: str) -> None:
        """Say that this process uses these backends; the first time it gets its file.

        Never fails for want of a directory: that is logged once, and the leases decide.
        """
        with self._mutex:
            self.aliases.update(aliases)
            self.rewrite()

    def _open(self) -> None:
        try:
            self._create()
        except OSError as error:
            self._fail(
                f"guarded locks of killed processes end with their leases: no process liveness, {error}"
            )

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
        self._fd, self._inode, self.path, self.problem = fd, _inode_of(os.fstat(fd)), path, None

    def _fail(self, problem: str) -> None:
        if self.problem is None:
            logger.warning("%s", problem)
        self.problem = problem

    def _record(self, only: list[str] | None = None) -> Record:
        if self._all_kept_until > time.time():  # noqa: TID251 this host's own dates
            only = []
        return Record(
            PROCESS.client_id,
            *self._identity,
            aliases=sorted(self.aliases),
            kept=dict(self._kept),
            only=only,
        )

    def rewrite(self, only: list[str] | None = None) -> None:
        """Bring the file up to date, and make it where there is none, unless that has failed before."""
        with self._mutex:
            if (fd := self.fd) is None:
                if self.problem is None:
                    self._open()
                return
            try:
                _write(fd, self._record(only).as_text())
            except OSError as error:
                self._withdraw(fd, error)

    def _withdraw(self, fd: int, error: OSError) -> None:
        """Give the file up: what it says isn't true any more, and must not be used."""
        self._fd = None
        with suppress(OSError):
            os.ftruncate(fd, 0)  # first of all: the flock ends with the next line
        with suppress(OSError):
            os.unlink(str(self.path))
        os.close(fd)
        self._fail(f"process liveness is given up ({error}): locks of this process end with their leases")

    def keep(self, owner: str, until: float) -> None:
        """Have a guarded lease stay until the Unix time `until`, even if this process dies before.

        Of more than `MOST_KEPT` no list is kept: until the last of them ends, all of this process's stay.
        """
        if not is_guarded(owner) or until <= self._all_kept_until:
            return
        with self._mutex:
            moment = time.time()  # noqa: TID251 this host's own dates
            self._kept = {each: end for each, end in self._kept.items() if end > moment} | {owner: until}
            if len(self._kept) > MOST_KEPT:
                self._all_kept_until, self._kept = max(self._kept.values()), {}
            self.rewrite()

    def refresh(self) -> None:
        """Keep the file from looking old to a sweep of `/tmp`; make one where there is none any more."""
        with self._mutex:
            if (fd := self.fd) is not None and os.fstat(fd).st_nlink == 0:
                self._fd = None
                os.close(fd)
            if self._fd is not None:
                os.utime(self._fd)
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


def _inode_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


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
after_fork(registration.reset)


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
    """Return what the file of another process says; None where that isn't known."""
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
    if not os.access(
        path.parent, os.W_OK
    ):  # a file system that takes nothing any more: it may be out of date
        return None
    found = os.fstat(fd)
    record = Record.parse(os.pread(fd, found.st_size, 0))
    if record is None or record.host != host_identity():
        if time.time() - found.st_mtime > LEFT_OVER:  # noqa: TID251 a file of this host
            path.unlink()
        return None
    return None if not found.st_nlink or record.is_running() else DeadProcess(record, path, fd)
