"""How long a group commit takes by its size: the transaction of `combined`, on one connection.

All orders of a hot product go through such commits, one after the other. So an order's share of a commit
bounds what one row can sell, whichever machines ask for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.checkout.testbed import Testbed
from inventory import Line, Stock, stock
from inventory.group_commit import Ticket
from inventory.ledger import Kind, Wanted
from inventory.strategies.base import Sale
from orders.selling.checkout import _write
from orders.selling.writing import Receipt
from tests.load.delivery import deliver

STOCK = 1_000_000
WARM_UP = 10  # commits, after which the connection knows the statement


def measure(testbed: Testbed, size: int, seconds: float) -> dict[str, Any]:
    """Commit batches of orders of a fresh product; return the speed, and how far totals are from exact.

    Args:
        testbed: with the shop's database; Django of this process must be set up on the same.
        size: orders per commit.
        seconds: how long to repeat it.
    """
    sku = f"batch-{secrets.token_hex(4)}"
    deliver(testbed.database, {sku: STOCK})
    times = [_commit(sku, size) for _ in range(WARM_UP)]
    ends = perf_counter() + seconds
    times += list(_until(ends, sku, size))
    totals = testbed.totals([sku])
    return {
        "answers_per_second": size / median(times[WARM_UP:]),
        "statuses": {"201": size * len(times)},
        "unanswered": 0,
        "oversold": max(0, totals.sold - STOCK) + max(0, -totals.lowest),
        "unaccounted": abs(STOCK - totals.sold - totals.left),
        "lost": abs(size * len(times) - totals.orders),
        "failed": 0,
    }


def _until(ends: float, sku: str, size: int) -> Iterator[float]:
    yield _commit(sku, size)
    while perf_counter() < ends:
        yield _commit(sku, size)


def _commit(sku: str, size: int) -> float:
    tickets = [ticket(sku) for _ in range(size)]
    begun = perf_counter()
    Stock("combined").strategy.sell_batch(tickets)  # type: ignore[attr-defined]
    return perf_counter() - begun


def ticket(sku: str) -> Ticket:
    """Return one buyer's place in a batch."""
    receipt = Receipt((Line(sku, 1),), "combined", pay_within=900.0)
    wanted = Wanted(receipt.cause, Kind.SELL, receipt.cart)
    return Ticket(Sale(stock, wanted, write_many=_write, data=receipt))
