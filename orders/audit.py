"""Invariants of the stock, asked by SQL of its own: no code of the shop is trusted to count.

Every invariant is a query that returns the rows that break it, as (what, expected, found). All of them look
at one snapshot, so an audit may run while the shop sells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db import connection, transaction

_LEVEL = """
SELECT p.id, p.sku, p.on_hand, p.reserved, -p.backorder_limit AS least,
       p.on_hand + coalesce((SELECT sum(units) FROM inventory_stocksegment WHERE product_id = p.id), 0)
                 + coalesce((SELECT sum(quantity) FROM inventory_stockclaim WHERE product_id = p.id), 0)
                 + (SELECT count(*) FROM inventory_stockunit WHERE product_id = p.id)
       AS units,
       coalesce((SELECT sum(quantity) FROM inventory_stockmovement WHERE product_id = p.id), 0) AS moved,
       coalesce((SELECT -sum(quantity) FROM inventory_stockmovement
                  WHERE product_id = p.id AND kind = 'sold'), 0) AS sold,
       coalesce((SELECT sum(quantity) FROM inventory_stockmovement
                  WHERE product_id = p.id AND kind = 'restocked'
                    AND cause ~ '^(restock|returned):[0-9a-f-]{36}:'), 0) AS restocked,
       coalesce((SELECT sum(shipped) FROM inventory_stockmovement
                  WHERE product_id = p.id AND kind <> 'sold'), 0) AS outside,
       coalesce((SELECT sum(shipped - returned + released) FROM orders_orderitem
                  WHERE product_id = p.id), 0) AS sent,
       coalesce((SELECT sum(quantity) FROM inventory_stockmovement
                  WHERE product_id = p.id AND kind <> 'sold' AND cause LIKE 'stocktake:%%'), 0) AS fixed,
       coalesce((SELECT sum(counted - expected) FROM inventory_stocktake
                  WHERE product_id = p.id), 0) AS missed,
       coalesce((SELECT sum(quantity) FROM orders_orderitem WHERE product_id = p.id), 0) AS bought,
       coalesce((SELECT sum(returned) FROM orders_orderitem WHERE product_id = p.id), 0) AS returned,
       coalesce((SELECT sum(quantity) FROM inventory_stockreservation
                  WHERE product_id = p.id AND state = 'live'), 0) AS promised
  FROM inventory_product p
"""
_COUNTED = """
SELECT coalesce(c.customer, had.customer) AS customer, p.id, p.sku,
       coalesce(had.bought, 0) AS bought, coalesce(c.units, 0) AS counted,
       coalesce(had.promised, 0) AS promised, coalesce(c.reserved, 0) AS reserved
  FROM inventory_customerpurchase c
  FULL JOIN (SELECT customer, product_id, sum(bought) AS bought, sum(promised) AS promised FROM (
               SELECT o.customer, i.product_id, i.quantity - i.returned AS bought, 0 AS promised
                 FROM orders_order o JOIN orders_orderitem i ON i.order_id = o.id
                UNION ALL
               SELECT customer, product_id, 0, quantity FROM inventory_stockreservation
                WHERE state = 'live') AS each
              WHERE customer <> '' GROUP BY customer, product_id) AS had
         ON had.customer = c.customer AND had.product_id = c.product_id
  JOIN inventory_product p ON p.id = coalesce(c.product_id, had.product_id)
"""


def _levels(expected: str, found: str) -> str:
    return f"SELECT sku, {expected}, {found} FROM ({_LEVEL}) AS level WHERE {expected} <> {found}"  # noqa: S608


INVARIANTS: Final[dict[str, str]] = {
    # What came in, less what was sold, give or take corrections, is what is there.
    "stock_is_the_sum_of_movements": _levels("moved", "units"),
    "sold_movements_are_order_items": _levels("bought", "sold"),
    "restocked_movements_are_returned_items": _levels("returned", "restocked"),
    # What left the building, less what came back. With the invariants above, a physical count finds
    # what is for sale and what is sold and not shipped.
    "shipped_movements_are_shipped_items": _levels("sent", "outside"),
    "shipments_are_shipped_items": """
        SELECT i.order_id::text || ':' || i.product_id, i.shipped, coalesce(sum(s.quantity), 0)
          FROM orders_orderitem i LEFT JOIN orders_shipment s ON s.item_id = i.id
         GROUP BY i.id HAVING i.shipped <> coalesce(sum(s.quantity), 0)""",
    "levels_are_the_sum_of_movements": """
        SELECT p.sku || ' at ' || w.code, coalesce(sum(m.units), 0), coalesce(l.units, 0)
          FROM (SELECT product_id, location_id,
                       sum(CASE WHEN kind IN ('received', 'adjusted') THEN quantity ELSE 0 END
                           - shipped) AS units
                  FROM inventory_stockmovement WHERE location_id IS NOT NULL GROUP BY 1, 2) AS m
          FULL JOIN inventory_stocklevel l ON l.product_id = m.product_id AND l.location_id = m.location_id
          JOIN inventory_product p ON p.id = coalesce(m.product_id, l.product_id)
          JOIN inventory_stocklocation w ON w.id = coalesce(m.location_id, l.location_id)
         GROUP BY p.sku, w.code, l.units
        HAVING coalesce(sum(m.units), 0) <> coalesce(l.units, 0)""",
    "levels_are_in_the_building": """
        SELECT p.sku, coalesce(l.units, 0), m.units
          FROM (SELECT product_id,
                       sum(CASE WHEN kind IN ('received', 'adjusted') THEN quantity ELSE 0 END
                           - shipped) AS units
                  FROM inventory_stockmovement WHERE kind <> 'sold' GROUP BY 1) AS m
          LEFT JOIN (SELECT product_id, sum(units) AS units
                       FROM inventory_stocklevel GROUP BY 1) AS l USING (product_id)
          JOIN inventory_product p ON p.id = product_id
         WHERE m.units < coalesce(l.units, 0)""",
    "stocktakes_are_in_the_ledger": _levels("missed", "fixed"),
    "reserved_is_the_sum_of_live_reservations": _levels("promised", "reserved"),
    "stock_is_not_negative": f"SELECT sku, least, on_hand FROM ({_LEVEL}) AS level WHERE on_hand < least",  # noqa: S608
    "purchases_are_order_items": f"""
        SELECT customer || ':' || sku, bought, counted FROM ({_COUNTED}) AS c WHERE bought <> counted""",  # noqa: S608
    "customers_reserved_is_the_sum_of_live_reservations": f"""
        SELECT customer || ':' || sku, promised, reserved FROM ({_COUNTED}) AS c
         WHERE promised <> reserved""",  # noqa: S608
    "totals_are_the_sum_of_items": """
        SELECT o.id::text, coalesce(sum(i.quantity * i.unit_price), 0), o.total
          FROM orders_order o LEFT JOIN orders_orderitem i ON i.order_id = o.id
         GROUP BY o.id HAVING coalesce(sum(i.quantity * i.unit_price), 0) <> o.total OR count(i.id) = 0""",
    "ended_orders_gave_everything_back": """
        SELECT o.id::text, sum(i.quantity), sum(i.returned)
          FROM orders_order o JOIN orders_orderitem i ON i.order_id = o.id
         WHERE o.state IN ('cancelled', 'expired') GROUP BY o.id HAVING sum(i.quantity) <> sum(i.returned)""",
    "states_are_those_of_the_items": """
        SELECT o.id::text, i.state, o.state FROM orders_order o JOIN (
               SELECT order_id,
                      CASE WHEN sum(shipped) = 0 THEN 'paid'
                           WHEN sum(shipped) < sum(quantity) THEN 'partly_shipped'
                           WHEN sum(returned) < sum(quantity) THEN 'shipped' ELSE 'returned' END AS state
                 FROM orders_orderitem GROUP BY order_id) AS i ON i.order_id = o.id
         WHERE o.state NOT IN ('cancelled', 'expired')
           AND i.state <> CASE o.state WHEN 'placed' THEN 'paid' ELSE o.state END""",
    "keys_lead_to_their_orders": """
        SELECT k.scope || ':' || k.key, coalesce(k.body ->> 'id', k.body ->> 'reservation'), leads_to::text
          FROM orders_idempotencykey k,
               LATERAL (SELECT coalesce(
                   (SELECT id FROM orders_order WHERE id = k.order_id),
                   (SELECT basket FROM inventory_stockreservation WHERE basket = k.basket LIMIT 1))
               AS leads_to) AS made
         WHERE (k.status = 201) <> (leads_to IS NOT NULL)
            OR (k.status = 201 AND coalesce(k.body ->> 'id', k.body ->> 'reservation') <> leads_to::text)""",
    # Events are forgotten after a while, the oldest of an order first: one with its first event has them all.
    "changes_of_orders_were_published": """
        SELECT o.id::text, o.state, string_agg(e.kind, ', ' ORDER BY e.id)
          FROM orders_order o JOIN orders_orderevent e ON e.order_id = o.id
         GROUP BY o.id HAVING bool_or(e.kind = 'placed')
            AND NOT bool_or(e.kind = CASE o.state WHEN 'partly_shipped' THEN 'shipped' ELSE o.state END)""",
}
"""By name: a query of the rows that break the invariant."""

REPAIRABLE: Final = (
    "stock_is_the_sum_of_movements",
    "reserved_is_the_sum_of_live_reservations",
    "purchases_are_order_items",
    "customers_reserved_is_the_sum_of_live_reservations",
)
"""What a repair can fix without guessing: the others say that rows are missing or invented."""

_REPAIRS = (
    f"""
    INSERT INTO inventory_stockmovement (product_id, kind, quantity, cause, created_at)
    SELECT id, 'adjusted', units - moved,
           'audit:' || to_char(moment, 'YYYY-MM-DD"T"HH24:MI:SS.US') || ':' || sku, moment
      FROM ({_LEVEL}) AS level, statement_timestamp() AS moment WHERE units <> moved""",  # noqa: S608
    f"""
    UPDATE inventory_product AS product SET reserved = promised, version = version + 1
      FROM ({_LEVEL}) AS level WHERE level.id = product.id AND product.reserved <> promised""",  # noqa: S608
    f"""
    INSERT INTO inventory_customerpurchase (customer, product_id, units, reserved)
    SELECT customer, id, bought, promised FROM ({_COUNTED}) AS c
     WHERE bought <> counted OR promised <> reserved
    ON CONFLICT (customer, product_id) DO UPDATE
       SET units = excluded.units, reserved = excluded.reserved""",  # noqa: S608
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that breaks an invariant: `what` it is, what was `expected`, what was `found`."""

    invariant: str
    what: str
    expected: str
    found: str


def audit() -> list[Difference]:
    """Return every row that breaks an invariant, as of one moment; an empty list when all hold."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return _differences()


def counts(differences: Sequence[Difference]) -> dict[str, int]:
    """Return the number of broken rows of each invariant."""
    return {
        invariant: sum(difference.invariant == invariant for difference in differences)
        for invariant in INVARIANTS
    }


def repair() -> int:
    """Repair what can be repaired by rows that say so, in one transaction; returns how many rows that took.

    The stock that is there is believed, and the ledger gets an `adjusted` movement; reserved units and the
    customers' counts follow the rows that they sum up. Sales wait meanwhile.
    """
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        # Nobody may sell between the look and the repair.
        cursor.execute("LOCK TABLE inventory_product IN EXCLUSIVE MODE")
        changed = 0
        for statement in _REPAIRS:
            cursor.execute(statement)
            changed += cursor.rowcount
        return changed


def _differences() -> list[Difference]:
    found: list[Difference] = []
    with connection.cursor() as cursor:
        for invariant, query in INVARIANTS.items():
            cursor.execute(query, [])
            found += [Difference(invariant, *map(str, row)) for row in cursor.fetchall()]
    return found
