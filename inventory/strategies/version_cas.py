"""Sound: compare and set on a version number, with a bounded number of tries."""

from __future__ import annotations

import random
import time
from typing import ClassVar

from django.db.models import F

from inventory.checkpoints import checkpoint
from inventory.domain import Busy
from inventory.models import Product
from inventory.rows import decide, in_key_order, read_products, sale_transaction
from inventory.strategies.base import Sale, Strategy


class VersionCas(Strategy):
    """Idea:
        Lock nothing. Remember the version that was read; write only WHERE version is still that one. No row
        changed means that somebody was faster: begin again, in a new transaction.

    Interleaving:
        A and B read 10, version 7. A writes 9, version 8. B's UPDATE finds no version 7, changes nothing, and
        B reads again: 9, version 8.

    Verdict:
        Exact. When the tries run out the answer is Busy, which isn't sold out: the stock may well be there.

    Cost:
        Excellent while buyers rarely meet. On one hot product nearly every try is lost, so the tries are
        spread by a growing, random pause, and bounded.
    """

    name: ClassVar[str] = "version_cas"
    sound: ClassVar[bool] = True
    tries: ClassVar[int] = 20
    longest_pause: ClassVar[float] = 0.1  # seconds

    def sell(self, sale: Sale) -> None:
        """Try, and try again when somebody was faster."""
        for attempt in range(self.tries):
            try:
                return self._try(sale)
            except _Overtaken:
                checkpoint("overtaken", attempt=attempt)
                time.sleep(random.uniform(0, min(self.longest_pause, 0.002 * 2**attempt)))  # noqa: S311
        raise Busy(f"overtaken by other buyers {self.tries} times")

    def _try(self, sale: Sale) -> None:
        with sale_transaction(self.wait):
            products = read_products(sale.lines)
            decide(sale.lines, products)
            for product, quantity in in_key_order(sale.lines, products):
                unchanged = Product.objects.filter(pk=product.pk, version=product.version)
                if not unchanged.update(on_hand=F("on_hand") - quantity, version=F("version") + 1):
                    raise _Overtaken
            checkpoint("written")
            sale.record(products)


class _Overtaken(Exception):
    """The version isn't the one that was read."""
