"""Process liveness: guarded locks of a killed process are released by another process of its host, at once.

Each process has an empty file per backend used: its name says which process it is, its time until when its
leases have to stay. `/proc` tells who lives: pid and start name a process for good, on its own host (boot id)
and in its own PID namespace. Without `/proc` (outside Linux) all locks end with their leases.

A process that waits for a lock looks for dead ones. The file of one stays until two looks in a row have found
nothing of it: a server may work off a request of its later, or hand a lock over to a waiter whose socket it
has not yet found closed.

A dead client may have a COMMIT or a child at work all the same. So only *guarded* locks are released: behind
the fence's row the next one waits for that COMMIT, or the user says so (`guarded=True`).
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import ForceRelease, Listing, releaser_of
from locking.core.handler import locks
from locking.core.lease import live_leases
from locking.core.waits import waiters
from locking.exceptions import LockError
from locking.signals import Observer, lock_orphaned, notify
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely
from locking.utils.ownership import PROCESS, is_guarded, process_of

logger = logging.getLogger(__name__)

HAS_PROC: Final = hasattr(os, "geteuid") and os.path.exists("/proc/self/stat")
SETTING: Final = "LOCKING_RUNTIME_DIR"
LOOK_AGAIN: Final = 0.05  # seconds between two looks at every process while a lock is waited for
LOOKING_SHARE: Final = 20  # a look is followed by a pause of so many times its length at least
ENOUGH: Final = 2  # looks in a row that find nothing of a dead process, after which its file goes
AFTER_TROUBLE: Final = 1.0  # seconds until a release is tried again that failed


def base_directory() -> Path | None:
    """Return the directory that `LOCKING_RUNTIME_DIR` names; None when it turns process liveness off."""
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
    """Return the directory of the files, made if need be; None: turned off. OSError: it can't be used."""
    # A stranger who may write to it could pass living processes off as dead. Only one that the setting names
    # may be shared with a group.
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


def mark() -> str:
    """Return what processes share that may judge each other: boot, namespace of pids, and all locks."""
    boot, namespace = platform.node(), 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    caches, databases = getattr(settings, "CACHES", {}).values(), connections.settings.values()
    shared = [[str(cache.get(key)) for key in ("LOCATION", "KEY_PREFIX", "VERSION")] for cache in caches]
    shared += [[str(entry.get(key)) for key in ("ENGINE", "HOST", "PORT", "NAME")] for entry in databases]
    place = repr([boot, namespace, getattr(settings, "LOCKING", None), shared])
    return hashlib.blake2b(place.encode(), digest_size=8).hexdigest()


def start_of(pid: int) -> str | None:
    """Return when a process was started, as the kernel counts; "" if it has ended, None if it is hidden."""
    try:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended, or /proc shows users their own only
            os.kill(pid, 0)
            return None
    except ProcessLookupError:
        return ""
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended, though its parent hasn't asked how


class Record(NamedTuple):
    """What a process's file says, by its name and its time."""

    client: str
    pid: int
    start: str  # see `start_of`
    alias: str  # of a backend that it has used
    kept: float  # the Unix time until which its guarded leases have to stay although it is dead

    def is_running(self) -> bool:
        """Return whether the process may live still."""
        return start_of(self.pid) in (self.start, None)

    def made(self, owner: str) -> bool:
        """Return whether this owner is of an acquisition that the process made."""
        return process_of(owner) == self.client

    def leaves(self, owner: str) -> bool:
        """Return whether this owner's lease may be released now that the process is dead."""
        return self.made(owner) and is_guarded(owner) and self.kept < time.time()  # noqa: TID251 this host's


class Registration:
    """The files of this process."""

    def __init__(self) -> None:
        self.problem: str | None = None  # why it has none, if it should have one
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: a forked child leaves its parent's files alone."""
        self._mutex = threading.RLock()
        self.folder: Path | None = None
        self.aliases, self._files, self._kept = set[str](), set[Path](), 0.0

    def enter(self, alias: str) -> None:
        """Say that this process uses this backend; asked before every acquisition."""
        if alias not in self.aliases:
            with self._mutex:
                self.aliases.add(alias)
                self.refresh()

    def keep(self, owner: str, until: float) -> None:
        """Have guarded leases stay until the Unix time `until`, even if this process dies before."""
        with self._mutex:
            if is_guarded(owner) and until > self._kept:
                self._kept = until
                self.refresh()

    def refresh(self) -> None:
        """Have a file for each backend, too young for a sweep of `/tmp`; that it can't is logged once."""
        pid, until = os.getpid(), max(self._kept, time.time())  # noqa: TID251 this host's
        try:
            if not self.aliases or (folder := directory()) is None:
                return
            process = f"{mark()}.{pid}.{start_of(pid)}.{PROCESS.client_id}"
            with self._mutex:
                for path in [folder / f"{process}.{quote(alias, safe='')}" for alias in self.aliases]:
                    self._files.add(path)
                    path.touch(0o600)
                    os.utime(path, (until, until))
                self.folder, self.problem = folder, None
        except OSError as error:
            self.leave()  # one that can't be brought up to date may say what is untrue
            self.folder, known = None, self.problem
            self.problem = f"guarded locks of killed processes end with their leases: no liveness, {error}"
            if known is None:
                logger.warning("%s", self.problem)

    def leave(self) -> None:
        """Delete the files."""
        with self._mutex:
            while self._files:
                with suppress(OSError):
                    self._files.pop().unlink()


registration = Registration()


def peers(folder: Path) -> dict[Path, Record]:
    """Return the files of the other processes that may be judged here."""
    found, near = dict[Path, Record](), f"{mark()}."
    with suppress(OSError):  # the directory is gone
        for file in os.scandir(folder):
            with suppress(OSError, ValueError):  # it is gone, or no process's
                if file.name.startswith(near):
                    _, pid, start, client, alias = file.name.split(".", 4)
                    record = Record(client, int(pid), start, unquote(alias), file.stat().st_mtime)
                    if client != PROCESS.client_id:
                        found[folder / file.name] = record
    return found


def clean(record: Record) -> int | None:
    """Release what a dead process has left, and return how many holds that were; None where it failed."""
    try:
        return _clean(locks[record.alias], record) if record.alias in locks else 0
    except Exception as error:  # it must not keep what lies elsewhere from being released
        level = logging.INFO if isinstance(error, LockError) else logging.ERROR
        text = "releasing the locks of the dead process %d on %r has to wait: %s"
        log_rarely(logger, level, ("dead process", record.alias), text, record.pid, record.alias, error)
        return None


def _clean(backend: BaseLockBackend, record: Record) -> int:
    if not (isinstance(backend, ForceRelease) and isinstance(backend, Listing)) or backend.frees_with_holder:
        return 0
    backend.dequeue_owned(record.made)
    holds = [hold for hold in backend.all_held(backend.key("")) if record.leaves(hold.owner)]
    for hold in holds:
        releaser = releaser_of(backend, hold.kind)
        if releaser.force_release(hold.key, hold.owner):
            name, holder = (
                hold.key.removeprefix(backend.settings.key_prefix),
                f"{platform.node()}:{record.pid}",
            )
            who = {"owner": hold.owner, "token": hold.token, "holder": holder}
            notify(lock_orphaned, outcome="orphaned", name=name, key=hold.key, backend=releaser.alias, **who)
    return len(holds)


class Watcher(Observer):
    """Keeps this process's files up to date, and looks for dead processes while a lock is waited for."""

    def __init__(self) -> None:
        self.enabled = True  # False keeps it from looking: then the leases decide
        self._worker = Worker("locking-listen-processes", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing."""
        self.looks, self._next_look = dict[Path, int](), 0.0  # looks in a row that found nothing, by the file

    def used(self, backend: BaseLockBackend) -> None:
        registration.enter(backend.settings.alias)

    def kept(self, owner: str, until: float) -> None:
        registration.keep(owner, until)

    def waiting(self, name: str, template: str | None, backend: str, change: int) -> None:
        if change > 0:
            registration.enter(backend.partition("/")[0])
            self.look()

    def look(self) -> None:
        """Have the thread look, soon and then for as long as a lock is waited for."""
        if self.enabled and registration.folder is not None:
            self._worker.wake_by(self._next_look)

    def _step(self) -> float:
        begun, folder, pause = now(), registration.folder, LOOK_AGAIN
        if folder is None or not self.enabled:
            self.reset()
            return math.inf
        dead = {file: record for file, record in peers(folder).items() if not record.is_running()}
        looked = now() - begun
        self.looks = {file: self.looks.get(file, 0) for file in dead}
        for file in self._unfinished():
            self.looks[file] = self.looks[file] + 1 if (released := clean(dead[file])) == 0 else 0
            if self.looks[file] == ENOUGH:
                with suppress(OSError):  # another process has deleted it, or it is another user's
                    file.unlink()
            pause = AFTER_TROUBLE if released is None else pause
        self._next_look = now() + max(pause, LOOKING_SHARE * looked)
        return self._next_look if waiters.total or self._unfinished() else math.inf

    def _unfinished(self) -> list[Path]:
        return [file for file, looks in self.looks.items() if looks < ENOUGH]


watcher = Watcher()


def leave() -> None:
    """Delete the files, unless a guarded lock is left that others may release."""
    if not any(lease.open and lease.renewed and is_guarded(lease.owner) for lease in live_leases()):
        registration.leave()
