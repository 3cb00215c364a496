"""Files of processes: one each, with an flock that the kernel releases when its process ends.

A file whose flock can be taken belongs to a dead process. It is replaced as a whole, never written to. A
process is judged only on its own host (boot id), in its own PID namespace, and where `/proc` agrees that it
is gone; without flock and `/proc` (outside Linux) all locks end with their leases.
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
from dataclasses import asdict, dataclass
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

fcntl: Any = import_module("fcntl") if find_spec("fcntl") and os.path.exists("/proc/self/stat") else None

SETTING: Final = "LOCKING_RUNTIME_DIR"

LEFT_OVER: Final = 24 * 3600.0
"""Seconds after which a file that can't be judged here is deleted. A living process touches its own."""

KEPT_LONGER: Final = 60.0
"""Seconds that are added to a kept lease's end, so that one file a minute serves any number of them."""


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


def directory() -> Path | None:
    """Return this deployment's directory, made if need be; None when process liveness is turned off.

    A process can release only what it reaches itself, so each deployment (locks, caches, databases) has its
    own.

    Raises:
        OSError: it can't be made or used; PermissionError where another user could put files there.
    """
    base = base_directory()
    if base is None:
        return None
    if fcntl is None:
        raise PermissionError(f"this system has no flock, or no /proc; leave {SETTING} out")
    caches, databases = getattr(settings, "CACHES", {}).values(), connections.settings.values()
    shared = [[str(cache.get(key)) for key in ("LOCATION", "KEY_PREFIX", "VERSION")] for cache in caches]
    shared += [[str(entry.get(key)) for key in ("ENGINE", "HOST", "PORT", "NAME")] for entry in databases]
    reached = repr([getattr(settings, "LOCKING", None), shared])
    with suppress(FileExistsError):
        base.mkdir(mode=0o700, parents=True)
    mode = _require_private(base)
    folder = base / hashlib.blake2b(reached.encode(), digest_size=8).hexdigest()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(mode)  # processes that share the one share the other
    _require_private(folder)
    return folder


def _require_private(folder: Path) -> int:
    """Return the mode of a directory, or refuse one to which a stranger may write: he could pass living
    processes off as dead. Only one that the setting names may be shared with a group.
    """
    found, shared = folder.lstat(), hasattr(settings, SETTING)
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a directory; set {SETTING} to another path")
    if found.st_mode & (stat.S_IWOTH if shared else stat.S_IWOTH | stat.S_IWGRP):
        raise PermissionError(f"other users may write to {folder}: chmod o-w,g-w, or set {SETTING}")
    if not shared and found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to the user {found.st_uid}: set {SETTING} to another path")
    return stat.S_IMODE(found.st_mode)


def host_identity() -> str:
    """Return what identifies this host since it was booted, and the namespace that its pids are of."""
    boot, namespace = platform.node(), 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{boot}/{namespace}"


def start_of(pid: int) -> str | None:
    """Return the moment at which a running process was started, in the kernel's own count; None: it is gone.

    With its pid that names a process for good, where a pid alone may have been given to another.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return "unknown"
    return None if fields[0] in "ZX" else fields[19]  # a zombie has ended, though its parent hasn't asked how


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
        kept: the Unix time until which its guarded leases have to stay although it is dead.
    """

    client: str
    host: str
    pid: int
    start: str | None
    name: str
    aliases: list[str]
    kept: float

    def is_running(self) -> bool:
        """Return whether `/proc` still has the process, whatever became of its flock."""
        now_there = start_of(self.pid)
        return now_there is not None and now_there in (self.start, "unknown")

    def made(self, owner: str) -> bool:
        """Return whether this owner is of an acquisition that the process made."""
        return process_of(owner) == self.client

    def leaves(self, owner: str) -> bool:
        """Return whether this owner's lease may be released now that the process is dead."""
        may_end = self.kept < time.time()  # noqa: TID251 this host's own dates
        return self.made(owner) and is_guarded(owner) and may_end


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
        self._close()
        self._mutex = threading.RLock()
        self.path: Path | None = None
        self.aliases: set[str] = set()
        """The backends that this process has used; asked before every acquisition."""
        self._kept = 0.0

    @property
    def fd(self) -> int | None:
        """The file descriptor whose flock says that this process is alive; None: there is none.

        A library that makes a daemon closes all descriptors: the number may be another file's by now.
        """
        with suppress(OSError):
            if self._fd is not None and _inode_of(self._fd) == self._inode:
                return self._fd
        return None

    def _close(self) -> None:
        fd, self._fd = self.fd, None
        if fd is not None:
            os.close(fd)

    def enter(self, *aliases: str) -> None:
        """Say that this process uses these backends; the first time it gets its file."""
        with self._mutex:
            self.aliases.update(aliases)
            self._write()

    def keep(self, owner: str, until: float) -> None:
        """Have a guarded lease stay until the Unix time `until`, even if this process dies before.

        All others of this process stay with it.
        """
        with self._mutex:
            if is_guarded(owner) and until > self._kept:
                self._kept = until + KEPT_LONGER
                self._write()

    def refresh(self) -> None:
        """Keep the file from looking old to a sweep of `/tmp`; make one where there is none any more."""
        with self._mutex:
            if self.path is not None and self.fd is not None:
                with suppress(OSError):
                    os.utime(self.path)
                    return
            if self.aliases:
                self._write()

    def leave(self, *, stays: bool = False) -> None:
        """End in order: delete the file, or leave it for others to clean up."""
        with self._mutex:
            if self.path is not None and not stays:
                with suppress(OSError):
                    self.path.unlink()

    def _write(self) -> None:
        """Put a new file in the place of the old one; one that can't be replaced is out of date, and goes.

        Never fails for want of a directory: that is logged once, and the leases decide.
        """
        try:
            if (folder := directory()) is not None:
                self._replace(folder)
        except OSError as error:
            self.leave()
            self._close()
            self.path, known = None, self.problem
            self.problem = (
                f"guarded locks of killed processes end with their leases: no process liveness, {error}"
            )
            if known is None:
                logger.warning("%s", self.problem)

    def _replace(self, folder: Path) -> None:
        """Make the file under another name first: under its own it never stands without an flock."""
        pid, aliases = os.getpid(), sorted(self.aliases)
        facts = (PROCESS.client_id, host_identity(), pid, start_of(pid), platform.node(), aliases, self._kept)
        text = json.dumps(asdict(Record(*facts)))
        path, draft = folder / PROCESS.client_id, folder / f".{PROCESS.client_id}"
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(fd, "w", closefd=False) as file:
                file.write(text)
            os.rename(draft, path)
        except BaseException:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        self._close()
        self._fd, self._inode, self.path, self.problem = fd, _inode_of(fd), path, None


def _inode_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


registration = Registration()
after_fork(registration.reset)


@dataclass(slots=True, eq=False)
class DeadProcess:
    """A process that has ended, and the flock on its file, which admits one process to its clean-up."""

    record: Record
    path: Path
    fd: int

    def close(self) -> None:
        """Let others have a look; a second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def peers(folder: Path) -> Iterator[Path]:
    """Yield the files of the other processes."""
    with suppress(OSError):  # the directory is gone
        for name in os.listdir(folder):
            if not name.startswith(".") and name != PROCESS.client_id:
                yield folder / name


def seize(path: Path) -> DeadProcess | None:
    """Return the dead process of a file; None when it lives, or when it isn't for this process to judge.

    A process that closed all its file descriptors has lost its flock and lives: /proc has the last word.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # gone, or another user's
        return None
    dead = None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found, record = os.fstat(fd), read(fd)
        is_current = os.access(path.parent, os.W_OK)  # a file system that takes nothing may be out of date
        if record is None or record.host != host_identity():
            if time.time() - found.st_mtime > LEFT_OVER:  # noqa: TID251 a file of this host
                path.unlink()
        elif is_current and found.st_nlink and not record.is_running():
            dead = DeadProcess(record, path, fd)
    except OSError:  # alive, or another process is at it
        pass
    finally:
        if dead is None:
            os.close(fd)
    return dead


def read(fd: int) -> Record | None:
    """Return what an open file says; None where it can't be understood."""
    try:
        return Record(**json.loads(os.pread(fd, 1 << 20, 0)))
    except (ValueError, TypeError):
        return None
