"""Sound: a product's stock in several rows, each with a distributed lock of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import ClassVar
from uuid import UUID

from django.db.models import F

from locking import Lock, LockError, get_lock
from orders.lab.cart import Busy, Cart, SoldOut, shortages
from orders.lab.models import Product, StockSegment
from orders.lab.strategies.base import Strategy, busy_when_locked_out, find_products, in_key_order


class SegmentedLocks(Strategy):
    """Idea:
        A distributed lock a product lets one buyer in at a time. Spread the stock over 8 rows with a lock
        each; a buyer takes any lock that is free, and skips rows that have too little.

    Interleaving:
        A has the lock of row 3, B finds it taken and gets the lock of row 5: both sell at once. Rows 1, 1, 1
        are left and a cart wants 3: it waits in the queue for all the locks, and gathers.

    Verdict:
        Exact: the lock outlasts the commit, and should a lease end too early, UPDATE … WHERE units >= n
        refuses. Nothing is undersold: a sale that finds no row with enough waits for all of them and looks
        again.

    Cost:
        Two requests to Redis for each row that is tried, eight locks for the last units. A refusal costs none
        of them. This is the form in which segments help: with one lock a product, all stand in one line.
    """

    name = "segmented_locks"
    sound = True
    segments: ClassVar[int] = 8

    def sell(self, cart: Cart) -> UUID:
        """Lock a row with enough for each line, or all of them; BEGIN, take, COMMIT, unlock."""
        find_products(cart.skus)  # an unknown one has no locks
        with ExitStack() as locks, busy_when_locked_out():
            locks.callback(self.checkpoint, "unlocked")
            chosen = {sku: self._lock(sku, units, locks) for sku, units in cart.wanted.items()}
            self.checkpoint("locked")
            with self.transaction():
                products = self.read(cart)
                refuse_by_total(cart.wanted)
                self.checkpoint("decided")
                for product, units in in_key_order(cart, products):
                    self._take(product, units, chosen[product.sku])
                self.checkpoint("written")
                return self.record(cart, products)

    def _lock(self, sku: str, units: int, locks: ExitStack) -> int | None:
        """Hold a segment that has enough, and return its number; or hold all, and return None."""
        enough = StockSegment.objects.filter(product__sku=sku, units__gte=units)
        numbers = list(enough.values_list("number", flat=True))
        for number in random.sample(numbers, len(numbers)):
            lock = get_lock(f"lab:sku:{sku}:{number}", guarded=True)
            if lock.try_acquire():
                with ExitStack() as trial:
                    trial.callback(_leave, lock)
                    if enough.filter(number=number).exists():
                        locks.callback(trial.pop_all().close)
                        return number
        refuse_by_total({sku: units})  # what is sold out has no lock to wait for
        self.checkpoint("waiting")
        every = get_lock(
            *(f"lab:sku:{sku}:{number}" for number in range(self.segments)), wait=self.wait, guarded=True
        )
        every.acquire()
        locks.callback(_leave, every)
        return None

    def _take(self, product: Product, units: int, number: int | None) -> None:
        if number is None:
            self._take_from_all(product, units)
        elif not product.segments.filter(number=number, units__gte=units).update(units=F("units") - units):
            raise Busy(f"the segment of {product.sku} was sold under its lock", retry_after=0)

    def _take_from_all(self, product: Product, units: int) -> None:
        """Gather what is in the product's row and all segments, and spread what is left."""
        own = Product.objects.select_for_update(no_key=True).get(pk=product.pk).on_hand
        parts = product.segments.select_for_update().order_by("number").values_list("units", flat=True)
        left = own + sum(parts) - units
        if left < 0:
            raise SoldOut(shortages({product.sku: units}, {product.sku: left + units}))
        Product.objects.filter(pk=product.pk).update(on_hand=0, version=F("version") + 1)
        product.segments.all().delete()
        each, rest = divmod(left, self.segments)
        StockSegment.objects.bulk_create(
            StockSegment(product=product, number=number, units=each + (number < rest))
            for number in range(self.segments)
        )


def refuse_by_total(wanted: Mapping[str, int]) -> None:
    """Raise SoldOut unless row and segments have enough for each line."""
    rows = Product.objects.with_left().filter(sku__in=wanted)
    if short := shortages(wanted, dict(rows.values_list("sku", "left"))):
        raise SoldOut(short)


def _leave(lock: Lock) -> None:
    # A lease that ended too early is no news here: the rows were checked again, and the sale is committed.
    with suppress(LockError):
        lock.__exit__(None, None, None)  # as a block would: what can't be released now is released later
