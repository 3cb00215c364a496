"""The other kinds of lock: read-write, semaphore, Redisson's fair lock. Each is a `Lock`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Literal, Unpack

from django.utils.translation import gettext_lazy as _

from locking.backends.base import Holder
from locking.backends.capabilities import Listing
from locking.core.handler import locks
from locking.core.lease import Lease, SingleLease, held_by
from locking.core.lock import Lock, SingleLock, joined
from locking.core.options import CheckedOptions, LockOptions, shared_options
from locking.exceptions import LockNotOwned, LockNotSupported
from locking.keys.names import check_name, check_names
from locking.utils.logs import log_rarely

logger = logging.getLogger(__name__)

__all__ = ["get_read_lock", "get_semaphore", "get_write_lock"]

Kind = Literal["lock", "read", "write", "semaphore", "fair"]
"""The kinds of lock; `lock` is what `get_lock` returns."""

LABELS: Final[dict[str, Any]] = {
    "lock": _("lock"),
    "read": _("read"),
    "write": _("write"),
    "semaphore": _("semaphore"),
    "fair": _("fair"),
}
"""What the admin calls the kinds."""

# By alias and key of a semaphore: the permits of its first caller in this process.
FIRST_PERMITS: Final[dict[tuple[str, str], int]] = {}
MOST_NAMES: Final = 1_000  # semaphores that are remembered; beyond that all are forgotten


def get_read_lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """Return the shared side of the read-write lock `name`: many readers, or one writer.

    A stream of readers can keep a writer waiting: the protocol, shared with Redisson, prefers readers. Under
    the write lock of the same name it is a re-entry into that lock. Arguments and errors: as for `get_lock`,
    but for `fenced`: readers don't overtake each other.

    Example:
        >>> with get_read_lock("catalog"):
        ...     render()
    """
    return ReadLock(check_name(name), _options_of("get_read_lock", "read", options))


def get_write_lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """Return the exclusive side of the read-write lock `name`.

    Asking for it while the same thread or task reads raises LockNotSupported: it would deadlock.
    Arguments and errors: as for `get_lock`.

    Example:
        >>> with get_write_lock("catalog"):
        ...     rebuild()
    """
    return WriteLock(check_name(name), _options_of("get_write_lock", "write", options))


def get_semaphore(name: str, permits: int, **options: Unpack[LockOptions]) -> Lock:
    """Return a semaphore: at most `permits` holds of `name` at a time, each with a lease of its own.

    A permit whose holder died comes back when its lease ends. Every `acquire` takes another permit, also in
    one thread; `locked()` tells whether all are out. The first to use a name decides how many permits it has.
    With `min_hold=1` there are at most `permits` starts per second. Other arguments: as for `get_lock`, but
    for `fenced`.

    Raises:
        ValueError: `permits` is not a whole number from 1 to 1,000,000.

    Example:
        >>> with get_semaphore("mail-gateway", permits=5, wait=10):
        ...     send()
    """
    return SemaphoreLock(check_name(name), _options_of("get_semaphore", "semaphore", options, permits))


def get_fair_lock(name: str, **options: Unpack[LockOptions]) -> Lock:
    """Return Redisson's fair lock, for names that Java services lock with RFairLock.

    Among Python processes `get_lock` is first in, first out already, and faster. Don't use both kinds, or
    RLock and RFairLock, on one name. Arguments and errors: as for `get_lock`.
    """
    return SingleLock(check_name(name), _options_of("get_fair_lock", "fair", options))


def _options_of(caller: str, kind: Kind, given: LockOptions, permits: int | None = None) -> CheckedOptions:
    options = shared_options(caller, given, kind=kind, permits=permits)
    check_kind(options)
    return options


class SharedLock(SingleLock):
    """A lock that several hold at a time."""

    def _owners(self) -> list[str]:
        engine = locks[self.backend.settings.alias]
        if not isinstance(engine, Listing):
            return super()._owners()
        return [hold.owner for hold in engine.held_as(self.key)]


class ReadLock(SharedLock):
    """The shared side; for the holder of the write lock it is a re-entry into that lock."""

    def _hold_of(self, context: object) -> SingleLease | None:
        writing = held_by(context, _sibling(self.backend.alias, "write"), self.key)
        return super()._hold_of(context) if writing is None else writing


class WriteLock(SingleLock):
    """The exclusive side; refused to a reader, which would deadlock."""

    def _reenter(self, context: object) -> Lease | None:
        reading = held_by(context, _sibling(self.backend.alias, "read"), self.key)
        if reading is not None:
            reading.ensure_held()
            raise LockNotSupported(
                f"this thread or task holds {self.name!r} for reading: upgrading it to a write"
                " lock would deadlock; release the read lock first, or take the write lock from the start"
            )
        return super()._reenter(context)


class SemaphoreLock(SharedLock):
    """Every acquisition is another permit, so there is no re-entry."""

    def __init__(self, name: str, options: CheckedOptions) -> None:
        super().__init__(name, options)
        permits, which = self.terms.permits or 1, (self.backend.alias, self.key)
        if len(FIRST_PERMITS) > MOST_NAMES:
            FIRST_PERMITS.clear()
        if (first := FIRST_PERMITS.setdefault(which, permits)) != permits:
            message = (
                "the semaphore %r has %d permits for some callers and %d for others of this process: the"
                " first to use the name decides; write the same number everywhere"
            )
            log_rarely(logger, logging.WARNING, ("permits", which), message, name, first, permits)

    def _reenter(self, context: object) -> Lease | None:
        return None

    def remaining(self) -> float:
        try:
            return self._lease().remaining()
        except LockNotOwned:
            return 0.0

    def _is_taken(self, holder: Holder | None) -> bool:
        return holder is not None and holder.count >= (self.terms.permits or 1)


CLASSES: Final[dict[str, type[SingleLock]]] = {
    "lock": SingleLock,
    "read": ReadLock,
    "write": WriteLock,
    "semaphore": SemaphoreLock,
    "fair": SingleLock,  # where an engine has no fair lock of its own, the ordinary one, if that is fair
}

HELD_BY_SEVERAL: Final = [kind for kind, one in CLASSES.items() if issubclass(one, SharedLock)]
"""Kinds whose holders don't exclude each other, so that a newer one has not overtaken the others."""

MAX_PERMITS: Final = 1_000_000


def check_kind(options: CheckedOptions) -> None:
    """Raise ValueError for a kind that there isn't, or that the other options don't go with."""
    kind, permits = options.kind, options.permits
    if kind not in CLASSES:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(map(repr, CLASSES))}")
    if options.fenced and kind in HELD_BY_SEVERAL:
        raise ValueError(
            f"fenced=True cannot be combined with kind={kind!r}, which has several holders: the"
            " database would take all but the newest for overtaken"
        )
    if kind != "semaphore":
        if permits is not None:
            raise ValueError(f"permits={permits!r} cannot be combined with kind={kind!r}")
    elif isinstance(permits, bool) or not isinstance(permits, int) or not 1 <= permits <= MAX_PERMITS:
        raise ValueError(f"permits must be a whole number from 1 to {MAX_PERMITS:,}, not {permits!r}")


def lock_of(names: Sequence[str], options: CheckedOptions) -> Lock:
    """Return the lock of these names, of the kind that the options name."""
    return joined([CLASSES[options.kind](name, options) for name in check_names(tuple(names))])


def _sibling(alias: str, kind: str) -> str:
    return f"{alias.rsplit('/', 1)[0]}/{kind}"
