"""Sound in one process: a lock of the threading module."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from uuid import UUID

from django.db.models import F

from orders.lab.cart import Busy, Cart
from orders.lab.models import Product
from orders.lab.strategies.base import Strategy, in_key_order

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

    name = "local_lock"
    sound = True
    sound_across_processes = False

    def sell(self, cart: Cart) -> UUID:
        """Lock, then read, decide and subtract, commit, unlock."""
        with ExitStack() as held:
            for sku in cart.skus:
                self._acquire(sku, held)
            with self.transaction():
                products = self.read(cart)
                self.decide(cart, products)
                for product, units in in_key_order(cart, products):
                    less = {"on_hand": F("on_hand") - units, "version": F("version") + 1}
                    Product.objects.filter(pk=product.pk).update(**less)
                self.checkpoint("written")
                return self.record(cart, products)

    def _acquire(self, sku: str, held: ExitStack) -> None:
        lock = _locks.setdefault(sku, threading.Lock())
        if not lock.acquire(blocking=False):
            self.checkpoint("waiting", lock=sku)
            if not lock.acquire(timeout=self.wait):
                raise Busy(f"the local lock of {sku} stayed locked for {self.wait:g} s")
        held.callback(self.checkpoint, "unlocked", lock=sku)
        held.callback(lock.release)
        self.checkpoint("locked", lock=sku)
