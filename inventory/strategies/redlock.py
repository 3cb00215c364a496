"""Sound, with the database behind it: a lock on the majority of independent Redis servers."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import transaction

from inventory.checkpoints import checkpoint
from inventory.connection_check import check_connection
from inventory.rows import busy_when_locked_out, decide, read_products
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import locked_transaction


class Redlock(Strategy):
    """Idea:
        Each buyer asks five Redis servers at once, none of which knows of the others. Who gets three of them
        before its lease is over has the lock; who gets fewer gives them back and asks again later.

    Interleaving:
        A has servers 1, 2 and 3 and reads 1. B gets 4 and 5, gives them back, and asks again. A sells,
        commits and lets go; B gets its majority and reads 0. Any two servers may be dead meanwhile.

    Verdict:
        Exact, with one transaction a product at a time. A server that forgets, or whose clock jumps, may give
        the lock to two: UPDATE … WHERE on_hand >= n then refuses what the lock let through, and
        `fenced=True` every late write.

    Cost:
        Three rounds of requests to all servers around each sale, and polling: nobody wakes a waiter. A
        service with failover is quicker; this one needs no servers that know of each other.
    """

    name: ClassVar[str] = "redlock"
    sound: ClassVar[bool] = True
    wait: ClassVar[float] = 10.0
    lock_alias: ClassVar[str] = "redlock"
    lock_setting: ClassVar[str] = "REDLOCK_URLS"

    def sell(self, sale: Sale) -> None:
        """Lock, BEGIN, read, decide, write, COMMIT, unlock."""
        check_connection()
        checkpoint("waiting")
        lock = locked_transaction(
            *lock_names(self, sale), wait=self.wait, backend=self.lock_alias, guarded=True
        )
        with busy_when_locked_out(), lock:
            checkpoint("locked")
            transaction.on_commit(partial(checkpoint, "committed"))
            products = read_products(sale.lines, self.wait)
            decide(sale.lines, products)
            sale.take_and_record(products)
        checkpoint("unlocked")
