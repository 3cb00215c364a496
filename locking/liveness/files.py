"""Files of processes: one each, by which its host's other processes find out that it has died.

`/proc` tells who lives: a pid and the moment at which it was started name a process for good. It is judged
only on its own host (boot id), in its own PID namespace and by processes with the same locks. A file is
replaced as a whole, never written to. Without `/proc` (outside Linux) all locks end with their leases.
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
from pathlib import Path
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from locking.utils.background import after_fork
from locking.utils.ownership import PROCESS, is_guarded, process_of

logger = logging.getLogger(__name__)

HAS_PROC: Final = hasattr(os, "geteuid") and os.path.exists("/proc/self/stat")

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
    if chosen is None or (chosen is ... and not HAS_PROC):
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
    """Return the directory of the files, made if need be; None when process liveness is turned off.

    Raises:
        OSError: it can't be made or used; PermissionError where a stranger may write to it, who could pass
            living processes off as dead. Only one that the setting names may be shared with a group.
    """
    folder = base_directory()
    if folder is None:
        return None
    if not HAS_PROC:
        raise PermissionError(f"this system has no /proc; leave {SETTING} out")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found, shared = folder.lstat(), hasattr(settings, SETTING)
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a directory; set {SETTING} to another path")
    if found.st_mode & (stat.S_IWOTH if shared else stat.S_IWOTH | stat.S_IWGRP):
        raise PermissionError(f"other users may write to {folder}: chmod o-w,g-w, or set {SETTING}")
    if not shared and found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to the user {found.st_uid}: set {SETTING} to another path")
    return folder


def place() -> str:
    """Return what processes have in common that may judge each other.

    That is the host since it was booted, the namespace of its pids, and the locks, caches and databases: a
    process can release only what it reaches itself.
    """
    boot, namespace = platform.node(), 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    caches, databases = getattr(settings, "CACHES", {}).values(), connections.settings.values()
    shared = [[str(cache.get(key)) for key in ("LOCATION", "KEY_PREFIX", "VERSION")] for cache in caches]
    shared += [[str(entry.get(key)) for key in ("ENGINE", "HOST", "PORT", "NAME")] for entry in databases]
    reached = repr([getattr(settings, "LOCKING", None), shared])
    return f"{boot}/{namespace}/{hashlib.blake2b(reached.encode(), digest_size=8).hexdigest()}"


def start_of(pid: int) -> str | None:
    """Return when a process was started, as the kernel counts; "" if it has ended, None if it is hidden.

    With its pid that names a process for good, where a pid alone may have been given to another.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or /proc shows users their own only
        with suppress(PermissionError):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return ""
        return None
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended, though its parent hasn't asked how


@dataclass(slots=True)
class Record:
    """What a process's file says.

    Attributes:
        client: the process's client id.
        place: see `place`.
        pid: of the process.
        start: see `start_of`.
        name: of the machine, for people.
        aliases: the backends that it has used.
        kept: the Unix time until which its guarded leases have to stay although it is dead.
    """

    client: str
    place: str
    pid: int
    start: str | None
    name: str
    aliases: list[str]
    kept: float

    def is_running(self) -> bool:
        """Return whether the process may live still."""
        found = start_of(self.pid)
        return found is None or (found != "" and self.start in (found, None))

    def made(self, owner: str) -> bool:
        """Return whether this owner is of an acquisition that the process made."""
        return process_of(owner) == self.client

    def leaves(self, owner: str) -> bool:
        """Return whether this owner's lease may be released now that the process is dead."""
        return self.made(owner) and is_guarded(owner) and self.kept < time.time()  # noqa: TID251 this host's


class Registration:
    """The file of this process."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """Why this process has no file; None where it has one, or needs none."""
        self.reset()

    def reset(self) -> None:
        """Start from nothing: a forked child leaves its parent's file alone."""
        self._mutex = threading.RLock()
        self.path: Path | None = None
        self.aliases: set[str] = set()
        """The backends that this process has used; asked before every acquisition."""
        self._kept = 0.0

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
            if self.path is not None:
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
        pid, aliases = os.getpid(), sorted(self.aliases)
        try:
            if (folder := directory()) is None:
                return
            facts = (PROCESS.client_id, place(), pid, start_of(pid), platform.node(), aliases, self._kept)
            name = file_name(PROCESS.client_id)
            path, draft = folder / name, folder / f".{name}"
            draft.write_text(json.dumps(asdict(Record(*facts))))
            os.rename(draft, path)
            self.path, self.problem = path, None
        except OSError as error:
            self.leave()
            self.path, known = None, self.problem
            self.problem = (
                f"guarded locks of killed processes end with their leases: no process liveness, {error}"
            )
            if known is None:
                logger.warning("%s", self.problem)


registration = Registration()
after_fork(registration.reset)


def file_name(client: str) -> str:
    """Return the name of a process's file, which begins with what its place makes: others aren't opened."""
    return f"{hashlib.blake2b(place().encode(), digest_size=8).hexdigest()}-{client}"


def peers(folder: Path) -> Iterator[Path]:
    """Yield the files of the other processes that may be judged here, and what is long left over."""
    near = file_name("")
    with suppress(OSError):  # the directory is gone
        for file in os.scandir(folder):
            is_another = not file.name.startswith(".") and file.name != near + PROCESS.client_id
            if is_another and (file.name.startswith(near) or _is_left_over(file)):
                yield folder / file.name


def _is_left_over(file: Path | os.DirEntry[str]) -> bool:
    with suppress(OSError):  # another process has deleted it meanwhile
        return time.time() - file.stat(follow_symlinks=False).st_mtime > LEFT_OVER  # noqa: TID251 this host's
    return False


def seize(path: Path) -> Record | None:
    """Delete the file of a dead process, which only one can, and return what it said.

    None when the process lives, another has seized it, or it isn't for this process to judge.
    """
    with suppress(OSError):  # gone, another user's, or on a file system that takes nothing
        record = read(path)
        if record is not None and record.is_running():
            return None
        is_ours = record is not None and record.place == place()
        if is_ours or _is_left_over(path):
            path.unlink()
            return record if is_ours else None
    return None


def read(path: Path) -> Record | None:
    """Return what a file says; None where it can't be understood."""
    try:
        return Record(**json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return None
