"""Sound: anyone who inserts the row has the lock."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.models import NamedLock
from inventory.rows import decide, read_products, sale_transaction
from inventory.strategies.base import Sale, Strategy


class UniqueRow(Strategy):
    """Idea:
        INSERT a row whose name is a unique key. The second inserter of the same name waits in the index for
        the first one's end. The row is deleted before the commit, so nobody ever sees it.

    Interleaving:
        A inserts `held:mug`, reads 1, saves 0. B's INSERT waits. A deletes its row and commits: B's INSERT
        goes through, and B reads 0. If A rolls back or dies, its row is gone just the same.

    Verdict:
        Exact. The well-known form commits the row and deletes it later, in another transaction: then a dead
        holder's row stays for ever, and with an expiry in it this is `setnx_getset` once more.

    Cost:
        A dead row version and two writes of WAL for each sale. It needs no row to be there beforehand.
    """

    name: ClassVar[str] = "unique_row"
    sound: ClassVar[bool] = True

    def sell(self, sale: Sale) -> None:
        """Insert, in one order for everybody; read, decide and subtract; delete; COMMIT."""
        names = [f"held:{line.sku}" for line in sale.lines]
        with sale_transaction(self.wait):
            checkpoint("waiting")
            NamedLock.objects.bulk_create(NamedLock(name=name) for name in names)
            checkpoint("locked")
            products = read_products(sale.lines)
            decide(sale.lines, products)
            sale.take_and_record(products)
            NamedLock.objects.filter(name__in=names).delete()
