"""Sound: stock in Redis, spread over several places that no script sees at once."""

from __future__ import annotations

from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.reserving_strategy import ReservingStrategy
from inventory.rows import read_products, sale_transaction
from inventory.strategies.base import Sale


class Segmented(ReservingStrategy):
    """Idea:
        Spread 100 units over 5 segments of 20, each in a slot of its own with a ledger of its own: in a
        cluster they lie on different servers. Each buyer begins at a random one.

    Interleaving:
        Segments 1, 1, 1 are left, A wants 3 and B wants 3. A cart that one segment can't serve takes from one
        after another. A gets two, B one, both give back; the later one finds 3 and is served, and the other
        is refused.

    Verdict:
        Exact, with no undersell: a cart is refused only when all segments together have too little. Ledger,
        epoch and reconciler are those of `redis_gate`, in each segment.

    Cost:
        On one Redis server segments gain nothing, for it runs one script at a time, and a refusal looks into
        each of them. They pay across the servers of a cluster, or where each has its own lock: see
        `segmented_locks`.
    """

    name: ClassVar[str] = "segmented"
    sound: ClassVar[bool] = True
    segments: ClassVar[int] = 5

    def sell(self, sale: Sale) -> None:
        """Take from one segment or several; sell in the database; strike the entries."""
        with self.gate.holding(sale):
            checkpoint("decided")
            with sale_transaction(self.wait):
                products = read_products(sale.lines)
                sale.take_and_record(products)
