"""The watchdog: one thread a process and alias that renews every lease taken without a ttl, in batches.

Nearly every process has one alias, and so one thread. Where there are several, a server that doesn't answer
must not keep the leases on another from being renewed.

It never re-creates a lock: a lease that the backend doesn't know any more is lost, and one whose backend
doesn't answer is unknown until its local deadline, then lost.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterable
from typing import Final

from locking.backends.base import BaseLockBackend
from locking.clock import now
from locking.exceptions import LockError
from locking.lease import HOLDS, SingleLease, State
from locking.signals import Renewal, inform

logger = logging.getLogger("locking")

COMPANY = 1 / 30
"""Share of its ttl by which a lease may be renewed early, together with others: ten thousand leases that fall
due one by one would otherwise cost ten thousand rounds, each of which looks at all of them."""

RENEWALS: Final[tuple[tuple[Renewal, bool | None], ...]] = (
    ("renewed", True),
    ("lost", False),
    ("failed", None),
)

RETRY_PAUSE = 0.5
"""Seconds between attempts while a backend doesn't answer."""


class Watchdog:
    """Renews the leases of one alias; its thread starts with the first and sleeps until the next is due."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._changed = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def watch(self, lease: SingleLease) -> None:
        """Renew `lease` from now on, until it is released, lost, or forgotten by its user."""
        if lease.renew_at < self._wakes_at or self._thread is None:
            self._wake(lease.renew_at)

    def _wake(self, at: float) -> None:
        with self._changed:
            self._wakes_at = min(self._wakes_at, at)
            if self._thread is None:
                name = f"locking-watchdog-{self._alias}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            try:
                due = self._round()
            except Exception:  # the thread must outlive every surprise: without it all leases are lost
                logger.exception("the watchdog failed and goes on")
                due = now() + RETRY_PAUSE
            self._sleep_until(due)

    def _sleep_until(self, due: float) -> None:
        with self._changed:
            self._wakes_at = due
            # A lease taken while the round was running was not seen by it: look once more before sleeping.
            self._wakes_at = min(self._wakes_at, self._next_due())
            while (pause := self._wakes_at - now()) > 0:
                self._changed.wait(min(pause, 3600.0))
            self._wakes_at = 0.0

    def _round(self) -> float:
        """Do what is due and return when the next thing will be."""
        moment = now()
        leases = [lease for lease in _watched(self._alias) if lease.renew_at <= moment + lease.ttl * COMPANY]
        by_backend = sorted(leases, key=lambda lease: id(lease.backend))
        for _, batch in itertools.groupby(by_backend, key=lambda lease: id(lease.backend)):
            renew(list(batch))
        return self._next_due()

    def _next_due(self) -> float:
        return min((lease.renew_at for lease in _watched(self._alias)), default=now() + 3600.0)


def _watched(alias: str) -> Iterable[SingleLease]:
    # valuerefs() copies in one step; values() would trip over leases that other threads add meanwhile
    held = [lease for ref in HOLDS.valuerefs() if (lease := ref()) is not None]
    return [lease for lease in held if lease.renewed and lease.backend.settings.alias == alias]


class Watchdogs:
    """The watchdog of each alias of `LOCKING`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start from nothing; a forked child has neither the threads nor its parent's leases."""
        self._by_alias: dict[str, Watchdog] = {}
        HOLDS.clear()

    def watch(self, lease: SingleLease) -> None:
        """See `Watchdog.watch`."""
        alias = lease.backend.settings.alias
        watchdog = self._by_alias.get(alias) or self._by_alias.setdefault(alias, Watchdog(alias))
        watchdog.watch(lease)


def renew(leases: list[SingleLease]) -> None:
    """Extend leases of one backend by one batch and note what became of each."""
    sent = now()
    backend = leases[0].backend
    try:
        answers = backend.extend_many([(lease.key, lease.owner, lease.ttl) for lease in leases])
    except LockError as error:
        logger.warning("renewing %d locks on backend %r failed: %s", len(leases), backend.alias, error)
        for lease in leases:
            _doubt(lease)
        _tell(backend, "failed", len(leases))
        return
    for lease, held in zip(leases, answers, strict=True):
        if held is None:
            _doubt(lease)
        else:
            _settle(lease, held, sent)
    for outcome, answer in RENEWALS:
        _tell(backend, outcome, [*answers].count(answer))


def _tell(backend: BaseLockBackend, outcome: Renewal, leases: int) -> None:
    if leases:
        inform(lambda observer: observer.renewed(backend.alias, outcome, leases))


def _doubt(lease: SingleLease) -> None:
    lease.doubt()
    lease.renew_at = min(now() + RETRY_PAUSE, lease.deadline)
    if lease.state is State.LOST:
        lease.renewed = False


def _settle(lease: SingleLease, held: bool, sent: float) -> None:
    if not lease.renewed:  # released while the batch was under way
        return
    if held and sent < lease.deadline:
        lease.renewals += 1
        lease.prolong(sent, lease.ttl)
    else:
        lease.renewed = False
        lease.lose()


watchdogs = Watchdogs()
os.register_at_fork(after_in_child=watchdogs.reset)
