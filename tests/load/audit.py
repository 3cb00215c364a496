"""The auditor: joins the buyers' journals with SQL of its own, and believes neither the shop nor its ORM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import psycopg

from tests.load.journal import Story

# Kinds of entries: 1 received, 9 adjusted, 10 counted. States: 0 outside, 1 available, 2 reserved.
_STOCK = """
SELECT item.sku, level.available + level.reserved, level.reserved,
       coalesce((SELECT sum(m.quantity) FROM inventory_movement m
                   JOIN inventory_reservation r ON r.entry_id = m.entry_id AND r.state = 'live'
                  WHERE m.level_id = level.id), 0),
       coalesce((SELECT sum(m.quantity * (CASE m.source WHEN 0 THEN 1 ELSE -1 END)) FROM inventory_movement m
                   JOIN inventory_entry e ON e.id = m.entry_id AND e.kind IN (1, 9, 10)
                  WHERE m.level_id = level.id AND 0 IN (m.source, m.target)), 0),
       coalesce((SELECT sum(m.quantity * ((m.target IN (1, 2))::int - (m.source IN (1, 2))::int))
                   FROM inventory_movement m WHERE m.level_id = level.id), 0),
       coalesce((SELECT sum(i.quantity) FROM orders_orderitem i JOIN orders_order o ON o.id = i.order_id
                   JOIN orders_product p ON p.id = i.product_id
                  WHERE p.sku = item.sku AND o.state NOT IN ('cancelled', 'expired')), 0)
  FROM inventory_item item JOIN inventory_level level ON level.item_id = item.id
 WHERE item.sku = ANY(%s)
"""
_ORDERS = """
SELECT i.order_id::text, p.sku, sum(i.quantity)
  FROM orders_orderitem i JOIN orders_product p ON p.id = i.product_id
 WHERE i.order_id IN (SELECT j.order_id FROM orders_orderitem j
                        JOIN orders_product q ON q.id = j.product_id WHERE q.sku = ANY(%s))
 GROUP BY 1, 2
"""

Basket = frozenset[tuple[str, int]]


@dataclass(frozen=True)
class Stock:
    """One product's rows.

    Attributes:
        on_hand: that aren't sold, and reserved, as the level says.
        promised: in live reservations.
        received: ever. moved: what the ledger says is on hand. sold: in valid orders.
    """

    sku: str
    on_hand: int
    reserved: int
    promised: int
    received: int
    moved: int
    sold: int


@dataclass(frozen=True)
class Rows:
    """What the database says, read in one snapshot."""

    stocks: tuple[Stock, ...]
    orders: Mapping[str, Basket]


@dataclass
class Verdict:
    """How far from exact, each in units or orders, and sentences that say what.

    Attributes:
        oversold: units sold beyond what was received, or stock below zero.
        undersold: units left though the closing buyers wanted them all.
        lost: acknowledged orders that aren't there, or have other lines than were asked for.
        duplicated: orders without a request, or one key that was given two.
        leaked: units that are neither on hand nor sold, or that the ledger doesn't have.
    """

    oversold: int = 0
    undersold: int = 0
    lost: int = 0
    duplicated: int = 0
    leaked: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Nothing is wrong."""
        return not any((self.oversold, self.undersold, self.lost, self.duplicated, self.leaked))

    def as_dict(self) -> dict[str, object]:
        """Return it for JSON."""
        return asdict(self) | {"exact": self.exact}

    def blame(self, kind: str, amount: int, sentence: str) -> None:
        """Add a fault."""
        setattr(self, kind, getattr(self, kind) + amount)
        self.details.append(f"{kind}: {sentence}")


def read_rows(database: psycopg.Connection, skus: Sequence[str]) -> Rows:
    """Read everything about these products in one snapshot."""
    with database.transaction():
        database.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        stocks = tuple(
            Stock(sku, *map(int, numbers)) for sku, *numbers in database.execute(_STOCK, [list(skus)])
        )
        orders: dict[str, set[tuple[str, int]]] = {}
        for order, sku, units in database.execute(_ORDERS, [list(skus)]):
            orders.setdefault(order, set()).add((sku, int(units)))
    return Rows(stocks, {order: frozenset(basket) for order, basket in orders.items()})


def judge(rows: Rows, story: Story, *, closed: bool) -> Verdict:
    """Compare the rows with one another and with what the buyers heard.

    Args:
        rows: from `read_rows`.
        story: from all journals.
        closed: the closing buyers have asked for every unit that was left.

    Returns:
        All zeros, or what is wrong.
    """
    verdict = Verdict()
    for stock in rows.stocks:
        _judge_stock(verdict, stock, closed)
    _judge_answered(verdict, rows.orders, story)
    _judge_unanswered(verdict, rows.orders, story)
    return verdict


def _judge_stock(verdict: Verdict, stock: Stock, closed: bool) -> None:
    beyond = max(0, stock.sold - stock.received) + max(0, -stock.on_hand)
    if beyond:
        verdict.blame(
            "oversold", beyond, f"{stock.sku}: {stock.sold} sold of {stock.received}, {stock.on_hand} left"
        )
    gone = stock.received - stock.sold - stock.on_hand
    if gone > 0:
        verdict.blame("leaked", gone, f"{stock.sku}: {gone} of {stock.received} neither sold nor on hand")
    if gone < 0 and not beyond:
        verdict.blame("oversold", -gone, f"{stock.sku}: {-gone} both sold and still on hand")
    if stock.moved != stock.on_hand:
        verdict.blame(
            "leaked", abs(stock.moved - stock.on_hand), f"{stock.sku}: the ledger says {stock.moved} on hand"
        )
    if stock.reserved != stock.promised:
        astray = abs(stock.reserved - stock.promised)
        verdict.blame("leaked", astray, f"{stock.sku}: {stock.reserved} reserved, {stock.promised} promised")
    left = stock.on_hand - stock.reserved
    if closed and left > 0:
        verdict.blame("undersold", left, f"{stock.sku}: {left} left, and buyers refused")


def _judge_answered(verdict: Verdict, orders: Mapping[str, Basket], story: Story) -> None:
    owners = Counter(order for answered in story.orders.values() for order in answered)
    for key, answered in story.orders.items():
        for order in answered:
            if orders.get(order) != frozenset(story.baskets[key].items()):
                found = sorted(orders[order]) if order in orders else "nothing"
                verdict.blame("lost", 1, f"{key} was given {order}, which has {found}")
            if owners[order] > 1:
                verdict.blame("duplicated", 1, f"{key} was given {order}, and so was another")
        if len(answered) > 1:
            verdict.blame("duplicated", len(answered) - 1, f"{key} was given {len(answered)} orders")


def _judge_unanswered(verdict: Verdict, orders: Mapping[str, Basket], story: Story) -> None:
    """Each order that no answer named must be one that a buyer asked for without getting an answer."""
    answered = {order for ids in story.orders.values() for order in ids}
    unanswered = Counter(basket for order, basket in orders.items() if order not in answered)
    waiting = Counter(frozenset(story.baskets[key].items()) for key in story.unknown)
    for basket, number in (unanswered - waiting).items():
        verdict.blame("duplicated", number, f"{number} orders of {sorted(basket)} without a buyer")


def total(verdicts: Iterable[Verdict]) -> Verdict:
    """Add verdicts up."""
    whole = Verdict()
    for verdict in verdicts:
        for kind in ("oversold", "undersold", "lost", "duplicated", "leaked"):
            setattr(whole, kind, getattr(whole, kind) + getattr(verdict, kind))
        whole.details += verdict.details
    return whole
