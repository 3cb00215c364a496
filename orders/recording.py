"""Writing orders: the rows of one sale, or of many, in a single statement.

A round trip while a stock row is locked is what a hot product's buyers wait for, so order, items, movements
and the client's key go together. PostgreSQL runs it as one: all of it, or none.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db import connection
from django.utils import timezone

from inventory.domain import LimitReached, Line
from inventory.models import Product
from orders.models import Order

CREATED: Final = 201

_ORDERS = """
WITH wanted AS (
    SELECT * FROM unnest(%s::uuid[], %s::numeric[], %s::text[], %s::text[], %s::timestamptz[],
                         %s::timestamptz[]) AS t(id, total, strategy, customer, pay_by, created_at)),
given AS (
    SELECT * FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[])
        AS t(id, scope, key, fingerprint, body)),
kept AS (
    INSERT INTO orders_idempotencykey (scope, key, fingerprint, status, body, order_id, created_at)
    SELECT scope, key, fingerprint, 201, body::jsonb, id, now() FROM given
    ON CONFLICT (scope, key) DO NOTHING RETURNING order_id),
fresh AS (
    SELECT id FROM wanted WHERE id NOT IN (SELECT id FROM given) OR id IN (SELECT order_id FROM kept)),
placed AS (
    INSERT INTO orders_order (id, state, total, strategy, customer, pay_by, created_at)
    SELECT id, 'placed', total, strategy, customer, pay_by, created_at FROM wanted JOIN fresh USING (id)),
line AS (
    SELECT t.* FROM unnest(%s::uuid[], %s::bigint[], %s::text[], %s::int[], %s::numeric[])
        AS t(id, product_id, sku, quantity, unit_price) JOIN fresh USING (id)),
item AS (
    INSERT INTO orders_orderitem (order_id, product_id, quantity, unit_price)
    SELECT id, product_id, quantity, unit_price FROM line),
moved AS (
    INSERT INTO inventory_stockmovement (product_id, kind, quantity, cause, created_at)
    SELECT product_id, 'sold', -quantity, 'order:' || id || ':' || sku, now() FROM line)
SELECT id FROM fresh
"""

# Every customer's units are counted, of products without a limit too: one may be set later.
_PURCHASE = """
INSERT INTO inventory_customerpurchase AS had (customer, product_id, units)
SELECT %(customer)s, product, units
  FROM unnest(%(products)s::bigint[], %(units)s::int[], %(limits)s::int[]) AS t(product, units, most)
 WHERE units <= most ORDER BY product
ON CONFLICT (customer, product_id) DO UPDATE SET units = had.units + excluded.units
 WHERE had.units + excluded.units <=
       (%(limits)s::int[])[array_position(%(products)s::bigint[], excluded.product_id)]
RETURNING product_id
"""

_BOUGHT = "SELECT units FROM inventory_customerpurchase WHERE customer = %s AND product_id = %s"
_UNDO_PURCHASE = (
    "UPDATE inventory_customerpurchase SET units = units - %s WHERE customer = %s AND product_id = %s"
)
_NO_LIMIT = 2**31 - 1


class RepeatedKey(Exception):
    """The client's key has an answer already: nothing was written, that answer counts.

    Args:
        scope, key: which key.
    """

    def __init__(self, scope: str, key: str) -> None:
        self.scope, self.key = scope, key
        super().__init__(f"the idempotency key {key!r} was used before")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with both arguments."""
        return RepeatedKey, (self.scope, self.key)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The key under which a client may repeat its request.

    Attributes:
        scope: whose keys these are. key: as the client chose it. fingerprint: of the request's content.
    """

    scope: str
    key: str
    fingerprint: str


@dataclass(slots=True)
class Receipt:
    """One order to be. Its id comes first: however often a strategy tries, one order comes of it."""

    cart: tuple[Line, ...]
    strategy: str
    customer: str = ""
    pay_by: datetime | None = None
    key: ClientKey | None = None
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    created_at: datetime = field(default_factory=timezone.now)
    total: Decimal | None = None
    body: dict[str, Any] = field(default_factory=dict)
    watched: tuple[int, ...] = ()

    def price(self, products: Mapping[str, Product]) -> None:
        """Compute what the order costs, and the answer to its client, from the products' prices."""
        bought = [products[line.sku] for line in self.cart]
        self.watched = tuple(p.pk for p in bought if p.low_stock_threshold is not None)
        self.total = sum((products[line.sku].price * line.quantity for line in self.cart), Decimal(0))
        self.body = {
            "id": str(self.id),
            "state": Order.State.PLACED.value,
            "total": str(self.total),
            "strategy": self.strategy,
            "customer": self.customer,
            "created_at": self.created_at.isoformat(),
            "pay_by": self.pay_by.isoformat() if self.pay_by else None,
            "lines": [
                {"sku": line.sku, "quantity": line.quantity, "unit_price": str(products[line.sku].price)}
                for line in self.cart
            ],
        }

    @property
    def order(self) -> Order:
        """The order as it was written."""
        if self.total is None:
            raise RuntimeError(f"the strategy {self.strategy!r} returned without recording the sale")
        order = Order(
            id=self.id,
            total=self.total,
            strategy=self.strategy,
            customer=self.customer,
            pay_by=self.pay_by,
            created_at=self.created_at,
        )
        order._state.adding = False
        return order


def write_many(receipts: Sequence[Receipt], products: Mapping[str, Product]) -> dict[uuid.UUID, Exception]:
    """Write the orders of `receipts` in the current transaction; see `Sale.record_many`.

    Args:
        receipts: of the orders; a strategy that tries again in a new transaction calls it again.
        products: all that they name, by SKU, as read in this transaction.

    Returns:
        What was not written, by the receipt's id: LimitReached, or RepeatedKey.
    """
    refused: dict[uuid.UUID, Exception] = {}
    for receipt in receipts:
        receipt.price(products)
        if error := _take_limits(receipt, products):
            refused[receipt.id] = error
    wanted = [receipt for receipt in receipts if receipt.id not in refused]
    written = _insert(wanted, products) if wanted else set()
    for receipt in wanted:
        if receipt.id not in written:
            assert receipt.key is not None
            return_purchases(receipt.customer, _units(receipt, products))
            refused[receipt.id] = RepeatedKey(receipt.key.scope, receipt.key.key)
    return refused


def _insert(receipts: Sequence[Receipt], products: Mapping[str, Product]) -> set[uuid.UUID]:
    """Run the one statement and return the ids of the orders that were written."""
    orders = [(r.id, r.total, r.strategy, r.customer, r.pay_by, r.created_at) for r in receipts]
    keys = [(r.id, r.key.scope, r.key.key, r.key.fingerprint, json.dumps(r.body)) for r in receipts if r.key]
    lines = [
        (r.id, products[line.sku].pk, line.sku, line.quantity, products[line.sku].price)
        for r in receipts
        for line in r.cart
    ]
    with connection.cursor() as cursor:
        cursor.execute(_ORDERS, [*_columns(orders, 6), *_columns(keys, 5), *_columns(lines, 5)])
        return {row[0] for row in cursor.fetchall()}


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [[row[i] for row in rows] for i in range(width)]


# What one customer may have ---------------------------------------------------------------------------------


def _units(receipt: Receipt, products: Mapping[str, Product]) -> list[tuple[Product, int]]:
    pairs = [(products[line.sku], line.quantity) for line in receipt.cart]
    return sorted(pairs, key=lambda pair: pair[0].pk)


def _take_limits(receipt: Receipt, products: Mapping[str, Product]) -> LimitReached | None:
    """Count the order's units for its customer, in the transaction that sells them; all or nothing."""
    units = _units(receipt, products)
    if not receipt.customer:  # nobody in particular can't be told from anybody else
        limited = [(product, n) for product, n in units if product.customer_limit is not None]
        return _limit_reached("", *limited[0]) if limited else None
    counted = _count(receipt.customer, units)
    refused = [pair for pair in units if pair[0].pk not in counted]
    if not refused:
        return None
    return_purchases(receipt.customer, [pair for pair in units if pair[0].pk in counted])
    return _limit_reached(receipt.customer, *refused[0])


def _count(customer: str, units: Sequence[tuple[Product, int]]) -> set[int]:
    """Count units for a customer where the limit allows it; return the keys of the products that were."""
    limits = [product.customer_limit for product, _ in units]
    values: dict[str, Any] = {
        "customer": customer,
        "products": [product.pk for product, _ in units],
        "units": [quantity for _, quantity in units],
        "limits": [_NO_LIMIT if limit is None else limit for limit in limits],
    }
    with connection.cursor() as cursor:
        cursor.execute(_PURCHASE, values)
        return {row[0] for row in cursor.fetchall()}


def _limit_reached(customer: str, product: Product, quantity: int) -> LimitReached:
    return LimitReached(product.sku, product.customer_limit or 0, _bought(customer, product), quantity)


def _bought(customer: str, product: Product) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_BOUGHT, [customer, product.pk])
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def return_purchases(customer: str, units: Sequence[tuple[Product, int]]) -> None:
    """Take `units` off what the customer has, in the current transaction; nobody in particular has none."""
    if not customer:
        return
    with connection.cursor() as cursor:
        for product, quantity in units:
            cursor.execute(_UNDO_PURCHASE, [quantity, customer, product.pk])
