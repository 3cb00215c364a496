"""Invariants of orders, asked by SQL of its own: no code of the shop is trusted to count.

The audit of `inventory` compares balances with the ledger; this compares orders with the ledger, by the cause
of each sale. It goes through the orders in portions, each in a snapshot of its own, so that it may run while
the shop sells. Archived entries of the ledger aren't read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models.functions import Now

from orders.models import Order

PORTION: Final = 5000
"""Orders of one snapshot."""

# Kinds of entries: 2 sold, 6 shipped, 7 cancelled, 8 restocked, 9 adjusted. State 3 is committed.
_LEDGER = """
SELECT sale.order_id, item.sku, sum(quantity) FILTER (WHERE entry.id = sale.id) AS sold,
       coalesce(sum(quantity) FILTER (WHERE entry.kind = 6), 0) AS shipped,
       coalesce(sum(quantity) FILTER (WHERE entry.kind = 8), 0) AS returned,
       coalesce(sum(quantity) FILTER (WHERE entry.kind IN (7, 9)), 0) AS cancelled
  FROM (SELECT id, substr(cause, 7)::uuid AS order_id FROM inventory_entry
         WHERE cause IN (SELECT 'order:' || id FROM unnest(%(orders)s::uuid[]) AS id)) AS sale
  JOIN inventory_entry AS entry ON entry.id = sale.id OR entry.of_id = sale.id
  JOIN inventory_movement AS movement ON movement.entry_id = entry.id
  JOIN inventory_level AS level ON level.id = movement.level_id
  JOIN inventory_item AS item ON item.id = level.item_id
 GROUP BY sale.order_id, item.sku
"""
_ITEMS = """
SELECT item.order_id, sku, quantity AS sold, shipped, returned, cancelled
  FROM orders_orderitem AS item JOIN orders_product AS product ON product.id = item.product_id
 WHERE item.order_id = ANY(%(orders)s)
   AND (SELECT created_at FROM orders_order WHERE id = item.order_id) >
       (SELECT created_at FROM inventory_entry WHERE kind <> 13 ORDER BY id LIMIT 1)
"""


def _counted(what: str) -> str:
    return f"""
        SELECT coalesce(i.order_id, l.order_id)::text || ':' || coalesce(i.sku, l.sku),
               coalesce(i.{what}, 0), coalesce(l.{what}, 0)
          FROM ({_ITEMS}) AS i FULL JOIN ({_LEDGER}) AS l ON l.order_id = i.order_id AND l.sku = i.sku
         WHERE coalesce(i.{what}, 0) <> coalesce(l.{what}, 0)"""  # noqa: S608


INVARIANTS: Final[dict[str, str]] = {
    **{
        f"{what}_units_are_in_the_ledger": _counted(what)
        for what in ("sold", "shipped", "returned", "cancelled")
    },
    "shipments_are_shipped_items": """
        SELECT i.order_id::text || ':' || i.product_id, i.shipped, coalesce(sum(s.quantity), 0)
          FROM orders_orderitem i LEFT JOIN orders_shipment s ON s.item_id = i.id
         WHERE i.order_id = ANY(%(orders)s) GROUP BY i.id HAVING i.shipped <> coalesce(sum(s.quantity), 0)""",
    "purchases_are_order_items": """
        SELECT coalesce(had.customer, c.customer) || ':' || coalesce(had.product_id, c.product_id),
               coalesce(had.units, 0), coalesce(c.units, 0)
          FROM (SELECT o.customer, i.product_id, sum(i.quantity - i.cancelled - i.returned) AS units
                  FROM orders_order o JOIN orders_orderitem i ON i.order_id = o.id
                 WHERE o.customer = ANY(%(customers)s) GROUP BY 1, 2) AS had
          FULL JOIN (SELECT * FROM orders_customerpurchase WHERE customer = ANY(%(customers)s)) AS c
            ON c.customer = had.customer AND c.product_id = had.product_id
         WHERE coalesce(had.units, 0) <> coalesce(c.units, 0)""",
    "totals_are_the_sum_of_items": """
        SELECT o.id::text, coalesce(sum(i.quantity * i.unit_price), 0), o.total
          FROM orders_order o LEFT JOIN orders_orderitem i ON i.order_id = o.id WHERE o.id = ANY(%(orders)s)
         GROUP BY o.id HAVING coalesce(sum(i.quantity * i.unit_price), 0) <> o.total OR count(i.id) = 0""",
    "states_are_those_of_the_items": """
        SELECT o.id::text, i.state, o.state FROM orders_order o JOIN (
               SELECT order_id,
                      CASE WHEN sum(quantity - shipped - cancelled) > 0
                           THEN CASE WHEN sum(shipped) = 0 THEN 'paid' ELSE 'partly_shipped' END
                           WHEN sum(shipped) = 0 THEN 'cancelled'
                           WHEN sum(shipped) = sum(returned) THEN 'returned' ELSE 'shipped' END AS state
                 FROM orders_orderitem WHERE order_id = ANY(%(orders)s) GROUP BY order_id) AS i
            ON i.order_id = o.id
         WHERE i.state <> CASE o.state WHEN 'placed' THEN 'paid' WHEN 'expired' THEN 'cancelled'
                                       ELSE o.state END""",
    "refunds_were_paid_before": """
        SELECT o.id::text, CASE WHEN o.paid_at IS NULL THEN 0 ELSE o.total END, sum(r.amount)
          FROM orders_order o JOIN orders_refund r ON r.order_id = o.id WHERE o.id = ANY(%(orders)s)
         GROUP BY o.id HAVING sum(r.amount) > CASE WHEN o.paid_at IS NULL THEN 0 ELSE o.total END""",
    "keys_lead_to_their_orders": """
        SELECT k.scope || ':' || k.key, k.body ->> 'id', k.order_id::text FROM orders_idempotencykey k
         WHERE k.order_id = ANY(%(orders)s) AND (k.status <> 201 OR k.body ->> 'id' <> k.order_id::text)""",
    # Events are forgotten after a while, the oldest of an order first: one with its first event has them all.
    "changes_of_orders_were_published": """
        SELECT o.id::text, o.state, string_agg(e.kind, ', ' ORDER BY e.id)
          FROM orders_order o JOIN orders_orderevent e ON e.order_id = o.id WHERE o.id = ANY(%(orders)s)
         GROUP BY o.id HAVING bool_or(e.kind = 'placed') AND NOT bool_or(e.kind = ANY(CASE o.state
             WHEN 'cancelled' THEN ARRAY['cancelled', 'units_cancelled']
             WHEN 'partly_shipped' THEN ARRAY['shipped'] ELSE ARRAY[o.state] END))""",
}
"""By name: a query of the rows that break the invariant, as (what, expected, found)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that breaks an invariant: `what` it is, what was `expected`, what was `found`."""

    invariant: str
    what: str
    expected: str
    found: str


def audit(within: timedelta | None = None) -> list[Difference]:
    """Return every row that breaks an invariant; an empty list when all hold.

    Args:
        within: look at orders that were placed in so much time up to now; None: at all.
    """
    found: dict[Difference, None] = {}
    for portion in _portions(within):
        found |= dict.fromkeys(_differences(portion))
    return list(found)


def counts(differences: Sequence[Difference]) -> dict[str, int]:
    """Return the number of broken rows of each invariant."""
    return {name: sum(each.invariant == name for each in differences) for name in INVARIANTS}


def _portions(within: timedelta | None) -> Iterator[list[tuple[UUID, str]]]:
    """Yield keys and customers of the orders, the oldest first."""
    orders: Any = Order.objects.order_by("created_at", "pk")
    if within is not None:
        orders = orders.filter(created_at__gte=Now() - within)
    rows = orders.values_list("created_at", "pk", "customer")
    page = list(rows[:PORTION])
    while page:
        yield [(pk, customer) for _, pk, customer in page]
        last, pk, _ = page[-1]
        after = rows.filter(created_at__gte=last).exclude(created_at=last, pk__lte=pk)
        page = list(after[:PORTION])


def _differences(portion: list[tuple[UUID, str]]) -> Iterator[Difference]:
    values: dict[str, Any] = {
        "orders": [pk for pk, _ in portion],
        "customers": sorted({customer for _, customer in portion if customer}),
    }
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for invariant, query in INVARIANTS.items():
            cursor.execute(query, values)
            for row in cursor.fetchall():
                yield Difference(invariant, *map(str, row))
