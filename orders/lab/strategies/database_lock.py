"""Sound, with the database behind it: a lock in the database, held before the transaction begins."""

from __future__ import annotations

from orders.lab.strategies.coordinated import Coordinated


class DatabaseLock(Coordinated):
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

    name = "database_lock"
    lock_alias = "database"
