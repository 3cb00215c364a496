"""Broken: SETNX, then EXPIRE, at last DEL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.domain import Busy
from inventory.models import Product
from inventory.rows import decide, read_products, sale_transaction, save_all
from inventory.stock_store import answering, drop
from inventory.strategies.base import Sale, Strategy


class SetnxExpireDel(Strategy):
    """Idea:
        SETNX answers 1 to one caller only: that is a lock. EXPIRE, so that it ends if its holder dies. DEL to
        unlock.

    Interleaving:
        A's work outlasts the expiry. B takes the lock, reads what A has read, sells the same unit. A is done
        and deletes the lock, now B's, so that C comes in beside B. And if A dies between SETNX and EXPIRE: no
        end at all.

    Verdict:
        Oversells, or stands still for ever. SET NX PX is one step, a token says whose lock it is, and the
        database has to check again: see `redis_spin_lock`.

    Cost:
        Three requests, and the pollers' besides.
    """

    name: ClassVar[str] = "setnx_expire_del"
    sound: ClassVar[bool] = False
    expiry: ClassVar[float] = (
        0.015  # seconds; so short that the lab's gap outlasts it, as a slow payment outlasts 10 s
    )
    retry_interval: ClassVar[float] = 0.005  # seconds

    def sell(self, sale: Sale) -> None:
        """Lock each product, then read, compute and save."""
        with ExitStack() as locks:
            for line in sale.lines:
                locks.enter_context(self._held(f"lock:{line.sku}"))
            with sale_transaction():
                products = read_products(sale.lines)
                decide(sale.lines, products)
                save_all(sale.lines, products)
                sale.record(products)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the locks, also those that a dead holder left."""
        drop(f"lock:{product.sku}" for product in products)

    @contextmanager
    def _held(self, key: str) -> Iterator[None]:
        deadline = time.monotonic() + self.wait
        with answering() as redis:
            while not redis.setnx(key, 1):
                checkpoint("waiting", lock=key)
                if time.monotonic() > deadline:
                    raise Busy(f"{key} stayed locked for {self.wait:g} s")
                time.sleep(self.retry_interval)
            checkpoint("locked", lock=key)  # who dies here holds the lock for ever
            redis.pexpire(key, round(self.expiry * 1000))
            try:
                yield
            finally:
                redis.delete(key)  # anyone's it is by now
                checkpoint("unlocked", lock=key)
