"""Writing orders: prices are read and the rows of many sales written by one statement.

What a hot product's buyers wait for is each round trip while its level is locked. So order, items, event, the
customers' counts and the client's key go together, for one sale or for a batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final, overload

from django.db import connection

from inventory import Line
from inventory.statements import prepared_cursor
from orders.models import Order
from orders.selling.catalog import anonymous_over_limit, priced
from orders.selling.limits import refuse_beyond_limit
from orders.selling.refusals import PriceChanged, RepeatedKey

CREATED: Final = 201

_MOMENT = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""

# Rows come as JSON: one parameter each however many they are. The database dates and numbers an order: it
# decides whether it is overdue. An order that can't be written as wanted is left out, and explained later.
# Steps that a batch doesn't need aren't in its statement: the server pays for each, though it has no rows.
_WRITE = f"""
WITH wanted AS (
    SELECT *, created_at + pay_within * interval '1 second' AS pay_by
      FROM json_to_recordset(%%s::json) AS t(id uuid, strategy text, customer text, scope text,
               pay_within double precision, promised boolean, expected numeric, expected_currency text,
               key_scope text, key text, fingerprint text), statement_timestamp() AS created_at),
line AS (
    SELECT wish.id, customer, promised, wish.sku, quantity, product.*
      FROM json_to_recordset(%%s::json) AS wish(id uuid, sku text, quantity int) JOIN wanted USING (id)
      LEFT JOIN LATERAL (
           SELECT id AS product_id, name, price, currency, active, customer_limit
             FROM orders_product WHERE sku = wish.sku LIMIT 1) AS product ON true),
priced AS (
    SELECT id, nextval('orders_order_number') AS number, sum(price * quantity) AS total,
           min(currency) AS currency,
           json_agg(json_build_object(
               'sku', sku, 'name', name, 'quantity', quantity, 'unit_price', price::text, 'shipped', 0)
               ORDER BY sku COLLATE "C") AS lines
      FROM line GROUP BY id
    HAVING coalesce(bool_and((active OR promised) AND (customer_limit IS NULL OR customer <> '')), false)
       AND count(product_id) = count(*) AND min(currency) = max(currency)),
good AS (
    SELECT wanted.*, number, total, currency, json_build_object(
               'id', id, 'number', number::text, 'state', 'placed', 'total', total::text,
               'currency', currency, 'strategy', strategy, 'customer', customer,
               'created_at', {_MOMENT.format("created_at")},
               'pay_by', {_MOMENT.format("pay_by")}, 'lines', lines) AS body
      FROM wanted JOIN priced USING (id)
     WHERE coalesce(expected, total) = total AND coalesce(expected_currency, currency) = currency),
%(keys)splaced AS (
    INSERT INTO orders_order (id, number, state, total, currency, strategy, customer, scope, pay_by,
                              created_at)
    SELECT id, number, 'placed', total, currency, strategy, customer, scope, pay_by, created_at FROM fresh),
event AS (
    INSERT INTO orders_orderevent (order_id, kind, data, created_at, due_at)
    SELECT id, 'placed', '{{}}', created_at, created_at FROM fresh),
%(customers)sitem AS (
    INSERT INTO orders_orderitem (order_id, product_id, name, quantity, unit_price)
    SELECT id, product_id, name, quantity, price FROM line WHERE id IN (SELECT id FROM fresh))
SELECT id::text, body::text FROM fresh UNION ALL SELECT NULL, (%(limits)s)::text
"""  # noqa: S608

_KEYS = f"""kept AS (
    INSERT INTO orders_idempotencykey (scope, key, fingerprint, status, body, order_id, created_at)
    SELECT key_scope, key, fingerprint, {CREATED}, body::jsonb, id, created_at FROM good WHERE key IS NOT NULL
    ON CONFLICT (scope, key) DO NOTHING RETURNING order_id),
fresh AS (SELECT * FROM good WHERE key IS NULL OR id IN (SELECT order_id FROM kept)),
"""  # noqa: S608
_NO_KEYS = "fresh AS (SELECT * FROM good),\n"

_CUSTOMERS = """bought AS (
    INSERT INTO orders_customerpurchase AS had (customer, product_id, units)
    SELECT customer, product_id, sum(quantity) FROM line
     WHERE customer <> '' AND id IN (SELECT id FROM fresh) GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (customer, product_id) DO UPDATE SET units = had.units + excluded.units
    RETURNING customer, product_id, units),
"""

_LIMITS = """
       (SELECT json_agg(json_build_array(customer, product_id, sku, units, customer_limit))
          FROM bought JOIN orders_product ON orders_product.id = product_id WHERE customer_limit IS NOT NULL)
"""


@cache
def _statement(keys: bool, customers: bool) -> str:
    """Return the statement for a batch in which some orders have a key, or a customer."""
    return _WRITE % {
        "keys": _KEYS if keys else _NO_KEYS,
        "customers": _CUSTOMERS if customers else "",
        "limits": _LIMITS if customers else "NULL",
    }


@dataclass(frozen=True, slots=True)
class ClientKey:
    """The key under which a client may repeat its request.

    Attributes, named as the columns of `IdempotencyKey`:
        scope: whose keys these are. key: as the client chose it. fingerprint: of the request's content.
    """

    scope: str
    key: str
    fingerprint: str


@dataclass(slots=True)
class Receipt:
    """One order to be. Its id comes first: however often a sale is tried, one order comes of it.

    Attributes:
        pay_within: seconds after which it expires unpaid; None: never.
        scope: the authenticated caller whose order it is; empty: any caller that knows its id.
        expected: what it must cost; an empty currency is any. None: whatever it costs now.
        promised: its units were reserved, so they are sold though the product isn't for sale any more.
        name: the id as text. text: the answer to the client, JSON of the database, once it is written.
    """

    cart: tuple[Line, ...]
    strategy: str
    customer: str = ""
    pay_within: float | None = None
    key: ClientKey | None = None
    scope: str = ""
    expected: tuple[Decimal, str] | None = None
    promised: bool = False
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    name: str = field(init=False)
    text: str = ""

    def __post_init__(self) -> None:
        self.name = str(self.id)

    @property
    def cause(self) -> str:
        """The cause of its sale in the ledger of the stock."""
        return sale_of(self.name)

    @property
    def body(self) -> Any:
        """The answer to the client, once the order is written."""
        return json.loads(self.text)

    @property
    def order(self) -> Order:
        """The order as it is now."""
        return Order.objects.get(pk=self.id)


def sale_of(order_id: uuid.UUID | str) -> str:
    """Return the cause of an order's sale in the ledger of the stock."""
    return f"order:{order_id}"


@overload
def moment(date: datetime) -> str: ...
@overload
def moment(date: datetime | None) -> str | None: ...
def moment(date: datetime | None) -> str | None:
    """Return a date as answers have it: in UTC, always with microseconds."""
    return None if date is None else date.astimezone(UTC).isoformat(timespec="microseconds")


def write_orders(receipts: Sequence[Receipt]) -> None:
    """Write orders in the current transaction, all or none.

    Raises:
        UnknownSku, NotForSale, MixedCurrencies, LimitReached, PriceChanged: one of them can't be.
        RepeatedKey: one's key has its answer already. The transaction must be rolled back after any of them.
    """
    keys, customers = {each.key for each in receipts}, {each.customer for each in receipts}
    statement = _statement(keys != {None}, customers != {""})
    with prepared_cursor(connection.alias) as cursor:
        cursor.execute(statement, [json.dumps(_orders(receipts)), json.dumps(_lines(receipts))])
        texts = dict(cursor.fetchall())
    limited = json.loads(texts.pop(None) or "[]")  # of the whole batch, in a row of its own
    for receipt in receipts:
        if receipt.name not in texts:
            raise _why_not(receipt)
        receipt.text = texts[receipt.name]
    for customer, product_id, sku, units, limit in limited:
        requested = sum(
            line.quantity
            for each in receipts
            for line in each.cart
            if (each.customer, line.sku) == (customer, sku)
        )
        refuse_beyond_limit(customer, product_id, sku, limit, bought=units - requested, requested=requested)


def _orders(receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    rows = []
    for each in receipts:
        row = {
            "id": each.name,
            "strategy": each.strategy,
            "customer": each.customer,
            "scope": each.scope,
            "pay_within": each.pay_within,
            "promised": each.promised,
        }
        if each.expected:
            row |= {"expected": str(each.expected[0]), "expected_currency": each.expected[1] or None}
        if each.key:
            row |= {"key_scope": each.key.scope, "key": each.key.key, "fingerprint": each.key.fingerprint}
        rows.append(row)
    return rows


def _lines(receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    return [
        {"id": each.name, "sku": line.sku, "quantity": line.quantity}
        for each in receipts
        for line in each.cart
    ]


def _why_not(receipt: Receipt) -> Exception:
    """Return why an order was not written; the catalog is asked again, in the same transaction."""
    try:
        bill = priced(receipt.cart, promised=receipt.promised)
    except Exception as refused:
        return refused
    if refusal := anonymous_over_limit(receipt.customer, bill):
        return refusal
    if receipt.expected and receipt.expected[0] != bill.total:
        return PriceChanged(receipt.expected, (bill.total, bill.currency))
    if receipt.expected and receipt.expected[1] not in ("", bill.currency):
        return PriceChanged(receipt.expected, (bill.total, bill.currency))
    assert receipt.key is not None, f"order {receipt.id} was left out for no reason"
    return RepeatedKey(receipt.key.scope, receipt.key.key)
