"""Dead-process release: guarded locks of a killed process are released by another one on its host, at once.

A process that finds a lock busy looks, in the background, for processes of this deployment that have died
(`locking.core.liveness`), and is woken by the kernel (pidfd) when one dies while it waits. Of several that
notice, one has the flock on the dead one's file and does the work.

A dead client may have a COMMIT, a child or a command at work all the same. So only *guarded* locks are
released: those whose holder works behind its fence's row in a locked transaction, which makes the next one
wait for that COMMIT, and those whose user says so (`guarded=True`). All others end with their leases.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import select
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError, connections, router

from locking.backends.base import BaseLockBackend, Held
from locking.backends.capabilities import ForceRelease, Listing, releaser_of
from locking.core.at_exit import unreleased
from locking.core.handler import locks
from locking.core.liveness import DeadProcess, Record, peers, read, registration, seize
from locking.core.waits import waiters
from locking.exceptions import LockError
from locking.signals import Observer, lock_orphaned, notify, observe
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.ownership import is_guarded

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at every process while a lock is waited for, whatever the kernel has said."""

SETTLING: Final = 0.1
"""Seconds after which a server has surely worked off what a process had sent before it died."""

LONGEST_PAUSE: Final = 5.0
"""Seconds at most until a release is tried again whose backend didn't answer; doubled each time."""

GIVEN_UP_FOR: Final = 30.0
"""Seconds until a release is tried again that failed for a reason of our own."""

MOST_PIDFDS: Final = 100
"""Processes that are watched by the kernel; any further ones are looked at every `LOOK_AGAIN`."""


class Cleanup:
    """The release of what one dead process has left, in as many attempts as it takes."""

    def __init__(self, dead: DeadProcess) -> None:
        self.dead = dead
        self.due = now()
        self._pause = SETTLING
        self._was_clean = False

    def attempt(self) -> bool:
        """Release what may be released; True when there was nothing left, twice in a row.

        Once isn't enough: a server may still have had a request of the process to work off, or may have
        handed a lock over to a waiter whose socket it had not yet found closed.
        """
        record = self.dead.record
        try:
            released = sum(_clean(locks[alias], record) for alias in record.aliases if alias in locks)
        except LockError as error:
            logger.info("releasing the locks of the dead process %d has to wait: %s", record.pid, error)
            self._was_clean, self._pause = False, min(2 * self._pause, LONGEST_PAUSE)
            self.due = now() + self._pause
            return False
        was_clean, self._was_clean = self._was_clean, not released
        self.due = now() + SETTLING
        return was_clean and not released


def _clean(backend: BaseLockBackend, record: Record) -> int:
    """Release what a dead process has left on one backend, and return how many holds that were."""
    if not (isinstance(backend, ForceRelease) and isinstance(backend, Listing)) or backend.frees_with_holder:
        return 0
    kinds = ["lock", "fair"] if f"{backend.alias}/fair" in record.aliases else ["lock"]
    for kind in kinds:
        releaser_of(backend, kind).dequeue_owned(record.made)
    holds = [hold for hold in backend.all_held(backend.key("")) if record.leaves(hold.owner)]
    for hold in holds:
        if releaser_of(backend, hold.kind).force_release(hold.key, hold.owner):
            _report(backend, hold, record)
    return len(holds)


def _report(backend: BaseLockBackend, hold: Held, record: Record) -> None:
    """Report to the signal's receivers, the log, the metrics and the audit."""
    fields: dict[str, Any] = {
        "name": hold.key.removeprefix(backend.settings.key_prefix),
        "key": hold.key,
        "backend": backend.alias,
        "owner": hold.owner,
        "token": hold.token,
        "holder": f"{record.name}:{record.pid}",
    }
    notify(lock_orphaned, outcome="orphaned", **fields)
    _audit(fields, hold.kind)


def _audit(fields: dict[str, Any], kind: str) -> None:
    """Write the row; the lock is released by now, so without a database the log has to do."""
    if not apps.is_installed("locking"):
        return
    model: Any = apps.get_model("locking", "LockEvent")
    reason = f"the process {fields['holder']} has ended"
    row = model(
        action=model.Action.DEAD_PROCESS, actor="process liveness", reason=reason, kind=kind, **fields
    )
    alias = router.db_for_write(model)
    try:
        row.save(using=alias)
    except DatabaseError as error:
        logger.warning("the release of %r for a dead process has no audit row: %s", fields["name"], error)
        connections[alias].close()


# --- who looks ---------------------------------------------------------------------------------------------


class Watch:
    """The living processes of a directory, and which of them have ended since."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._known: set[Path] = set()
        self._pidfds: dict[Path, int] = {}
        """Those of which the kernel tells; the flocks of all others are tried at each look."""
        self._settled: set[Path] = set()
        self._folder, self._seen = Path(), 0
        self._look_again_at = 0.0
        self._hears, self._bell = os.pipe()
        os.set_blocking(self._bell, False)
        self._poll.register(self._hears, select.POLLIN)

    def refresh(self, folder: Path) -> list[DeadProcess]:
        """Look at the directory where it has changed; return those that were found dead and are ours now."""
        self._folder, changed = folder, os.stat(folder).st_mtime_ns
        all_of_them = now() >= self._look_again_at
        if changed != self._seen or all_of_them:
            self._seen = changed
            self._update(set(peers(folder)) - self._settled)
        if all_of_them:
            self._look_again_at = now() + LOOK_AGAIN
        looked_at = self._known if all_of_them else self._known - self._pidfds.keys()
        found = [dead for path in sorted(looked_at) if (dead := seize(path)) is not None]
        for dead in found:
            self._forget(dead.path)
            self._settled.add(dead.path)
        return found

    def _update(self, present: set[Path]) -> None:
        for path in self._known - present:
            self._forget(path)
        for path in present - self._known:
            self._known.add(path)
            self._open(path)

    def _open(self, path: Path) -> None:
        """Have the kernel tell when the process ends. Its pid may be another's by now; `seize` finds out."""
        record = read(path)
        if record is None or len(self._pidfds) >= MOST_PIDFDS:
            return
        with suppress(OSError, AttributeError):
            pidfd = os.pidfd_open(record.pid)
            self._pidfds[path] = pidfd
            self._poll.register(pidfd, select.POLLIN)

    def _close(self, path: Path) -> None:
        pidfd = self._pidfds.pop(path, None)
        if pidfd is not None:
            self._poll.unregister(pidfd)
            os.close(pidfd)

    def _forget(self, path: Path) -> None:
        self._close(path)
        self._known.discard(path)

    def wait(self, seconds: float) -> None:
        """Sleep until a process ends or `ring` is called, at most `seconds`."""
        by_pidfd = {pidfd: path for path, pidfd in self._pidfds.items()}
        for fd, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if fd == self._hears:
                os.read(fd, 4096)
            else:
                self._close(by_pidfd[fd])  # it stays readable for good

    def ring(self) -> None:
        """End a `wait` of another thread where there are other processes than at the last look."""
        with suppress(OSError):  # the directory is gone, or the bell rings already
            if os.stat(self._folder).st_mtime_ns != self._seen:
                os.write(self._bell, b"!")

    def close(self) -> None:
        """Close all descriptors."""
        for path in list(self._known):
            self._forget(path)
        os.close(self._hears)
        os.close(self._bell)


class Watcher:
    """Looks, in one thread per process, while a caller waits for a lock or a lock has to be released.

    `enabled` = False keeps it from looking: then the leases decide.
    """

    def __init__(self) -> None:
        self.enabled = True
        self._worker = Worker("locking-listen-processes", self._step)
        self.reset()

    def reset(self) -> None:
        """Start from nothing: a forked child has none of its parent's waiters."""
        self._mutex = threading.Lock()
        self._asked = False
        self._folder: Path | None = None
        self._watch: Watch | None = None
        self._cleanups: list[Cleanup] = []

    def look(self) -> None:
        """Have the thread look in the background, once and for as long as a caller waits."""
        with self._mutex:  # in which the watch isn't closed
            self._asked = True
            if self._watch is not None:
                self._watch.ring()
        first = waiters.total <= 1
        if self.enabled and registration.folder is not None and (first or not self._worker.running):
            self._worker.wake()

    def _step(self) -> float:
        """Look and release once; repeated until no caller waits and nothing is left."""
        more = False
        try:
            more = self._look()
        finally:
            if not more:
                self._close()
        return now() if more else math.inf

    def _look(self) -> bool:
        """Return whether there may be more to do."""
        folder = registration.folder
        if folder != self._folder:
            self._close()
            self._folder = folder
        if folder is None or not (self._is_needed() or self._cleanups):
            return False
        watch = self._watch = self._watch or Watch()
        self._cleanups += [Cleanup(dead) for dead in watch.refresh(folder)]
        self._cleanups = [cleanup for cleanup in self._cleanups if not _is_done(cleanup)]
        if not self._cleanups:
            connections.close_all()  # this thread's, which has no request whose end would do so
        due = min((cleanup.due - now() for cleanup in self._cleanups), default=LOOK_AGAIN)
        watch.wait(min(LOOK_AGAIN, due) if waiters.total or self._cleanups else 0.0)
        return True

    def _close(self) -> None:
        connections.close_all()
        with self._mutex:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        for cleanup in self._cleanups:
            cleanup.dead.close()
        self._cleanups = []

    def _is_needed(self) -> bool:
        """Whether a caller waits, or has asked for a look since the last one."""
        with self._mutex:
            asked, self._asked = self._asked, False
        return self.enabled and (asked or waiters.total > 0)


def _is_done(cleanup: Cleanup) -> bool:
    if cleanup.due > now():
        return False
    try:
        done = cleanup.attempt()
    except Exception:  # it must not keep the locks of other processes from being released
        logger.exception("releasing the locks of the dead process %d failed", cleanup.dead.record.pid)
        cleanup.due, done = now() + GIVEN_UP_FOR, False
    if done:
        cleanup.dead.forget()
    return done


watcher = Watcher()
after_fork(watcher.reset)


class Registrar(Observer):
    """Keeps this process's file up to date, and looks for dead processes while a lock is waited for."""

    def used(self, backend: BaseLockBackend) -> None:
        """Enter the backend into the file, before the first acquisition."""
        self._enter(backend.alias)

    def _enter(self, alias: str) -> None:
        if alias not in registration.aliases:
            registration.enter(alias.partition("/")[0], alias)

    def kept(self, owner: str, until: float) -> None:
        """Have the lock stay although its process may die before."""
        registration.keep(owner, until)

    def waiting(self, name: str, template: str | None, backend: str, change: int) -> None:
        """Look for a dead process that has what is waited for."""
        if change > 0:
            self._enter(backend)
            watcher.look()


def leave() -> None:
    """End in order: others may release what this process was unable to."""
    left = [lease.owner for lease in unreleased() if lease.renewed and is_guarded(lease.owner)]
    registration.leave(left, waiting=waiters.total > 0)


def start() -> None:
    """Have process liveness hear of this process's locks, and of its end."""
    observe(Registrar())
    atexit.register(leave)
