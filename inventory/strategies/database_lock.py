"""Sound, with the database behind it: a lock in the database, held before the transaction begins."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import transaction

from inventory.checkpoints import checkpoint
from inventory.connection_check import check_connection
from inventory.rows import busy_when_locked_out, decide, read_products
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import locked_transaction


class DatabaseLock(Strategy):
    """Idea:
        A row for each lock, with its owner and the end of its lease, taken over a connection of its own. The
        shop's transaction begins when the lock is held; who waits is woken by NOTIFY.

    Interleaving:
        A writes itself into the row and reads 1. B finds the row taken and waits. A sells, commits, and
        empties the row: B writes itself into it, BEGINs, and reads 0.

    Verdict:
        Exact, with one transaction a product at a time, and no server beside the database. A lease can end
        under a buyer that is paused for too long: UPDATE … WHERE on_hand >= n then refuses what the lock let
        through, and `fenced=True` every late write.

    Cost:
        Two small commits around each sale, over a few connections that a process's buyers share. A row lock
        costs less where all that must wait is one transaction.
    """

    name: ClassVar[str] = "database_lock"
    sound: ClassVar[bool] = True
    wait: ClassVar[float] = 10.0
    lock_alias: ClassVar[str] = "database"

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
