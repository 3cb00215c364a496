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

from inventory.domain import Line
from inventory.limits import count_units, uncount_units
from inventory.models import Product
from inventory.rows import in_key_order
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
        if error := count_units(receipt.customer, in_key_order(receipt.cart, products)):
            refused[receipt.id] = error
    wanted = [receipt for receipt in receipts if receipt.id not in refused]
    written = _insert(wanted, products) if wanted else set()
    for receipt in wanted:
        if receipt.id not in written:
            assert receipt.key is not None
            uncount_units(receipt.customer, in_key_order(receipt.cart, products))
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
