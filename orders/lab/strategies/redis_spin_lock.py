"""Sound, with the database behind it: SET NX PX, polling, and a compare-and-delete."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import ClassVar
from uuid import UUID, uuid4

from locking import BackendUnavailable
from orders.lab.cart import Busy, Cart
from orders.lab.models import Product
from orders.lab.redis_store import answering, drop, run
from orders.lab.strategies.base import Strategy


class RedisSpinLock(Strategy):
    """Idea:
        Take and expire in one command, with a random token as the value. Ask again until it is free. Delete
        it by a script that compares the token, after the commit.

    Interleaving:
        A has the lock, reads 1, sells it, commits, unlocks; B is refused until then and reads 0. If A
        outlives its expiry, B comes in beside it, and A's delete finds another's token and leaves it alone.

    Verdict:
        Exact, because of the second line: even a holder whose lock has ended can't subtract what isn't there,
        the UPDATE says WHERE on_hand >= n. The lock alone could not promise that.

    Cost:
        Three settings to get wrong: too short an expiry lets two in, too long a one holds all up after a
        crash; a short interval burdens Redis, a long one leaves the lock idle. And there is no queue: some
        starve.
    """

    name = "redis_spin_lock"
    sound = True
    expiry: ClassVar[float] = 10.0  # seconds after which a dead holder's lock ends
    retry_interval = 0.02  # seconds between two tries, on average
    acquire_timeout: ClassVar[float] = 10.0  # seconds of trying before the answer is Busy

    def sell(self, cart: Cart) -> UUID:
        """Lock each product, then read, decide and write."""
        with ExitStack() as locks:
            for sku in cart.skus:
                locks.enter_context(self._held(f"lab:spin:{sku}"))
            with self.transaction():
                products = self.read(cart)
                self.decide(cart, products)
                self.take(cart, products)
                return self.record(cart, products)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the locks, also those that a dead holder left."""
        drop(f"lab:spin:{product.sku}" for product in products)

    @contextmanager
    def _held(self, key: str) -> Iterator[None]:
        token = uuid4().hex
        try:
            self._acquire(key, token)
            yield
        finally:  # also when the reply to SET was lost: the token tells whether the lock is ours
            with suppress(BackendUnavailable):  # the sale is what counts by now, and the lock ends by itself
                run("unlock", [key], [token])
            self.checkpoint("unlocked", lock=key)

    def _acquire(self, key: str, token: str) -> None:
        deadline = time.monotonic() + self.acquire_timeout
        with answering() as redis:
            while not redis.set(key, token, nx=True, px=round(self.expiry * 1000)):
                self.checkpoint("waiting", lock=key)
                if time.monotonic() > deadline:
                    raise Busy(f"{key} stayed locked for {self.acquire_timeout:g} s", self.retry_interval)
                time.sleep(random.uniform(0.5, 1.5) * self.retry_interval)  # noqa: S311
        self.checkpoint("locked", lock=key)
