"""Sound: stock in Redis, spread over several places that no script sees at once."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from typing import ClassVar
from uuid import UUID

from locking import BackendUnavailable
from orders.lab.cart import Busy, Cart, SoldOut, shortages
from orders.lab.models import Product
from orders.lab.redis_store import answering, drop, run
from orders.lab.strategies.base import Strategy, find_products

Taken = dict[str, int]
"""Units that were taken, by key."""


class Segmented(Strategy):
    """Idea:
        Spread 100 units over 5 segments of 20, each in a slot of its own: in a cluster they lie on different
        servers. Each buyer begins at a random one.

    Interleaving:
        Segments 1, 1, 1 are left, A wants 3 and B wants 3. A cart that one segment can't serve takes from one
        after another. A gets two, B one, both give back; the later one finds 3 and is served, and the other
        is refused.

    Verdict:
        Exact, with no undersell: a cart is refused only when all segments together have too little. The
        conditional UPDATE protects each of them; units of a dead buyer rest until the segments are read
        again.

    Cost:
        On one Redis server segments gain nothing, for it runs one script at a time, and a refusal looks into
        each of them. They pay across the servers of a cluster, or where each has its own lock: see
        `segmented_locks`.
    """

    name = "segmented"
    sound = True
    segments: ClassVar[int] = 5
    tries: ClassVar[int] = 10

    def sell(self, cart: Cart) -> UUID:
        """Take from one segment or several; sell in the database; give back if that fails."""
        taken: Taken = {}
        try:
            self._gather(cart, taken)
            self.checkpoint("decided")
            with self.transaction():
                products = self.read(cart)
                self.take(cart, products)
                return self.record(cart, products)
        except BaseException as error:
            with suppress(BackendUnavailable):  # the sale's own error matters more
                self._give_back(taken)
                if taken and isinstance(error, SoldOut):  # Redis was too high, and is read again
                    drop(self._keys(cart.skus))
            raise

    def _gather(self, cart: Cart, taken: Taken) -> None:
        for _ in range(self.tries):
            left = dict(cart.wanted)
            for key, sku in self._in_random_order(cart.skus):
                if left[sku] and (units := self._take_some(key, left[sku], cart)):
                    taken[key] = units
                    left[sku] -= units
            if not any(left.values()):
                return
            # Both of two that met give back, then look: the later one sees all units again.
            self._give_back(taken)
            if short := shortages(cart.wanted, self._left(cart.skus)):
                raise SoldOut(short)
        raise Busy(f"other carts took and gave back the same units {self.tries} times", retry_after=0)

    def _in_random_order(self, skus: Iterable[str]) -> list[tuple[str, str]]:
        keys = [(key, sku) for sku in skus for key in self._keys([sku])]
        return random.sample(keys, len(keys))

    def _take_some(self, key: str, wanted: int, cart: Cart) -> int:
        while not (taken := run("take_some", [key], [wanted])):
            self.prepare(find_products(cart.skus).values())
        return int(taken[0])

    def _give_back(self, taken: Taken) -> None:
        while taken:
            key, units = taken.popitem()
            run("give_back", [key, key], ["", units])  # no ledger

    def _left(self, skus: Iterable[str]) -> dict[str, int]:
        with answering() as server:
            return {sku: sum(int(server.get(key) or 0) for key in self._keys([sku])) for sku in skus}

    def _keys(self, skus: Iterable[str]) -> list[str]:
        return [f"{{lab:segment:{number}}}:stock:{sku}" for sku in skus for number in range(self.segments)]

    def prepare(self, products: Iterable[Product]) -> None:
        """Spread the stock over the segments that aren't there."""
        with answering() as server:
            for product in products:
                for number, key in enumerate(self._keys([product.sku])):
                    each, rest = divmod(product.on_hand, self.segments)
                    server.set(key, each + (number < rest), nx=True)

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the segments; the next buyer loads them again."""
        drop(self._keys(product.sku for product in products))
