"""Who waits in this process, for what, and what each waiter holds meanwhile.

A registry of the waits under way: `locking.inspection.heartbeat` publishes them with the heartbeat, and
`locking.inspection.deadlocks` follows them from one process to the next. An uncontended acquisition never
comes here.
"""

from __future__ import annotations

import weakref
from math import inf
from typing import Any, Final

from locking.core.lease import LeaseTerms, SingleLease, leases_of
from locking.utils.background import after_fork
from locking.utils.call_site import activity_of, caller_site, name_of
from locking.utils.clock import now
from locking.utils.ownership import PROCESS, new_owner

PUBLISH_AFTER: Final = 0.5  # seconds of waiting after which its heartbeat publishes a wait

TOGETHER: Final = 0.1
"""Seconds by which waits are published earlier, with one that is due: one request instead of several."""


class Wait:
    """One waiter: a thread or task, and the lock that it waits for."""

    def __init__(self, terms: LeaseTerms, context: object, begun: float) -> None:
        self.id = new_owner()  # a wait that ended never resumes under the same id
        self.alias = terms.backend.settings.alias
        self.kind = terms.backend.alias.removeprefix(self.alias).lstrip("/") or "lock"
        self.key, self.name, self.permits = terms.key, terms.name, terms.permits
        self.begun = begun  # by `clock.now()`
        self.site = terms.site or caller_site()
        self.context = weakref.ref(context)
        self.published = False  # other processes may have read of it
        self.asked = 0  # requests that its looks for a circle have made
        self.blocks = bool(self.holds())  # others may wait for what it holds itself

    @property
    def client(self) -> str:
        """The process's id."""
        return self.id.split(":", 1)[0]

    def holds(self) -> list[SingleLease]:
        """Return what the waiting thread or task holds."""
        context = self.context()
        return [] if context is None else leases_of(context)

    def as_record(self, holds: list[SingleLease]) -> dict[str, Any]:
        """Return what the heartbeat publishes of it, as plain values."""
        context = self.context()
        return {
            "alias": self.alias,
            "kind": self.kind,
            "key": self.key,
            "name": self.name,
            "permits": self.permits,
            "since": PROCESS.date_of(self.begun),
            "waited": round(now() - self.begun, 3),
            "thread": name_of(context),
            "doing": activity_of(context),
            "site": None if self.site is None else self.site.describe(),
            "holds": [[lease.backend.settings.alias, lease.owner, lease.name] for lease in holds],
        }


WAITS: Final[dict[str, Wait]] = {}  # the waits of this process, by id

after_fork(WAITS.clear)


def next_due() -> float:
    """Return the `clock.now()` at which a wait is to be published; if it blocks no other, not soon."""
    unpublished = [each.begun for each in list(WAITS.values()) if each.blocks and not each.published]
    return min(unpublished, default=inf) + PUBLISH_AFTER
