"""Sound in one process: a lock of the threading module."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import ClassVar

from django.db.models import F

from inventory.checkpoints import checkpoint
from inventory.domain import Busy, Line
from inventory.models import Product
from inventory.rows import decide, in_key_order, read_products, sale_transaction
from inventory.strategies.base import Sale, Strategy

_locks: dict[str, threading.Lock] = {}


class LocalLock(Strategy):
    """Idea:
        One threading.Lock for each product, taken in one order, held until after the commit.

    Interleaving:
        Threads of one process: A reads 1, sells it, commits, unlocks; B reads 0. Two processes: A has its
        lock and B has another of the same name, in another memory. Both read 1, both subtract, and -1 are
        left.

    Verdict:
        Exact in one process; oversells as soon as there are two, which is how every server runs. No test in
        one process can tell. It subtracts in SQL, because a delivery asks for no lock: what comes in between
        reading and writing would be lost if the number that was read were written back.

    Cost:
        Nothing at all, and that is what makes it tempting.
    """

    name: ClassVar[str] = "local_lock"
    sound: ClassVar[bool] = True
    sound_across_processes: ClassVar[bool] = False

    def sell(self, sale: Sale) -> None:
        """Lock, then read, decide and subtract, commit, unlock."""
        with ExitStack() as held:
            for line in sale.lines:
                self._acquire(line, held)
            with sale_transaction():
                products = read_products(sale.lines)
                decide(sale.lines, products)
                for product, quantity in in_key_order(sale.lines, products):
                    less = {"on_hand": F("on_hand") - quantity, "version": F("version") + 1}
                    Product.objects.filter(pk=product.pk).update(**less)
                checkpoint("written")
                sale.record(products)

    def _acquire(self, line: Line, held: ExitStack) -> None:
        lock = _locks.setdefault(line.sku, threading.Lock())
        if not lock.acquire(blocking=False):
            checkpoint("waiting", lock=line.sku)
            if not lock.acquire(timeout=self.wait):
                raise Busy(f"the local lock of {line.sku} stayed taken for {self.wait:g} s")
        held.callback(checkpoint, "unlocked", lock=line.sku)
        held.callback(lock.release)
        checkpoint("locked", lock=line.sku)
