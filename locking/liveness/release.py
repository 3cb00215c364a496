"""Dead-process release: a process that waits for a lock looks for processes of its deployment that have died.

Each file of a dead process stays until two looks in a row have found nothing of it: a server may have had a
request of its to work off, or may have handed a lock over to a waiter whose socket it had not yet found
closed. Who looks next goes on, whichever process began.

A dead client may have a COMMIT, a child or a command at work all the same. So only *guarded* locks are
released: those whose holder works behind its fence's row in a locked transaction, which makes the next one
wait for that COMMIT, and those whose user says so (`guarded=True`). All others end with their leases.
"""

from __future__ import annotations

import atexit
import logging
import math
import platform
from contextlib import suppress
from pathlib import Path
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.backends.capabilities import ForceRelease, Listing, releaser_of
from locking.core.handler import locks
from locking.core.lease import live_leases
from locking.core.waits import waiters
from locking.exceptions import LockError
from locking.liveness.files import Record, peers, registration
from locking.signals import Observer, lock_orphaned, notify, observe
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.logs import log_rarely
from locking.utils.ownership import is_guarded

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 0.05
"""Seconds between two looks at every process while a lock is waited for."""

LOOKING_SHARE: Final = 20
"""A look is followed by a pause of so many times its length at least."""

ENOUGH: Final = 2
"""Looks in a row that find nothing of a dead process, after which its file goes."""

AFTER_TROUBLE: Final = 1.0
"""Seconds until a release is tried again that failed."""


def clean(record: Record) -> int | None:
    """Release what a dead process has left, and return how many holds that were; None where it failed."""
    if record.alias not in locks:
        return 0
    try:
        return _clean(locks[record.alias], record)
    except Exception as error:  # it must not keep what lies elsewhere from being released
        level = logging.INFO if isinstance(error, LockError) else logging.ERROR
        text = "releasing the locks of the dead process %d on %r has to wait: %s"
        log_rarely(logger, level, ("dead process", record.alias), text, record.pid, record.alias, error)
        return None


def _clean(backend: BaseLockBackend, record: Record) -> int:
    """Release what a dead process has left on one backend, and return how many holds that were."""
    if not (isinstance(backend, ForceRelease) and isinstance(backend, Listing)) or backend.frees_with_holder:
        return 0
    backend.dequeue_owned(record.made)
    holds = [hold for hold in backend.all_held(backend.key("")) if record.leaves(hold.owner)]
    for hold in holds:
        releaser = releaser_of(backend, hold.kind)
        if releaser.force_release(hold.key, hold.owner):
            notify(
                lock_orphaned,
                outcome="orphaned",
                name=hold.key.removeprefix(backend.settings.key_prefix),
                key=hold.key,
                backend=releaser.alias,
                owner=hold.owner,
                token=hold.token,
                holder=f"{platform.node()}:{record.pid}",
            )
    return len(holds)


class Watcher(Observer):
    """Keeps this process's files up to date, and looks for dead processes while a lock is waited for.

    Attributes:
        enabled: False keeps it from looking: then the leases decide.
        looks: how many looks in a row found nothing of a dead process, by its file.
    """

    def __init__(self) -> None:
        self.enabled = True
        self._worker = Worker("locking-listen-processes", self._step)
        self.reset()
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing."""
        self.looks, self._next_look = dict[Path, int](), 0.0

    def used(self, backend: BaseLockBackend) -> None:
        """Have a file for the backend, before the first acquisition."""
        registration.enter(backend.settings.alias)

    def kept(self, owner: str, until: float) -> None:
        """Have the lock stay although its process may die before."""
        registration.keep(owner, until)

    def waiting(self, name: str, template: str | None, backend: str, change: int) -> None:
        """Look for a dead process that has what is waited for."""
        if change > 0:
            registration.enter(backend.partition("/")[0])
            self.look()

    def look(self) -> None:
        """Have the thread look in the background, soon, and then for as long as a lock is waited for."""
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
            released = clean(dead[file])
            self.looks[file] = self.looks[file] + 1 if released == 0 else 0
            if self.looks[file] == ENOUGH:
                with suppress(OSError):  # another process has deleted it, or it is another user's
                    file.unlink()
            if released is None:
                pause = AFTER_TROUBLE
        self._next_look = now() + max(pause, LOOKING_SHARE * looked)
        return self._next_look if waiters.total or self._unfinished() else math.inf

    def _unfinished(self) -> list[Path]:
        return [file for file, looks in self.looks.items() if looks < ENOUGH]


watcher = Watcher()


def leave() -> None:
    """Delete the files, unless a guarded lock is left that others may release."""
    if not any(lease.open and lease.renewed and is_guarded(lease.owner) for lease in live_leases()):
        registration.leave()


def start() -> None:
    """Have process liveness hear of this process's locks, and of its end."""
    observe(watcher)
    atexit.register(leave)
