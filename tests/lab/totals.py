"""What the rows say about a product, asked by SQL of its own: no code of the project is trusted to count."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from tests.lab.products import INITIAL

QUESTION = """
SELECT product.on_hand + (SELECT coalesce(sum(units), 0) FROM lab_stocksegment WHERE product_id = product.id)
                       + (SELECT count(*) FROM lab_stockunit WHERE product_id = product.id),
       (SELECT coalesce(sum(quantity), 0) FROM lab_orderitem WHERE product_id = product.id),
       (SELECT count(*) FROM lab_order WHERE id IN
         (SELECT order_id FROM lab_orderitem WHERE product_id = product.id))
  FROM lab_product AS product WHERE sku = %s
"""


@dataclass(frozen=True)
class Totals:
    """One product's stock and orders."""

    initial: int
    left: int
    sold: int
    orders: int

    @property
    def oversold(self) -> int:
        """Units that were sold and never were there."""
        return max(0, self.sold - self.initial)

    @property
    def unaccounted(self) -> int:
        """Units that the stock doesn't know the fate of; 0 in an honest shop."""
        return self.initial - self.sold - self.left

    @property
    def balanced(self) -> bool:
        """Whether orders and stock tell the same story, with nothing below zero."""
        return self.unaccounted == 0 and self.left >= 0


def totals_of(sku: str) -> Totals:
    """Return the totals of `sku` as committed."""
    with connection.cursor() as cursor:
        cursor.execute(QUESTION, [sku])
        return Totals(INITIAL[sku], *cursor.fetchone())
