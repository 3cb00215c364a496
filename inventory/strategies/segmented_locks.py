"""Sound: a product's stock in several rows, each with a distributed lock of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.domain import Busy, Line
from inventory.models import Product, StockSegment
from inventory.rows import (
    busy_when_locked_out,
    find_products,
    in_key_order,
    lock_rows,
    read_products,
    sale_transaction,
)
from inventory.segments import decide_by_level, fold, refuse_by_level, take_from_all, take_from_number
from inventory.strategies.base import Sale, Strategy
from locking import Lock, LockError, get_lock


class SegmentedLocks(Strategy):
    """Idea:
        A distributed lock a product lets one buyer in at a time. Spread the stock over 8 rows with a lock
        each; a buyer takes any lock that is free, and skips rows that have too little.

    Interleaving:
        A has the lock of row 3, B finds it taken and gets the lock of row 5: both sell at once. Rows 1, 1, 1
        are left and a cart wants 3: it waits in the queue for all the locks, and gathers.

    Verdict:
        Exact: the lock outlasts the commit, and should a lease end too early, UPDATE … WHERE units >= n
        refuses. Nothing is undersold: who finds no row with enough waits for all of them and looks again.

    Cost:
        Two requests to Redis for each row that is tried, eight locks for the last units. A refusal costs none
        of them. This is the form in which segments help: with one lock a product, all stand in one line.
    """

    name: ClassVar[str] = "segmented_locks"
    sound: ClassVar[bool] = True
    segments: ClassVar[int] = 8

    def sell(self, sale: Sale) -> None:
        """Lock a row with enough for each line, or all of them; BEGIN, take, COMMIT, unlock."""
        with ExitStack() as locks, busy_when_locked_out():
            locks.callback(checkpoint, "unlocked")
            chosen = {line.sku: self._lock(line, sale, locks) for line in sale.lines}
            checkpoint("locked")
            with sale_transaction(self.wait):
                products = read_products(sale.lines)
                decide_by_level(sale.lines, products)
                lock_rows(products[sku].pk for sku, number in chosen.items() if number is None)
                for product, quantity in in_key_order(sale.lines, products):
                    self._take(product, quantity, chosen[product.sku])
                checkpoint("written")
                sale.record(products)

    def _lock(self, line: Line, sale: Sale, locks: ExitStack) -> int | None:
        """Hold a segment that has enough, and return its number; or hold all, and return None."""
        enough = StockSegment.objects.filter(product__sku=line.sku, units__gte=line.quantity)
        numbers = list(enough.values_list("number", flat=True))
        for number in random.sample(numbers, len(numbers)):
            lock = get_lock(self._name(line.sku, number), guarded=True)
            if lock.try_acquire():
                with ExitStack() as trial:
                    trial.callback(_leave, lock)
                    if enough.filter(number=number).exists():
                        locks.callback(trial.pop_all().close)
                        return number
        refuse_by_level(sale.lines, find_products(sale.lines))  # what is sold out has no line to stand in
        checkpoint("waiting")
        names = [self._name(line.sku, number) for number in range(self.segments)]
        every = get_lock(*names, wait=self.wait, guarded=True)
        every.acquire()
        locks.callback(_leave, every)
        return None

    def _take(self, product: Product, quantity: int, number: int | None) -> None:
        if number is None:
            take_from_all(product, quantity, self.segments)
        elif not take_from_number(product, quantity, number):
            raise Busy(f"the segment of {product.sku} was sold under its lock", retry_after=0)

    def _name(self, sku: str, number: int) -> str:
        return f"segment:{sku}:{number}"

    def forget(self, products: Iterable[Product]) -> None:
        """Put the stock back into the products' own rows."""
        fold(products)


def _leave(lock: Lock) -> None:
    # A lease that ended too early is no news here: the rows were checked again, and the sale is committed.
    with suppress(LockError):
        lock.__exit__(None, None, None)  # as a block would: what can't be released now is released later
