"""Sound: several locks, taken in one order by everybody."""

from __future__ import annotations

from typing import ClassVar

from inventory.models import Product
from inventory.rows import decide, find_products, lock_products, sale_transaction, save_all
from inventory.strategies.base import Sale, Strategy


class OrderedLocks(Strategy):
    """Idea:
        Lock line by line, and not as the basket has them: in the order of the products' keys, which is the
        same for every cart.

    Interleaving:
        A's basket is pen, mug; B's is mug, pen. Both begin with the mug. A has it, B waits for it and holds
        nothing that A could want.

    Verdict:
        Exact, and no circle can close: anyone who waits for a lock holds only earlier ones. Any order will
        do, as long as there is one, in the whole shop. `get_lock("a", "b")` keeps one for distributed locks.

    Cost:
        One look at the keys before the first lock. `row_lock` does the same in one statement, with ORDER BY.
    """

    name: ClassVar[str] = "ordered_locks"
    sound: ClassVar[bool] = True
    race_products: ClassVar[int] = 2

    def sell(self, sale: Sale) -> None:
        """Lock and read line by line in the order of the keys, then decide and save."""
        products: dict[str, Product] = {}
        with sale_transaction(self.wait):
            keys = find_products(sale.lines)
            for line in sorted(sale.lines, key=lambda line: keys[line.sku].pk):
                products |= lock_products([line])
            decide(sale.lines, products)
            save_all(sale.lines, products)
            sale.record(products)
