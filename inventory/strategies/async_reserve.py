"""Sound: reserve without waiting for the disk, sell with waiting for it."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.pending_claims import (
    commit_asynchronously,
    give_back_older_than,
    sell_in_two,
    write_claims,
)
from inventory.progress import SaleProgress
from inventory.rows import Products, in_key_order, read_products, refuse, sale_transaction, subtract
from inventory.strategies.base import Reconciled, Sale, Strategy


class AsyncReserve(Strategy):
    """Idea:
        A hot row is locked until its commit is on the disk. So take the units in a short transaction whose
        commit doesn't wait for the disk, with a claim that says for whom; then write the order in another,
        which does wait, but touches no hot row.

    Interleaving:
        A claims the last unit, B is refused, A's order is flushed. If the server crashes between the two,
        either the claim is lost too, or it is there without an order and the reconciler gives it back.

    Verdict:
        Exact. PostgreSQL replays commits in their order, so an order that was flushed has its claim before
        it. Claim and order can't both count: the order's transaction deletes the claim, and when the
        reconciler was faster it finds none and rolls back.

    Cost:
        Two transactions and a row that comes and goes. The hot row never waits for a flush; the buyer still
        does, once. Units of a dead buyer rest until the reconciler comes.
    """

    name: ClassVar[str] = "async_reserve"
    sound: ClassVar[bool] = True

    def sell(self, sale: Sale) -> None:
        """Claim, COMMIT without a flush; order, COMMIT with one; give the claim back if that fails."""
        sell_in_two(sale, self._claim, self.wait)

    def _claim(self, sale: Sale, claim: SaleProgress) -> Products:
        with sale_transaction(self.wait):
            commit_asynchronously()
            products = read_products(sale.lines)
            checkpoint("decided")
            pairs = in_key_order(sale.lines, products)
            for number, (product, quantity) in enumerate(pairs):
                if not subtract(product, quantity):
                    refuse(sale.lines, taken=pairs[:number])
            checkpoint("written")
            write_claims(sale, products)
            claim.write()
        return products

    def reconcile(self, older_than: float = 30.0) -> Reconciled:
        """Give back what dead buyers claimed."""
        return Reconciled(voided=give_back_older_than(older_than))
