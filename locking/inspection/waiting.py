"""Who waits for whom, as nested lists: a holder, below it those that wait for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from locking.core.handler import locks
from locking.exceptions import LockError
from locking.inspection.columns import HeldLock, Waiter
from locking.inspection.held import Look

Holds = Mapping[tuple[str, str], Sequence[HeldLock]]  # by alias and key


@dataclass(slots=True)
class WaitNode:
    """One waiter, or a holder that waits for nothing, and those who wait for what it holds."""

    waiter: Waiter | None
    holds: tuple[HeldLock, ...] = ()  # of a holder that waits for nothing
    deadlocked: bool = False  # it is part of a circle
    again: bool = False  # it is further up already, for a circle has no end
    behind: list[WaitNode] = field(default_factory=list)  # those who wait for it

    @property
    def blocked(self) -> int:
        """How many wait for it, directly or behind another waiter."""
        return sum(1 + each.blocked for each in self.behind if not each.again)

    @property
    def longest(self) -> float:
        """The longest time that any of those has waited, in seconds."""
        waited = (max(each.waiter.waited if each.waiter else 0.0, each.longest) for each in self.behind)
        return max(waited, default=0.0)

    @property
    def name(self) -> str:
        """The lock that the first of those waits for."""
        first = next((each.waiter for each in self.behind if each.waiter), self.waiter)
        return first.name if first else ""

    @property
    def doing(self) -> str:
        """The path of the request or the id of the task, where it is known."""
        return next((each.doing for each in (self.waiter, *self.holds) if each and each.doing), "")

    @property
    def site(self) -> str:
        """Where in the code the lock was taken or is wanted."""
        return next((each.site for each in (self.waiter, *self.holds) if each and each.site), "")

    @property
    def who(self) -> str:
        """Host, process and thread; several holders of one lock are separated by commas."""
        return self.waiter.who if self.waiter else ", ".join(hold.holder for hold in self.holds)


def wait_trees(waiting: Sequence[Waiter]) -> list[WaitNode]:
    """Return the trees of waiters: each circle first, opened at its longest waiting member, and then the
    holders, those that block most first.
    """
    holds = holds_wanted_by(waiting)
    edges = waits_for(waiting, holds)
    circles = in_circles(edges)
    behind = defaultdict[str, list[Waiter]](list)
    for each in waiting:
        for holder in edges[each.id]:
            behind[holder].append(each)
    shown: set[str] = set()

    def tree(waiter: Waiter) -> WaitNode:
        node = WaitNode(waiter, deadlocked=waiter.id in circles, again=waiter.id in shown)
        if not node.again:
            shown.add(waiter.id)
            node.behind = [tree(each) for each in behind[waiter.id]]
        return node

    trees = [tree(each) for each in waiting if each.id in circles and each.id not in shown]
    below = defaultdict[tuple[str, str], list[WaitNode]](list)  # a holder that waits for nothing
    for each in waiting:
        if not edges[each.id]:
            below[each.backend, each.key].append(tree(each))
    roots: list[WaitNode] = []
    for lock, nodes in below.items():
        roots += [WaitNode(None, tuple(holds[lock]), behind=nodes)] if holds[lock] else nodes
    return trees + sorted(roots, key=lambda root: (-root.blocked, -root.longest))


def holds_wanted_by(waiting: Iterable[Waiter]) -> Holds:
    """Return the holds of each lock that is waited for; none where its backend doesn't answer."""
    looks = {alias: Look(locks[alias]) for alias in {each.backend for each in waiting}}
    found: dict[tuple[str, str], Sequence[HeldLock]] = {}
    for alias, key in {(each.backend, each.key) for each in waiting}:
        found[alias, key] = ()
        with suppress(LockError):
            found[alias, key] = looks[alias].holds_of(key)
    return found


def waits_for(waiting: Sequence[Waiter], holds: Holds) -> dict[str, list[str]]:
    """Return who waits for whom: by the id of a waiter, the ids of those waiters that hold what it wants."""
    holding = {(alias, owner): each.id for each in waiting for alias, owner, _ in each.holds}
    return {
        each.id: [
            holding[each.backend, hold.owner]
            for hold in holds[each.backend, each.key]
            if (each.backend, hold.owner) in holding
        ]
        for each in waiting
    }


def in_circles(edges: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return those who wait for themselves in the end."""

    def reached(start: str) -> set[str]:
        found, ahead = set[str](), [*edges[start]]
        while ahead:
            if (one := ahead.pop()) not in found:
                found.add(one)
                ahead += edges[one]
        return found

    return frozenset(each for each in edges if each in reached(each))
