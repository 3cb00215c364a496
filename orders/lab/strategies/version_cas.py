"""Sound: compare and set on a version number, with a bounded number of tries."""

from __future__ import annotations

import random
import time
from typing import ClassVar
from uuid import UUID

from django.db.models import F

from orders.lab.cart import Busy, Cart
from orders.lab.models import Product
from orders.lab.strategies.base import Strategy, in_key_order


class VersionCas(Strategy):
    """Idea:
        Lock nothing. Remember the version that was read; write only WHERE version is still that one. No row
        changed means that another buyer was faster: begin again, in a new transaction.

    Interleaving:
        A and B read 10, version 7. A writes 9, version 8. B's UPDATE finds no version 7, changes nothing, and
        B reads again: 9, version 8.

    Verdict:
        Exact. When the tries run out the answer is Busy, which isn't sold out: the stock may well be there.

    Cost:
        Excellent while buyers rarely meet. On one hot product nearly every try is lost, so the tries are
        spread by a growing, random pause, and bounded.
    """

    name = "version_cas"
    sound = True
    tries: ClassVar[int] = 20
    longest_pause = 0.1  # seconds

    def sell(self, cart: Cart) -> UUID:
        """Try, and try again when another buyer was faster."""
        for attempt in range(self.tries):
            try:
                return self._try(cart)
            except _Overtaken:
                self.checkpoint("overtaken", attempt=attempt)
                time.sleep(random.uniform(0, min(self.longest_pause, 0.002 * 2**attempt)))  # noqa: S311
        raise Busy(f"overtaken by other buyers {self.tries} times")

    def _try(self, cart: Cart) -> UUID:
        with self.transaction():
            products = self.read(cart)
            self.decide(cart, products)
            for product, units in in_key_order(cart, products):
                unchanged = Product.objects.filter(pk=product.pk, version=product.version)
                if not unchanged.update(on_hand=F("on_hand") - units, version=F("version") + 1):
                    raise _Overtaken
            self.checkpoint("written")
            return self.record(cart, products)


class _Overtaken(Exception):
    """The version isn't the one that was read."""
