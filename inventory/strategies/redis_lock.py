"""Sound, with the database behind it: this project's own distributed lock."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import transaction

from inventory.checkpoints import checkpoint
from inventory.connection_check import check_connection
from inventory.rows import busy_when_locked_out, decide, read_products
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import distributed_lock


class RedisLock(Strategy):
    """Idea:
        One lock a product, all or none for a cart. The decorator begins the transaction inside the lock and
        commits it before the release. A watchdog renews the lock, and buyers wait in line instead of polling.

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

    name: ClassVar[str] = "redis_lock"
    sound: ClassVar[bool] = True
    wait: ClassVar[float] = 10.0

    def sell(self, sale: Sale) -> None:
        """Lock, BEGIN, read, decide, write, COMMIT, unlock."""
        check_connection()
        checkpoint("waiting")
        with busy_when_locked_out():
            self._sell_locked(sale)
        checkpoint("unlocked")

    @distributed_lock(key=lock_names, wait=wait, guarded=True, on_conflict="raise")
    def _sell_locked(self, sale: Sale) -> None:
        checkpoint("locked")
        transaction.on_commit(partial(checkpoint, "committed"))
        products = read_products(sale.lines, self.wait)
        decide(sale.lines, products)
        sale.take_and_record(products)
