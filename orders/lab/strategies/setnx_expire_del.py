"""Broken: SETNX, then EXPIRE, at last DEL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar
from uuid import UUID

from orders.lab.cart import Busy, Cart
from orders.lab.models import Product
from orders.lab.redis_store import answering, drop
from orders.lab.strategies.base import Strategy


class SetnxExpireDel(Strategy):
    """Idea:
        SETNX answers 1 to one caller only: that is a lock. EXPIRE, so that it ends if its holder dies. DEL to
        unlock.

    Interleaving:
        A's work outlasts the expiry. B takes the lock, reads what A has read, sells the same unit. A is done
        and deletes the lock, now B's, so that C comes in beside B. And if A dies between SETNX and EXPIRE: no
        end at all.

    Verdict:
        Oversells, or stands still forever. SET NX PX is one step, a token says whose lock it is, and the
        database has to check again: see `redis_spin_lock`.

    Cost:
        Three requests, and the pollers' besides.
    """

    name = "setnx_expire_del"
    sound = False
    expiry: ClassVar[float] = 0.015  # seconds; the lab's gap outlasts it, as a slow payment outlasts 10 s
    retry_interval = 0.005  # seconds

    def sell(self, cart: Cart) -> UUID:
        """Lock each product, then read, compute and save."""
        with ExitStack() as locks:
            for sku in cart.skus:
                locks.enter_context(self._held(f"lab:lock:{sku}"))
            with self.transaction():
                products = self.read(cart)
                self.decide(cart, products)
                self.save(cart, products)
                return self.record(cart, products)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the locks, also those that a dead holder left."""
        drop(f"lab:lock:{product.sku}" for product in products)

    @contextmanager
    def _held(self, key: str) -> Iterator[None]:
        deadline = time.monotonic() + self.wait
        with answering() as redis:
            while not redis.setnx(key, 1):
                self.checkpoint("waiting", lock=key)
                if time.monotonic() > deadline:
                    raise Busy(f"{key} stayed locked for {self.wait:g} s")
                time.sleep(self.retry_interval)
            self.checkpoint("locked", lock=key)  # a holder that dies here holds the lock forever
            redis.pexpire(key, round(self.expiry * 1000))
            try:
                yield
            finally:
                redis.delete(key)  # the lock may be another's by now
                self.checkpoint("unlocked", lock=key)
