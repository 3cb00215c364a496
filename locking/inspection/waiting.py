"""Who waits for whom, as nested lists: a holder, below it those that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from locking.exceptions import LockError
from locking.inspection.held import HeldLock, Waiter, holds_of, in_circles, waits_for


@dataclass(slots=True)
class WaitNode:
    """One waiter, or a holder that waits for nothing, and those who wait for what it holds.

    Attributes:
        waiter: the waiter; None for a holder that waits for nothing.
        holds: what such a holder holds.
        deadlocked: it is part of a circle.
        again: it is further up already, for a circle has no end.
        behind: those who wait for it.
    """

    waiter: Waiter | None
    holds: tuple[HeldLock, ...] = ()
    deadlocked: bool = False
    again: bool = False
    behind: list[WaitNode] = field(default_factory=list)

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
    edges = waits_for(waiting)
    circles = in_circles(edges)
    known = {each.id: each for each in waiting}
    behind: dict[str, list[str]] = {each: [] for each in known}
    for waiter, holders in edges.items():
        for holder in holders:
            behind[holder].append(waiter)
    shown: set[str] = set()

    def tree(waiter: str) -> WaitNode:
        node = WaitNode(known[waiter], deadlocked=waiter in circles, again=waiter in shown)
        if not node.again:
            shown.add(waiter)
            node.behind = [tree(each) for each in behind[waiter]]
        return node

    trees = [tree(each.id) for each in waiting if each.id in circles and each.id not in shown]
    roots = _below_holders([tree(each.id) for each in waiting if not edges[each.id]])
    trees += sorted(roots, key=lambda root: (-root.blocked, -root.longest))
    return trees + [tree(each.id) for each in waiting if each.id not in shown]


def _below_holders(trees: Sequence[WaitNode]) -> list[WaitNode]:
    """Put those who wait for a holder that waits for nothing below that holder, one lock after the other."""
    locks: dict[tuple[str, str], list[WaitNode]] = {}
    for node in trees:
        if node.waiter is not None:
            locks.setdefault((node.waiter.backend, node.waiter.name), []).append(node)
    roots: list[WaitNode] = []
    for lock, waiting in locks.items():
        holds = _holds(*lock)
        roots += [WaitNode(None, holds, behind=waiting)] if holds else waiting
    return roots


def _holds(backend: str, name: str) -> tuple[HeldLock, ...]:
    with suppress(LockError):
        return tuple(holds_of(name, backend=backend))
    return ()
