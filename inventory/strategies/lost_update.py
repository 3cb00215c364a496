"""Broken: read the stock, compute in memory, save the result."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.rows import decide, in_key_order, read_products, sale_transaction
from inventory.strategies.base import Sale, Strategy


class LostUpdate(Strategy):
    """Idea:
        Read the product, see that there is enough, subtract in Python, save. In a transaction, so it must be
        safe.

    Interleaving:
        A reads 10. B reads 10. A saves 9. B saves 9: it writes what it computed from a stock that is gone,
        and A's update is lost. READ COMMITTED, PostgreSQL's default, allows that: a plain SELECT locks
        nothing.

    Verdict:
        Oversells, and the stock looks healthy while it does: forty orders, nine left. The ledger knows
        better.

    Cost:
        None that a test with one buyer would show.
    """

    name: ClassVar[str] = "lost_update"
    sound: ClassVar[bool] = False

    def sell(self, sale: Sale) -> None:
        """Read, compute, save."""
        with sale_transaction():
            products = read_products(sale.lines)
            decide(sale.lines, products)
            for product, quantity in in_key_order(sale.lines, products):
                product.on_hand -= quantity
                product.save(update_fields=["on_hand"])
            checkpoint("written")
            sale.record(products)
