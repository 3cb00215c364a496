"""Dead-process release: a process that waits for a lock looks for processes of its deployment that have died.

Of several that notice, one can delete the dead one's file and does the work. A dead client may have a COMMIT,
a child or a command at work all the same. So only *guarded* locks are released: those whose holder works
behind its fence's row in a locked transaction, which makes the next one wait for that COMMIT, and those whose
user says so (`guarded=True`). All others end with their leases.
"""

from __future__ import annotations

import atexit
import logging
import math
from typing import Any, Final

from django.apps import apps
from django.db import DatabaseError, connections, router

from locking.backends.base import BaseLockBackend, Held
from locking.backends.capabilities import ForceRelease, Listing, releaser_of
from locking.core.at_exit import unreleased
from locking.core.handler import locks
from locking.core.waits import waiters
from locking.exceptions import LockError
from locking.liveness.files import Record, peers, registration, seize
from locking.signals import Observer, lock_orphaned, notify, observe
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now
from locking.utils.ownership import is_guarded

logger = logging.getLogger(__name__)

LOOK_AGAIN: Final = 0.05
"""Seconds between two looks at every process while a lock is waited for."""

LOOKING_SHARE: Final = 20
"""A look is followed by a pause of so many times its length at least."""

SETTLING: Final = 0.1
"""Seconds after which a server has surely worked off what a process had sent before it died."""

LONGEST_PAUSE: Final = 5.0
"""Seconds at most until a release is tried again that failed; doubled each time."""


class Cleanup:
    """The release of what one dead process has left, in as many attempts as it takes."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.due = now()
        self._pause = SETTLING
        self._was_clean = False

    def attempt(self) -> bool:
        """Release what may be released; True when there was nothing left, twice in a row.

        Once isn't enough: a server may still have had a request of the process to work off, or may have
        handed a lock over to a waiter whose socket it had not yet found closed.
        """
        record, released, failed = self.record, 0, False
        for alias in (each for each in record.aliases if each in locks):
            try:
                released += _clean(locks[alias], record)
            except Exception as error:  # it must not keep what lies elsewhere from being released
                failed, level = True, logging.INFO if isinstance(error, LockError) else logging.ERROR
                text = "releasing the locks of the dead process %d on %r has to wait: %s"
                logger.log(level, text, record.pid, alias, error)
        if failed:
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
    if not apps.is_installed("locking"):
        return
    model: Any = apps.get_model("locking", "LockEvent")
    alias, reason = router.db_for_write(model), f"the process {fields['holder']} has ended"
    row = model(
        action=model.Action.DEAD_PROCESS, actor="process liveness", reason=reason, kind=hold.kind, **fields
    )
    try:
        row.save(using=alias)
    except DatabaseError as error:  # the lock is released by now, so the log has to do
        logger.warning("the release of %r for a dead process has no audit row: %s", fields["name"], error)
        connections[alias].close()


class Watcher:
    """Looks, in one thread per process, while a lock is waited for or something has to be released.

    `enabled` = False keeps it from looking: then the leases decide.
    """

    def __init__(self) -> None:
        self.enabled = True
        self.cleanups: list[Cleanup] = []
        self._next_look = 0.0
        self._worker = Worker("locking-listen-processes", self._step)
        after_fork(self.reset)

    def reset(self) -> None:
        """Start from nothing: the clean-ups of a forked child's parent are the parent's."""
        self.cleanups, self._next_look = [], 0.0

    def look(self) -> None:
        """Have the thread look in the background, soon, and then for as long as a lock is waited for."""
        if self.enabled and registration.path is not None:
            self._worker.wake_by(self._next_look)

    def _step(self) -> float:
        begun, path = now(), registration.path
        if path is None or not self.enabled:
            self.reset()
            return math.inf
        self.cleanups += [Cleanup(dead) for each in peers(path.parent) if (dead := seize(each)) is not None]
        self.cleanups = [each for each in self.cleanups if each.due > now() or not each.attempt()]
        connections.close_all()  # this thread's, which has no request whose end would do so
        self._next_look = now() + max(LOOK_AGAIN, LOOKING_SHARE * (now() - begun))
        return self._next_look if waiters.total or self.cleanups else math.inf


watcher = Watcher()


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
    left = [lease for lease in unreleased() if lease.renewed and is_guarded(lease.owner)]
    registration.leave(stays=bool(left) or waiters.total > 0)


def start() -> None:
    """Have process liveness hear of this process's locks, and of its end."""
    observe(Registrar())
    atexit.register(leave)
