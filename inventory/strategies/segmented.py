"""Sound: stock in Redis, spread over several places that no script sees at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from inventory.checkpoints import checkpoint
from inventory.domain import Line
from inventory.gate import Gate
from inventory.models import Product
from inventory.rows import read_products, sale_transaction, subtract_all
from inventory.strategies.base import Reconciled, Sale, Strategy


class Segmented(Strategy):
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
    keeps_stock: ClassVar[bool] = True
    segments: ClassVar[int] = 5
    gate: ClassVar[Gate] = Gate("segmented", rooms=segments)

    def sell(self, sale: Sale) -> None:
        """Take from one segment or several; sell in the database; strike the entries."""
        with self.gate.holding(sale) as hold:
            checkpoint("decided")
            with sale_transaction(self.wait):
                hold.commits()
                products = read_products(sale.lines)
                subtract_all(sale.lines, products)
                sale.record(products)

    def prepare(self, products: Iterable[Product]) -> None:
        """Read the stock into the segments anew."""
        skus = [product.sku for product in products]
        self.gate.drop(skus)
        self.gate.load([Line(sku, 1) for sku in skus])

    def forget(self, products: Iterable[Product]) -> None:
        """Remove the stock from the segments; the next buyer reads it from the database."""
        self.gate.drop(product.sku for product in products)

    def reconcile(self, older_than: float = 30.0) -> Reconciled:
        """Settle what dead buyers left."""
        return self.gate.reconcile(older_than)

    def drift(self, products: Iterable[Product]) -> dict[str, int]:
        """Return by SKU how many units the segments have too many."""
        return self.gate.drift([product.sku for product in products])
