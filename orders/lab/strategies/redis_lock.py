"""Sound, with the database behind it: this project's own distributed lock."""

from __future__ import annotations

from orders.lab.strategies.coordinated import Coordinated


class RedisLock(Coordinated):
    """Idea:
        One lock a product, all or none for a cart. `locked_transaction` begins the transaction inside the
        lock and commits it before the release. A watchdog renews the lock, and buyers wait in line instead of
        polling.

    Interleaving:
        A locks, reads 1, sells it, commits, and only then unlocks; the lock is handed to B, which has waited
        in line and reads 0.

    Verdict:
        Exact, with one transaction a product at a time. A lease can still end under a holder that is paused
        for too long: the second line, UPDATE … WHERE on_hand >= n, then refuses what the lock let through.
        See `expired_lease` for what it prevents, and `fenced_lock` for a fence around every write.

    Cost:
        Two requests to Redis around each sale; refused buyers wait in the queue too. It also orders work
        outside the database, which a row lock can't.
    """

    name = "redis_lock"
