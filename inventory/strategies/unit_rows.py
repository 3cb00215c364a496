"""Sound: one row per unit, reserved without waiting and claimed by the order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from inventory.models import Product
from inventory.pending_claims import give_back_older_than, sell_in_two
from inventory.progress import SaleProgress
from inventory.rows import Products, lock_products, read_products, sale_transaction
from inventory.segments import decide_by_level, fold
from inventory.strategies.base import Reconciled, Sale, Strategy
from inventory.units import claim_units, refill


class UnitRows(Strategy):
    """Idea:
        A row per unit, up to 1000 of a product (Shopify's design). A buyer deletes those it wants that nobody
        has locked (SKIP LOCKED), with a claim that says for whom; the order consumes the claim.

    Interleaving:
        A takes unit 1, B skips it and takes unit 2. C finds none free: it locks the product's row, waits for
        those who take units, refills from the row, and is served or refused.

    Verdict:
        Exact, with no undersell. A dead buyer's units rest until the reconciler finds its claim.

    Cost:
        Two transactions, one of which waits for the disk, and a dead row version per unit.
    """

    name: ClassVar[str] = "unit_rows"
    sound: ClassVar[bool] = True
    pool: ClassVar[int] = 1000

    def sell(self, sale: Sale) -> None:
        """Reserve, COMMIT; order, COMMIT; give the units back if that fails."""
        sell_in_two(sale, self._reserve, self.wait)

    def _reserve(self, sale: Sale, progress: SaleProgress) -> Products:
        decide_by_level(sale.lines, products := read_products(sale.lines))
        progress.written = True  # the next statement commits itself, whether that is answered or not
        return products if claim_units(sale, products) else self._reserve_in_line(sale)

    def _reserve_in_line(self, sale: Sale) -> Products:
        with sale_transaction(self.wait):
            products = lock_products(sale.lines)
            if not claim_units(sale, products):
                refill(sale.lines, products, self.pool)
                claim_units(sale, products)
        return products

    def forget(self, products: Iterable[Product]) -> None:
        """Put the units back into the products' own rows."""
        fold(products)

    def reconcile(self, older_than: float = 30.0) -> Reconciled:
        """Give back what dead buyers reserved."""
        return Reconciled(voided=give_back_older_than(older_than))
