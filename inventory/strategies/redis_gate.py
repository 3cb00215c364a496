"""Sound: Redis refuses, the database sells, and a ledger remembers what lies between the two."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.reserving_strategy import ReservingStrategy
from inventory.rows import read_products, sale_transaction
from inventory.strategies.base import Sale


class RedisGate(ReservingStrategy):
    """Idea:
        One script takes the units and writes into a ledger, in Redis too, whose they are. After the commit
        the entry is struck. What a dead buyer left is settled by asking the database for its order.

    Interleaving:
        A's script takes the last unit, and A dies. B is refused, with no transaction. The reconciler finds
        A's entry and no order, and gives the unit back: C buys it. Had A died after its commit, the entry
        would be struck and nothing given back.

    Verdict:
        Exact: the conditional UPDATE stands in one transaction with the order. A stock that Redis has lost is
        read from the database under a new epoch, and what was taken under an old one isn't given back to it.
        Without Redis the database sells alone.

    Cost:
        Three requests to Redis a sale; a refusal costs one, and no transaction. Units of a dead buyer rest
        until the reconciler comes.
    """

    name: ClassVar[str] = "redis_gate"
    sound: ClassVar[bool] = True
    segments: ClassVar[int] = 1

    def sell(self, sale: Sale) -> None:
        """Take and enter in the ledger; sell in the database; strike the entry."""
        with self.gate.holding(sale):
            checkpoint("decided")
            with sale_transaction(self.wait):
                products = read_products(sale.lines)
                sale.take_and_record(products)
