"""Writing orders: the rows of one sale, or of many, in a single statement.

A round trip while a stock row is locked is what a hot product's buyers wait for, so order, items, movements,
the event and the client's key go together. PostgreSQL runs it as one: all of it, or none.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, Final, overload

from django.db import Error

from inventory.checkpoints import checkpoint
from inventory.domain import Line, PickledWhole
from inventory.limits import Units, count_units, over_limit, uncount_units
from inventory.models import Product
from inventory.progress import SaleProgress, refused_by_server
from inventory.rows import in_key_order, mixed_currencies, refuse
from inventory.statements import prepared_cursor
from orders.models import Order

CREATED: Final = 201

# The rows come as JSON: one parameter each however many they are, and read by the server, not by Python.
# An order is dated by the database, which also decides whether it is overdue. `_MOMENT` writes a date into
# the kept answer as `moment` writes it into the first one.
_MOMENT = """to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""

_WANTED = """
wanted AS (
    SELECT *, created_at + pay_within * interval '1 second' AS pay_by
      FROM json_to_recordset(%s) AS t(id uuid, total numeric, currency text, strategy text,
                                      customer text, scope text, pay_within double precision),
           statement_timestamp() AS created_at),
given AS (
    SELECT * FROM json_to_recordset(%s) AS t(id uuid, scope text, key text, fingerprint text, body jsonb)),
wish AS (
    SELECT * FROM json_to_recordset(%s) AS t(id uuid, product_id bigint, sku text, name text, quantity int,
                                             unit_price numeric, most int))"""

_WRITTEN = f"""
kept AS (
    INSERT INTO orders_idempotencykey (scope, key, fingerprint, status, body, order_id, created_at)
    SELECT given.scope, key, fingerprint, 201,
           body || jsonb_build_object('created_at', {_MOMENT.format("created_at")},
                                      'pay_by', {_MOMENT.format("pay_by")}),
           id, created_at FROM given JOIN wanted USING (id)
    ON CONFLICT (scope, key) DO NOTHING RETURNING order_id),
fresh AS (
    SELECT * FROM wanted WHERE id NOT IN (SELECT id FROM given) OR id IN (SELECT order_id FROM kept)),
placed AS (
    INSERT INTO orders_order (id, state, total, currency, strategy, customer, scope, pay_by, created_at)
    SELECT id, 'placed', total, currency, strategy, customer, scope, pay_by, created_at FROM fresh),
event AS (
    INSERT INTO orders_orderevent (order_id, kind, data, created_at, due_at)
    SELECT id, 'placed', '{{}}', created_at, created_at FROM fresh),
line AS (SELECT wish.*, created_at FROM wish JOIN fresh USING (id)),
item AS (
    INSERT INTO orders_orderitem (order_id, product_id, name, quantity, unit_price)
    SELECT id, product_id, name, quantity, unit_price FROM line),
moved AS (
    INSERT INTO inventory_stockmovement (product_id, kind, quantity, cause, created_at)
    SELECT product_id, 'sold', -quantity, 'order:' || id || ':' || sku, created_at FROM line)"""  # noqa: S608

_ORDERS = f"WITH {_WANTED}, {_WRITTEN} SELECT id, created_at FROM fresh"  # noqa: S608

# Rows are locked in primary-key order before one is changed. `lock_timeout` ends with this statement: it is
# a transaction of its own. If a product has too little by now, costs something else, has got a limit, or is
# not for sale any more, the guard divides by zero: an error is the only way for a statement to undo what it
# has written.
_SALE = f"""
WITH {_WANTED}, {_WRITTEN},
taken AS (
    SELECT product_id, sum(quantity)::int AS units, min(unit_price) AS price, min(currency) AS currency
      FROM wish JOIN wanted USING (id) GROUP BY 1),
locked AS MATERIALIZED (
    SELECT id FROM inventory_product
     WHERE id IN (SELECT product_id FROM taken) AND (SELECT set_config('lock_timeout', %s, true)) IS NOT NULL
     ORDER BY id FOR NO KEY UPDATE),
stock AS (
    UPDATE inventory_product AS product SET on_hand = on_hand - units, version = version + 1
      FROM taken JOIN locked ON locked.id = product_id
     WHERE product.id = locked.id AND on_hand - reserved + backorder_limit >= units
       AND product.price = taken.price AND product.currency = taken.currency
       AND customer_limit IS NULL AND active
    RETURNING product.id),
bought AS (
    INSERT INTO inventory_customerpurchase AS had (customer, product_id, units)
    SELECT customer, product_id, sum(quantity) FROM wish JOIN wanted USING (id)
     WHERE customer <> '' GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (customer, product_id) DO UPDATE SET units = had.units + excluded.units)
SELECT 1 / ((SELECT count(*) FROM stock) = (SELECT count(*) FROM taken)
            AND (SELECT count(*) FROM fresh) = (SELECT count(*) FROM wanted))::int, statement_timestamp()
"""  # noqa: S608

# Part of a transaction that has read the products. What it returns says what it could not do, and in that
# order it is done: units, the customer's counter, the order. The rows of a cart are locked by primary key.
_ENOUGH = "on_hand - reserved + backorder_limit >= quantity"
_TAKE = f"""
WITH {_WANTED}, {_WRITTEN},
locked AS MATERIALIZED (
    SELECT product.id FROM inventory_product AS product JOIN wish ON wish.product_id = product.id
     ORDER BY product.id FOR NO KEY UPDATE OF product),
stock AS (
    UPDATE inventory_product AS product SET on_hand = on_hand - quantity, version = version + 1
      FROM wish JOIN locked ON locked.id = product_id WHERE product.id = locked.id AND {_ENOUGH}
    RETURNING product.id)"""  # noqa: S608
_TAKE_AND_WRITE = f"{_TAKE} SELECT ARRAY(SELECT id FROM stock), NULL, (SELECT created_at FROM fresh)"  # noqa: S608
_TAKE_COUNT_AND_WRITE = f"""{_TAKE},
bought AS (
    INSERT INTO inventory_customerpurchase AS had (customer, product_id, units)
    SELECT customer, product_id, quantity FROM wish JOIN wanted USING (id)
     WHERE most IS NULL OR quantity <= most ORDER BY product_id
    ON CONFLICT (customer, product_id) DO UPDATE SET units = had.units + excluded.units
     WHERE had.units + had.reserved + excluded.units <=
           (SELECT coalesce(most, {2**31 - 1}) FROM wish WHERE product_id = excluded.product_id)
    RETURNING product_id)
SELECT ARRAY(SELECT id FROM stock), ARRAY(SELECT product_id FROM bought), (SELECT created_at FROM fresh)
"""  # noqa: S608


class RepeatedKey(PickledWhole):
    """The client's key has an answer already: nothing was written, that answer counts.

    Args:
        scope, key: which key.
    """

    def __init__(self, scope: str, key: str) -> None:
        self.scope, self.key = scope, key
        super().__init__(f"the idempotency key {key!r} was used before")


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
    """One order to be. Its id comes first: however often a strategy tries, one order comes of it.

    Attributes:
        pay_within: seconds after which it expires unpaid; None: never.
        scope: the authenticated caller whose order it is; empty: anybody's who knows its id.
        created_at, pay_by: by the database's clock, once the order is written.
    """

    cart: tuple[Line, ...]
    strategy: str
    customer: str = ""
    pay_within: float | None = None
    key: ClientKey | None = None
    scope: str = ""
    state: ClassVar[str] = Order.State.PLACED.value
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    created_at: datetime | None = None
    total: Decimal | None = None
    currency: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    watched: tuple[int, ...] = ()
    progress: SaleProgress = field(default_factory=SaleProgress)

    def price(self, products: Mapping[str, Product]) -> None:
        """Compute what the order costs, and the answer to its client, but for its dates."""
        bought = [products[line.sku] for line in self.cart]
        self.watched = tuple(p.pk for p in bought if p.low_stock_threshold is not None)
        self.currency = bought[0].currency
        self.total = sum((products[line.sku].price * line.quantity for line in self.cart), Decimal(0))
        lines: list[dict[str, Any]] = [
            {
                "sku": line.sku,
                "name": products[line.sku].name,
                "quantity": line.quantity,
                "unit_price": str(products[line.sku].price),
                "shipped": 0,
            }
            for line in self.cart
        ]
        self.body = order_body(self, lines)

    def date(self, created_at: datetime) -> None:
        """Note when the database wrote the order."""
        self.created_at = created_at
        self.body["created_at"] = moment(created_at)
        self.body["pay_by"] = moment(self.pay_by)

    @property
    def pay_by(self) -> datetime | None:
        """When it expires unpaid."""
        if self.created_at is None or self.pay_within is None:
            return None
        return self.created_at + timedelta(seconds=self.pay_within)

    @property
    def order(self) -> Order:
        """The order as it was written."""
        if self.total is None or self.created_at is None:
            raise RuntimeError(f"the strategy {self.strategy!r} returned without recording the sale")
        order = Order(
            id=self.id,
            total=self.total,
            currency=self.currency,
            strategy=self.strategy,
            customer=self.customer,
            scope=self.scope,
            pay_by=self.pay_by,
            created_at=self.created_at,
        )
        order._state.adding = False
        return order


@overload
def moment(date: datetime) -> str: ...
@overload
def moment(date: datetime | None) -> str | None: ...
def moment(date: datetime | None) -> str | None:
    """Return a date as answers have it: in UTC, always with microseconds."""
    return None if date is None else date.astimezone(UTC).isoformat(timespec="microseconds")


def order_body(order: Order | Receipt, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the answer to an order's client; a receipt has no dates before it is written."""
    return {
        "id": str(order.id),
        "state": order.state,
        "total": str(order.total),
        "currency": order.currency,
        "strategy": order.strategy,
        "customer": order.customer,
        "created_at": moment(order.created_at),
        "pay_by": moment(order.pay_by),
        "lines": lines,
    }


def write_many(receipts: Sequence[Receipt], products: Mapping[str, Product]) -> dict[uuid.UUID, Exception]:
    """Write the orders of `receipts` in the current transaction; see `Sale.record_many`.

    Args:
        receipts: of the orders; a strategy that tries again in a new transaction calls it again.
        products: all that they name, by SKU, as read in this transaction.

    Returns:
        What was not written, by the receipt's id: MixedCurrencies, LimitReached, or RepeatedKey.
    """
    refused: dict[uuid.UUID, Exception] = {}
    for receipt in receipts:
        receipt.progress.restart()  # a try before this one was rolled back
        receipt.price(products)
        # A reservation may have been made when its prices were in one currency.
        mixed = mixed_currencies(receipt.cart, products)
        if error := mixed or count_units(receipt.customer, in_key_order(receipt.cart, products)):
            refused[receipt.id] = error
    wanted = [receipt for receipt in receipts if receipt.id not in refused]
    written = _insert(wanted, products) if wanted else {}
    for receipt in wanted:
        if receipt.id in written:
            receipt.date(written[receipt.id])
            receipt.progress.write()
        else:
            uncount_units(receipt.customer, in_key_order(receipt.cart, products))
            refused[receipt.id] = _repeated(receipt)
    return refused


def take_and_write(receipt: Receipt, products: Mapping[str, Product]) -> None:
    """Take the units of one order and write it: one statement in the current transaction.

    Args:
        receipt: of the order; a strategy that tries again in a new transaction calls it again.
        products: all that it names, by SKU, as read in this transaction.

    Raises:
        SoldOut, Busy: there are fewer units than the strategy had read: its lock did not hold.
        LimitReached: the customer may not have so many. RepeatedKey: the key has its answer already.
            The transaction must be rolled back after any of them.
    """
    receipt.progress.restart()  # a try before this one was rolled back
    receipt.price(products)
    units = in_key_order(receipt.cart, products)
    with prepared_cursor() as cursor:
        statement = _TAKE_COUNT_AND_WRITE if receipt.customer else _TAKE_AND_WRITE
        cursor.execute(statement, _rows([receipt], products))
        taken, counted, created_at = cursor.fetchone()
    _refuse_missing(receipt, units, taken)
    if error := over_limit(receipt.customer, units, counted or ()):
        raise error
    if created_at is None:
        raise _repeated(receipt)
    receipt.date(created_at)
    receipt.progress.write()


def _refuse_missing(receipt: Receipt, units: Units, taken: Sequence[int]) -> None:
    """Refuse the order when the second line of defense, `_ENOUGH`, kept a product's units."""
    if len(taken) == len(units):
        return
    missing = [product.sku for product, _ in units if product.pk not in taken]
    checkpoint("second_line", sku=missing[0])
    refuse(receipt.cart, taken=[pair for pair in units if pair[0].pk in taken])


def _repeated(receipt: Receipt) -> RepeatedKey:
    assert receipt.key is not None, "only a key keeps an order from being written"
    return RepeatedKey(receipt.key.scope, receipt.key.key)


def sell_many(receipts: Sequence[Receipt], products: Mapping[str, Product], wait: float) -> None:
    """Take the units of `receipts` and write the orders: one statement, which is its own transaction.

    Args:
        receipts: of the orders.
        products: all that they name, by SKU, as read a moment ago; their prices are the orders'.
        wait: seconds to wait for a product's row.

    Raises:
        IntegrityError, DataError: something isn't as it was read, or one of the orders can't be; nothing was
            sold to anybody. OperationalError: the rows stayed locked, or nobody knows what was sold.
    """
    for receipt in receipts:
        receipt.price(products)
    values = [*_rows(receipts, products), f"{max(1, round(wait * 1000))}ms"]
    with prepared_cursor() as cursor, _committing(receipts):
        cursor.execute(_SALE, values)
        _, created_at = cursor.fetchone()
    for receipt in receipts:
        receipt.date(created_at)


@contextmanager
def _committing(receipts: Sequence[Receipt]) -> Iterator[None]:
    """Note for each receipt that the block commits it, and what became of that."""
    for receipt in receipts:
        receipt.progress.written = True  # from here on the commit may be made, whether it is answered or not
    try:
        yield
    except Error as error:
        if refused_by_server(error):
            for receipt in receipts:
                receipt.progress.restart()
        raise
    for receipt in receipts:
        receipt.progress.commit()


def _insert(receipts: Sequence[Receipt], products: Mapping[str, Product]) -> dict[uuid.UUID, datetime]:
    """Write the orders; return by id when each of those was written whose key was new."""
    with prepared_cursor() as cursor:
        cursor.execute(_ORDERS, _rows(receipts, products))
        return dict(cursor.fetchall())


def _rows(receipts: Sequence[Receipt], products: Mapping[str, Product]) -> list[str]:
    """Return orders, keys and lines of priced receipts as the statements take them."""
    keys = [
        {
            "id": r.body["id"],
            "scope": r.key.scope,
            "key": r.key.key,
            "fingerprint": r.key.fingerprint,
            "body": r.body,
        }
        for r in receipts
        if r.key
    ]
    orders = [
        {
            "id": r.body["id"],
            "total": r.total,
            "currency": r.currency,
            "strategy": r.strategy,
            "customer": r.customer,
            "scope": r.scope,
            "pay_within": r.pay_within,
        }
        for r in receipts
    ]
    lines = [
        {
            "id": r.body["id"],
            "product_id": products[line.sku].pk,
            "sku": line.sku,
            "name": products[line.sku].name,
            "quantity": line.quantity,
            "unit_price": products[line.sku].price,
            "most": products[line.sku].customer_limit,
        }
        for r in receipts
        for line in r.cart
    ]
    return [json.dumps(rows, default=str) for rows in (orders, keys, lines)]
