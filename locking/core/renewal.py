"""The watchdog: one thread per process and alias renews every lease acquired without a ttl, in batches.

Nearly every process has one alias, and so one thread. Where there are several, a server that doesn't answer
must not keep the leases on another from being renewed.

It never re-creates a lock: a lease that the backend doesn't know any more is lost, and one whose backend
doesn't answer is unknown until its local deadline, then lost.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.core.lease import HOLDS, SingleLease, State, live_leases
from locking.exceptions import LockError
from locking.signals import Renewal, notify_observers
from locking.utils import logs
from locking.utils.background import Worker, after_fork
from locking.utils.clock import now

logger = logging.getLogger(__name__)

EARLY_RENEWAL_FRACTION = 1 / 30
"""Share of its ttl by which a lease may be renewed early, together with others: ten thousand leases that fall
due one by one would otherwise cost ten thousand rounds, each of which looks at all of them."""

RETRY_PAUSE = 0.5
"""Seconds between attempts while a backend doesn't answer."""


def renew_due(alias: str) -> float:
    """Renew the leases of one alias that are due; return when the next will be."""
    moment = now()
    leases = [
        lease for lease in _watched(alias) if lease.renew_at <= moment + lease.ttl * EARLY_RENEWAL_FRACTION
    ]
    by_backend = sorted(leases, key=lambda lease: id(lease.backend))
    for _, batch in itertools.groupby(by_backend, key=lambda lease: id(lease.backend)):
        renew(list(batch))
    return min((lease.renew_at for lease in _watched(alias)), default=now() + 3600.0)


def _watched(alias: str) -> Iterable[SingleLease]:
    return [lease for lease in live_leases() if lease.renewed and lease.backend.settings.alias == alias]


class Watchdogs:
    """One thread per alias of `LOCKING`; it starts with the first lease and sleeps until the next is due."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from nothing; a forked child has neither the threads nor its parent's leases."""
        self._workers: dict[str, Worker] = {}
        HOLDS.clear()

    def watch(self, lease: SingleLease) -> None:
        """Renew `lease` from now on, until it is released, lost, or garbage-collected."""
        alias = lease.backend.settings.alias
        worker = self._workers.get(alias) or self._workers.setdefault(alias, _worker_of(alias))
        worker.wake_by(lease.renew_at)


def _worker_of(alias: str) -> Worker:
    return Worker(f"locking-watchdog-{alias}", partial(renew_due, alias))


def renew(leases: list[SingleLease]) -> None:
    """Extend leases of one backend by one batch and note what became of each; never raises an Exception."""
    backend = leases[0].backend
    since, ttls = now(), [lease.ttl for lease in leases]
    answers = _answers(backend, leases, ttls)
    _note_answers(leases, answers, since, ttls)
    if True in answers:
        logs.available(logger, backend.settings.alias)
    for outcome, answer in OUTCOMES.items():
        _report(backend, outcome, answers.count(answer))


OUTCOMES: Final[dict[Renewal, bool | None]] = {"renewed": True, "lost": False, "failed": None}


def _note_answers(
    leases: list[SingleLease], answers: list[bool | None], since: float, ttls: list[float]
) -> None:
    """Note for each lease what the backend said about it; an unknown answer leaves the others as they are."""
    for lease, held, ttl in zip(leases, answers, ttls, strict=True):
        if held is None:
            _doubt(lease)
        else:
            _settle(lease, held, since, ttl)


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


def _report(backend: BaseLockBackend, outcome: Renewal, leases: int) -> None:
    if leases:
        notify_observers(lambda observer: observer.renewed(backend.alias, outcome, leases))


def _doubt(lease: SingleLease) -> None:
    if not lease.renewed:  # released while the batch was under way
        return
    lease.doubt()
    lease.renew_at = min(now() + RETRY_PAUSE, lease.deadline)
    if lease.state is State.LOST:
        lease.renewed = False


def _settle(lease: SingleLease, held: bool, since: float, ttl: float) -> None:
    if held and lease.renewed and since < lease.deadline:
        lease.renewals += 1
        lease.prolong(since, ttl)
        return
    if lease.renewed:  # else it was released while the batch was under way
        lease.renewed = False
        lease.lose()


watchdogs = Watchdogs()
after_fork(watchdogs.reset)
