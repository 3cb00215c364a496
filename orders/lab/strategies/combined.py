"""Sound: many checkouts in one commit."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import ClassVar
from uuid import UUID

from django.db import connection, transaction

from orders.lab.cart import Busy, Cart, SoldOut, UnknownProduct, shortages
from orders.lab.models import Product
from orders.lab.strategies.base import Strategy


@dataclass(eq=False)
class Ticket:
    """One buyer's place in the queue, and its answer."""

    cart: Cart
    error: Exception | None = None
    done: bool = False


class Combined(Strategy):
    """Idea:
        The hot row is free again only after its commit is on the disk. So let one buyer sell for all who wait
        in its process: lock the stock once, decide each cart in turn, write the orders of all, and commit
        once.

    Interleaving:
        A leads. B and C come while A commits, and wait. B gets the lead and sells for C as well: two units
        are left, B wants one and C two, so C alone is sold out.

    Verdict:
        Exact: the rows are locked before any cart is decided about, also against other processes. A batch
        lives or dies as one: when the leader fails before the commit, all of it is asked to try again.

    Cost:
        One commit for up to 64 checkouts, and a buyer's answer waits for that of its neighbors.
    """

    name = "combined"
    sound = True
    most: ClassVar[int] = 64
    queue: ClassVar[deque[Ticket]] = deque()
    leader: ClassVar[threading.Lock] = threading.Lock()

    def sell(self, cart: Cart) -> UUID:
        """Lead, or wait for the leader."""
        if connection.in_atomic_block:
            raise RuntimeError("a sale can't be combined inside an open transaction")
        self.queue.append(ticket := Ticket(cart))
        if not self.leader.acquire(blocking=False):
            self.checkpoint("waiting", lock="combined")
            self.leader.acquire()
        try:
            while not ticket.done:  # more than one batch may be before this one
                self._lead([self.queue.popleft() for _ in range(min(len(self.queue), self.most))])
        finally:
            self.leader.release()
        if ticket.error is not None:
            raise ticket.error
        return cart.id

    def _lead(self, batch: list[Ticket]) -> None:
        try:
            self._sell(batch)
        except BaseException as error:
            for ticket in batch:
                if not ticket.done:
                    ticket.error = error if isinstance(error, Exception) else Busy("the leader was stopped")
            raise
        finally:
            _settle(batch)

    def _sell(self, batch: list[Ticket]) -> None:
        skus = {sku for ticket in batch for sku in ticket.cart.wanted}
        with self.transaction():
            products = self.lock(Product.objects.filter(sku__in=skus).values_list("sku", flat=True))
            left = {sku: product.on_hand for sku, product in products.items()}
            if sold := [ticket for ticket in batch if self._serves(ticket, left)]:
                self.checkpoint("decided")
            for product in products.values():
                product.on_hand, product.version = left[product.sku], product.version + 1
            Product.objects.bulk_update(products.values(), ["on_hand", "version"])
            self.checkpoint("written")
            transaction.on_commit(partial(_settle, batch))
            for ticket in sold:
                self.record(ticket.cart, products)

    def _serves(self, ticket: Ticket, left: dict[str, int]) -> bool:
        """Give a cart its units of `left`, or its refusal."""
        wanted = ticket.cart.wanted
        if unknown := [sku for sku in ticket.cart.skus if sku not in left]:
            ticket.error = UnknownProduct(unknown)
        elif short := shortages(wanted, left):
            ticket.error = SoldOut(short)
        else:
            left.update({sku: left[sku] - units for sku, units in wanted.items()})
        return ticket.error is None


def _settle(batch: list[Ticket]) -> None:
    for ticket in batch:
        ticket.done = True
