"""Sound: a table whose rows are there to be locked."""

from __future__ import annotations

from typing import ClassVar

from django.db import connection

from inventory.checkpoints import checkpoint
from inventory.models import NamedLock
from inventory.rows import decide, read_products, sale_transaction
from inventory.strategies.base import Sale, Strategy, lock_names

_CREATE = """
INSERT INTO inventory_namedlock (name) SELECT 'sku:' || sku FROM inventory_product WHERE sku = ANY(%s)
ORDER BY sku ON CONFLICT DO NOTHING
"""


class LockTable(Strategy):
    """Idea:
        A row for each name that can be locked, in a table of its own. SELECT … FOR UPDATE of that row is the
        lock, and the commit is the release.

    Interleaving:
        A locks the row `sku:mug`, reads 1, saves 0. B waits for the row, not for the product, until A has
        committed, and reads 0.

    Verdict:
        Exact, and it can't be let go too early or outlive its holder: it ends with the transaction, also when
        the process dies. The rows are made before the sale, in a transaction of their own, and stay.

    Cost:
        Two statements a sale, and every writer must know of the table: who doesn't ask is not kept out. It
        locks names that are nobody's row; for a product, `row_lock` needs one statement less.
    """

    name: ClassVar[str] = "lock_table"
    sound: ClassVar[bool] = True

    def sell(self, sale: Sale) -> None:
        """See that the rows are there, lock them by name, then read, decide and subtract."""
        with connection.cursor() as cursor:
            cursor.execute(_CREATE, [[line.sku for line in sale.lines]])
        with sale_transaction(self.wait):
            checkpoint("waiting")
            list(
                NamedLock.objects.filter(name__in=lock_names(self, sale)).order_by("name").select_for_update()
            )
            checkpoint("locked")
            products = read_products(sale.lines)
            decide(sale.lines, products)
            sale.take_and_record(products)
