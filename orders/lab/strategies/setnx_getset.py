"""Broken: SETNX of a time stamp, GETSET to take over an expired one."""

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


class SetnxGetset(Strategy):
    """Idea:
        No gap between SETNX and EXPIRE: the value is the time at which the lock ends. Anyone who finds it
        past takes over by GETSET, and has won if it got the old stamp back.

    Interleaving:
        A's work outlasts its stamp, or B's clock is fast: B finds it past, takes over and sells what A is
        selling. And C, a moment late in its GETSET, learns that it lost, but has put its own stamp over B's.

    Verdict:
        Oversells. The clocks of the clients decide who holds the lock, and no value says whose it is.

    Cost:
        One to three requests a try, and clocks that are never compared.
    """

    name = "setnx_getset"
    sound = False
    expiry: ClassVar[float] = 0.015  # seconds; so short that the lab's gap outlasts it
    retry_interval = 0.005  # seconds

    def sell(self, cart: Cart) -> UUID:
        """Lock each product, then read, compute and save."""
        with ExitStack() as locks:
            for sku in cart.skus:
                locks.enter_context(self._held(f"lab:stamp:{sku}"))
            with self.transaction():
                products = self.read(cart)
                self.decide(cart, products)
                self.save(cart, products)
                return self.record(cart, products)

    def clock(self) -> float:
        """Return this client's own idea of the time."""
        return time.time()  # noqa: TID251 the mistake that it shows

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the locks, also those that a dead holder left."""
        drop(f"lab:stamp:{product.sku}" for product in products)

    @contextmanager
    def _held(self, key: str) -> Iterator[None]:
        deadline = time.monotonic() + self.wait
        while (ends := self._try(key)) is None:
            self.checkpoint("waiting", lock=key)
            if time.monotonic() > deadline:
                raise Busy(f"{key} stayed locked for {self.wait:g} s")
            time.sleep(self.retry_interval)
        self.checkpoint("locked", lock=key)
        try:
            yield
        finally:
            with answering() as redis:
                if self.clock() < float(ends):
                    redis.delete(key)
            self.checkpoint("unlocked", lock=key)

    def _try(self, key: str) -> str | None:
        mine = repr(self.clock() + self.expiry)
        with answering() as redis:
            if redis.setnx(key, mine):
                return mine
            theirs = redis.get(key)
            if theirs is None or float(theirs) > self.clock():
                return None
            self.checkpoint("waiting", lock=key, expired=theirs)
            return mine if redis.getset(key, mine) == theirs else None
