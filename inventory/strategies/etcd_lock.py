"""Sound, with the database behind it: a lock that several etcd members agree on."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import transaction

from inventory.checkpoints import checkpoint
from inventory.connection_check import check_connection
from inventory.rows import busy_when_locked_out, decide, read_products
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import locked_transaction


class EtcdLock(Strategy):
    """Idea:
        Each buyer writes a key bound to a lease of its own. The cluster numbers every change, and the key
        with the lowest number has the lock; who waits watches the key before its own.

    Interleaving:
        A's key is revision 70 and reads 1; B's is 71 and watches it. A sells, commits, and gives its lease
        up: the key goes, B is told, makes sure that its own lease still lives, and reads 0.

    Verdict:
        Exact, with one transaction a product at a time, also while one of three members is down. A lease can
        end under a buyer that is paused for too long: UPDATE … WHERE on_hand >= n then refuses what the lock
        let through, and `fenced=True` every late write, by the revision of the buyer's key.

    Cost:
        Four requests around each sale, three of them writes that a majority must have on disk, by HTTP. Worth
        it where etcd is run already.
    """

    name: ClassVar[str] = "etcd_lock"
    sound: ClassVar[bool] = True
    wait: ClassVar[float] = 10.0
    lock_alias: ClassVar[str] = "etcd"
    lock_setting: ClassVar[str] = "ETCD_ENDPOINTS"

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
