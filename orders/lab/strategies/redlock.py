"""Sound, with the database behind it: a lock on the majority of independent Redis servers."""

from __future__ import annotations

from orders.lab.strategies.coordinated import Coordinated


class Redlock(Coordinated):
    """Idea:
        Each buyer asks five Redis servers at once, none of which knows of the others. A buyer that gets
        three of them before its lease is over has the lock; one that gets fewer gives them back and asks
        again later.

    Interleaving:
        A has servers 1, 2 and 3 and reads 1. B gets 4 and 5, gives them back, and asks again. A sells,
        commits and lets go; B gets its majority and reads 0. Any two servers may be dead meanwhile.

    Verdict:
        Exact, with one transaction a product at a time. A server that forgets, or whose clock jumps, may give
        the lock to two: UPDATE … WHERE on_hand >= n then refuses what the lock let through, and
        `fenced=True` every late write.

    Cost:
        Three rounds of requests to all servers around each sale, and polling: no message wakes a waiter. A
        service with failover is quicker; this one needs no servers that know of each other.
    """

    name = "redlock"
    lock_alias = "redlock"
    lock_setting = "REDLOCK_URLS"
