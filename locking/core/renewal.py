"""The watchdog: one thread per process and alias renews every lease acquired without a ttl, in batches.

Nearly every process has one alias, and so one thread. Where there are several, a server that doesn't answer
must not keep the leases on another from being renewed.

It never re-creates a lock: a lease that the backend doesn't know any more is lost, and one whose backend
doesn't answer is unknown until its local deadline, then lost.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.core.lease import SingleLease, State, live_leases
from locking.exceptions import LockError
from locking.signals import Renewal, tell
from locking.utils import logs
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now

logger = logging.getLogger(__name__)

EARLY_RENEWAL_FRACTION = 1 / 30  # of its ttl, for batches: thousands one by one would cost as many rounds
RETRY_PAUSE = 0.5  # seconds between attempts while a backend doesn't answer

OUTCOMES: Final[dict[bool | None, Renewal]] = {True: "renewed", False: "lost", None: "failed"}


def renew_due(alias: str) -> float:
    """Renew the leases of one alias that are due; return when the next will be."""
    moment, batches = now(), defaultdict[BaseLockBackend, list[SingleLease]](list)
    for lease in _watched(alias):
        if lease.renew_at <= moment + lease.ttl * EARLY_RENEWAL_FRACTION:
            batches[lease.backend].append(lease)
    for batch in batches.values():
        renew(batch)
    return min((lease.renew_at for lease in _watched(alias)), default=now() + 3600.0)


def _watched(alias: str) -> Iterable[SingleLease]:
    return [lease for lease in live_leases() if lease.renewed and lease.backend.settings.alias == alias]


class Watchdogs:
    """One thread per alias of `LOCKING`; it starts with the first lease and sleeps until the next is due."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        after_fork(self._workers.clear)

    def watch(self, lease: SingleLease) -> None:
        """Renew `lease` from now on, until it is released, lost, or garbage-collected."""
        alias = lease.backend.settings.alias
        worker = self._workers.get(alias)
        if worker is None:
            worker = self._workers.setdefault(
                alias, Worker(f"locking-renew-{alias}", partial(renew_due, alias))
            )
        worker.wake_by(lease.renew_at)


watchdogs = Watchdogs()


def renew(leases: list[SingleLease]) -> None:
    """Extend leases of one backend by one batch and note what became of each; never raises an Exception."""
    backend, since, ttls = leases[0].backend, now(), [lease.ttl for lease in leases]
    answers = _answers(backend, leases, ttls)
    for lease, held, ttl in zip(leases, answers, ttls, strict=True):
        note_answer(lease, held, since, ttl)
    if True in answers:
        logs.available(logger, backend.settings.alias)
    for answer, outcome in OUTCOMES.items():
        if count := answers.count(answer):
            tell("renewed", backend.alias, outcome, count)


def _answers(backend: BaseLockBackend, leases: list[SingleLease], ttls: list[float]) -> list[bool | None]:
    """Ask the backend; when it fails as a whole every answer is unknown, on this backend alone."""
    asked = zip(leases, ttls, strict=True)
    try:
        return backend.extend_many([(lease.key, lease.owner, ttl) for lease, ttl in asked])
    except LockError as error:
        logs.unavailable(logger, backend.settings.alias, error)
    except Exception:  # a defect of one backend must not keep the leases of another from being renewed
        logger.exception("renewing %d locks on backend %r failed", len(leases), backend.alias)
    return [None] * len(leases)


def note_answer(lease: SingleLease, held: bool | None, since: float, ttl: float) -> None:
    """Note what the backend said about a lease; None, an unknown answer, leaves it unconfirmed."""
    if not lease.renewed:  # released while the batch was under way
        return
    if held is None:
        lease.mark_unknown()
        lease.renew_at = min(now() + RETRY_PAUSE, lease.deadline)
        lease.renewed = lease.state is not State.LOST
    elif held and since < lease.deadline:
        lease.renewals += 1
        lease.prolong(since, ttl)
    else:
        lease.renewed = False
        lease.lose()
