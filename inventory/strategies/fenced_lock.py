"""Sound, whatever becomes of the lock: the database checks who is the newest holder."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from django.db import transaction

from inventory.checkpoints import checkpoint
from inventory.connection_check import check_connection
from inventory.rows import busy_when_locked_out, decide, read_products
from inventory.strategies.base import Sale, Strategy, lock_names
from locking import distributed_lock


class FencedLock(Strategy):
    """Idea:
        Every hold of a lock has a number, each higher than the last. A transaction writes its number into the
        fence, a row of the lock's own, before it reads anything: the database refuses a lower one.

    Interleaving:
        A locks with number 7 and is paused beyond its lease. B locks with 8, writes 8 into the fence, reads
        1, sells it. A wakes up, BEGINs, and is refused with its 7. Paused later, behind the fence, A keeps
        its row locked instead: B's transaction waits for A's end, and reads 0.

    Verdict:
        Exact, even when Redis forgets everything it knew. Redis gives order and speed, the database safety.
        The conditional UPDATE stands behind it for those who write without the fence.

    Cost:
        `redis_lock` and two statements more, one of them the write of a row for each product.
    """

    name: ClassVar[str] = "fenced_lock"
    sound: ClassVar[bool] = True
    wait: ClassVar[float] = 10.0

    def sell(self, sale: Sale) -> None:
        """Lock, BEGIN, fence, read, decide, write, COMMIT, unlock."""
        check_connection()
        checkpoint("waiting")
        with busy_when_locked_out():
            self._sell_fenced(sale)
        checkpoint("unlocked")

    @distributed_lock(key=lock_names, wait=wait, fenced=True, on_conflict="raise")
    def _sell_fenced(self, sale: Sale) -> None:
        checkpoint("locked")
        transaction.on_commit(partial(checkpoint, "committed"))
        products = read_products(sale.lines)
        decide(sale.lines, products)
        sale.take_and_record(products)
