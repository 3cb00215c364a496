"""Finds deadlocks: waiters whose locks wait for each other in a circle, across threads and processes.

A thread or task cannot acquire anything while it waits. So a circle closes when the last of its waiters
begins to wait, and a waiter that holds nothing is never part of one: it pays nothing. One that holds
something publishes its wait after half a second. After a second and a quarter it asks for the lock once more
and looks: it reads what the holder's process tells of itself, and follows the circle from holder to holder.

What was found is read a second time before a waiter gives up. The owner of a hold and the id of a wait are
never used twice, and a wait withdraws what it has published before its lock is granted. So a circle that was
read twice, with the same owners and ids, existed in between.

The waiter that gives up claims the circle first, by a lease of its own on the engine: a waiter that stalled
between its look and its verdict finds it claimed, and goes on waiting.

Sources: E. G. Coffman et al., "System Deadlocks", Computing Surveys 3(2), 1971 (wait-for graphs, AND and OR
requests); A. K. Elmagarmid, "A Survey of Distributed Deadlock Detection Algorithms", SIGMOD Record 15(3),
1986.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection
from functools import cache
from itertools import islice
from math import inf
from typing import Final

from locking.backends.base import Busy, Grant
from locking.backends.capabilities import Heartbeats, backend_of, listing
from locking.core import waits
from locking.core.handler import InvalidLockBackend, locks
from locking.core.lease import LeaseTerms
from locking.exceptions import BlockedWaiter, LockDeadlock, LockError
from locking.inspection import held
from locking.inspection.heartbeat import PUBLISH_AFTER, WAITS, Wait, process_facts, reporter
from locking.utils.clock import now

logger = logging.getLogger(__name__)

FIRST_LOOK: Final = 1.25
"""Seconds of waiting after which a waiter looks for the first time. If it closed a circle, the rest began
before it, and have had this time to publish their waits."""

LOOK_EVERY: Final = 3.0
"""Seconds between its further looks, for circles that were closed by others who cannot see it."""

FRESH: Final = 5.0  # seconds since a process's last heartbeat up to which its waits are believed
MOST_HOLDERS: Final = 100  # holders of one lock that are followed
CLAIM: Final = 60.0  # seconds for which a circle is its first claimant's to break; it breaks at once
Hold = tuple[str, str]  # alias and owner


class Search:
    """One search for a circle through the waiter `mine`; it asks each question once."""

    def __init__(self, mine: held.Waiter, holder: str | None = None) -> None:  # the backend has just named it
        self._mine, self._holder = mine, holder
        self._holders_of, self._waiter_with = cache(holders_of), cache(waiter_with)

    @property
    def asked(self) -> int:
        """How many requests it has made."""
        return self._holders_of.cache_info().misses + self._waiter_with.cache_info().misses

    def circle(self) -> tuple[held.Waiter, ...] | None:
        """Return the waiters of a circle, `mine` first, or None."""
        mine = self._mine
        is_known = self._holder is not None and mine.kind in ("lock", "fair")
        holders = [str(self._holder)] if is_known else self._holders_of(mine)
        way = self._way_back(mine, holders, frozenset([mine.id]))
        return None if way is None else (mine, *way)

    def _way_back(
        self, wait: held.Waiter, holders: Collection[str], passed: frozenset[str]
    ) -> list[held.Waiter] | None:
        """Return the further waiters between `wait` and the start, or None where it may be let go."""
        ways: list[held.Waiter] = []
        needs_all = wait.kind == "semaphore"  # any one of its holders could end the wait
        for owner in holders:
            way = self._way_over((wait.backend, owner), passed)
            if way is not None and not needs_all:
                return way
            if way is None and needs_all:
                return None
            ways += [each for each in way or () if each not in ways]
        return ways if needs_all and holders else None

    def _way_over(self, hold: Hold, passed: frozenset[str]) -> list[held.Waiter] | None:
        if hold in self._mine.owners:
            return []
        waiter = self._waiter_with(hold)
        if waiter is None or waiter.id in passed:
            return None
        rest = self._way_back(waiter, self._holders_of(waiter), passed | {waiter.id})
        return None if rest is None else [waiter, *rest]


def waiter_with(hold: Hold) -> held.Waiter | None:
    """Return the wait of the thread or task that has this hold, unless its process has fallen silent."""
    alias, owner = hold
    client = owner.split(":", 1)[0]
    engine = locks[alias]
    presence = engine.heartbeats([client]).get(client) if isinstance(engine, Heartbeats) else None
    if presence is None or (presence.silent or 0.0) > FRESH:
        return None
    return next((each for each in held.waiters_of(json.loads(presence.text)) if hold in each.owners), None)


def holders_of(wait: held.Waiter) -> Collection[str]:
    """Return the owners that have what is waited for, as the backend knows them now.

    Of a semaphore all or none: one that the list lacks, a client of another language, may release its permit,
    and one that is free, between its release and its grant, ends the wait.
    """
    engine = locks[wait.backend]
    if wait.kind == "write":
        return [hold.owner for hold in islice(listing(engine).held_as(wait.key), MOST_HOLDERS)]
    holder = backend_of(engine, wait.kind).holder(wait.key)
    if holder is None or wait.kind != "semaphore":
        return [] if holder is None else [holder.owner]
    listed = [hold.owner for hold in islice(listing(engine).held_as(wait.key), MOST_HOLDERS)]
    return listed if len(listed) == holder.count >= (wait.permits or inf) else []


class DeadlockWatch(waits.WaitWatch):
    """Registers one wait, looks for a circle when it is time, and withdraws what was published."""

    def __init__(self, terms: LeaseTerms, context: object, begun: float) -> None:
        self._wait = wait = Wait(terms, context, begun)
        # Without the records of other processes no holder can be followed.
        self.active = wait.blocks and isinstance(locks[wait.alias], Heartbeats)
        self._looks = 0
        self._seen: frozenset[str] = frozenset()
        WAITS[wait.id] = wait
        if not reporter.running:
            reporter.start()
        if self.active:
            reporter.publish_by(begun + PUBLISH_AFTER)

    def due(self) -> float:
        # Each further look asks for the lock, too. A long chain is looked at less often: whatever its length,
        # a wait asks no more than once a second.
        longest = max(self._looks * LOOK_EVERY, self._looks + self._wait.asked)
        return self._wait.begun + FIRST_LOOK + longest - now() if self.active else inf

    def look(self, busy: Busy) -> None:
        """Look for a circle. LockDeadlock: this waiter is part of one, and is the one to give up."""
        self._looks += 1
        try:
            circle = find_circle(self._wait, busy.holder)
            gives_up = circle is not None and self._should_give_up(circle) and self._claims(circle)
        except (LockError, InvalidLockBackend, ValueError) as error:  # waiting goes on, as without a look
            logger.debug("looking for a deadlock of %r failed: %s", self._wait.name, error)
            return
        if circle is not None and gives_up:
            raise self._error(circle, busy)

    def _should_give_up(self, circle: tuple[held.Waiter, ...]) -> bool:
        """Whether this waiter began last, or the one that did has had its look since and is still there.

        What each has published decides, so that all agree on one of them, right clocks or wrong.
        """
        ids = frozenset(each.id for each in circle)
        again, self._seen = ids == self._seen, ids
        return again or max(circle, key=lambda each: (each.since, each.id)).id == self._wait.id

    def _claims(self, circle: tuple[held.Waiter, ...]) -> bool:
        """Whether this waiter is the first to break a circle; all of them ask the same engine."""
        ids = sorted(each.id for each in circle)
        engine = locks[min(circle, key=lambda each: each.id).backend]
        key = engine.key("deadlock:" + hashlib.sha256(" ".join(ids).encode()).hexdigest())
        return isinstance(engine.try_acquire(key, self._wait.id, CLAIM), Grant)

    def _error(self, circle: tuple[held.Waiter, ...], busy: Busy) -> LockDeadlock:
        blocked = tuple(
            BlockedWaiter(each.who, tuple(name for *_, name in each.holds), each.name, each.since)
            for each in circle
        )
        wait, waited = self._wait, now() - self._wait.begun
        return LockDeadlock(wait.name, waited=waited, backend=wait.alias, holder=busy.holder, circle=blocked)

    def end(self) -> Callable[[], object] | None:
        """Withdraw what was published, before the waiter goes on: it must not be believed any more."""
        WAITS.pop(self._wait.id, None)
        return reporter.publish if self.active and self._wait.published else None


def find_circle(wait: Wait, holder: str | None = None) -> tuple[held.Waiter, ...] | None:
    """Return a circle through this wait that was read twice, or None."""
    record = {**process_facts(), "waits": {wait.id: wait.as_record(wait.holds())}}
    (mine,) = held.waiters_of(record)
    search = Search(mine, holder)
    try:
        first = search.circle()
    finally:
        wait.asked += search.asked
    return first if first is not None and is_confirmed(first, mine) else None


def is_confirmed(circle: tuple[held.Waiter, ...], mine: held.Waiter) -> bool:
    """Whether a second search, which asks everything again, finds the same waits."""
    again = Search(mine).circle()
    return again is not None and [each.id for each in again] == [each.id for each in circle]
