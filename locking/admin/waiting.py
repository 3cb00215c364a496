"""Who waits for whom, as nested lists: anyone who is waited for stands above those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from locking.inspection.held import Waiter, in_circles, waits_for


@dataclass(slots=True)
class Node:
    """One waiter, and those who wait for what it holds.

    Attributes:
        waiter: the waiter.
        deadlocked: it is part of a circle.
        again: it stands further up already, for a circle has no end.
        behind: those who wait for it.
    """

    waiter: Waiter
    deadlocked: bool = False
    again: bool = False
    behind: list[Node] = field(default_factory=list)


def wait_trees(everybody: Sequence[Waiter]) -> list[Node]:
    """Return the trees of waiters; each circle stands first, opened at its longest waiting member."""
    edges = waits_for(everybody)
    circles = in_circles(edges)
    known = {each.id: each for each in everybody}
    behind: dict[str, list[str]] = {each: [] for each in known}
    for waiter, holders in edges.items():
        for holder in holders:
            behind[holder].append(waiter)
    shown: set[str] = set()

    def tree(waiter: str) -> Node:
        node = Node(known[waiter], waiter in circles, waiter in shown)
        if not node.again:
            shown.add(waiter)
            node.behind = [tree(each) for each in behind[waiter]]
        return node

    roots = [each.id for each in everybody if each.id in circles]
    roots += [each.id for each in everybody if not edges[each.id]]
    trees = [tree(each) for each in roots if each not in shown]
    return trees + [tree(each.id) for each in everybody if each.id not in shown]
