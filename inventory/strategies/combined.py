"""Sound: many checkouts in one commit."""

from __future__ import annotations

from typing import ClassVar

from django.db import connection

from inventory.batch_sale import sell_batch
from inventory.group_commit import GroupCommit
from inventory.strategies.base import Sale, Strategy


class Combined(Strategy):
    """Idea:
        The hot row is free again only after its commit is on the disk. So let one buyer sell for all who wait
        in its process: look at the stock once, decide each cart in turn, take the units and write the orders
        of all in one statement, which is its own transaction, and only then answer each.

    Interleaving:
        A leads. B and C come while A commits, and wait. A hands the lead to B, which sells for C as well: two
        units are left, B wants one and C two, so C alone is told that there is one.

    Verdict:
        Exact: the statement takes nothing unless there is enough for the whole batch, also against other
        processes. When there isn't, or one member can't be served, nobody was sold anything: the rows are
        locked, and each cart is decided about under the lock.

    Cost:
        Two statements for up to 64 checkouts, one for a batch of refusals. Products with a limit a customer
        are always sold the careful way.
    """

    name: ClassVar[str] = "combined"
    sound: ClassVar[bool] = True
    group_commit: ClassVar[GroupCommit] = GroupCommit(sell_batch)

    def sell(self, sale: Sale) -> None:
        """Lead, or wait for a leader."""
        if connection.in_atomic_block:
            raise RuntimeError("a sale can't be combined inside an open transaction")
        self.group_commit.submit(sale, self.wait)
