"""What the database says after a race, in SQL that shares nothing with the code under test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal

from django.db import connection

from orders.lab.race.messages import Outcome

_LEFT = """p.on_hand + coalesce((SELECT sum(s.units) FROM lab_stocksegment s WHERE s.product_id = p.id), 0)
       + (SELECT count(*) FROM lab_stockunit u WHERE u.product_id = p.id)"""
_SOLD = "coalesce((SELECT sum(i.quantity) FROM lab_orderitem i WHERE i.product_id = p.id), 0)"
_ORDERS = "(SELECT i.order_id FROM lab_orderitem i WHERE i.product_id = p.id)"
_TOTALS = f"""
SELECT {_LEFT}, p.price, {_SOLD},
       coalesce((SELECT sum(o.total) FROM lab_order o WHERE o.id IN {_ORDERS}), 0),
       ARRAY(SELECT DISTINCT o.id::text FROM lab_order o WHERE o.id IN {_ORDERS})
  FROM lab_product p WHERE p.sku = %s
"""  # noqa: S608 - only the texts above
_SAMPLE = f"SELECT {_LEFT}, {_SOLD} FROM lab_product p WHERE p.sku = %s"  # noqa: S608

SAMPLE_EVERY = 0.01


@dataclass(frozen=True)
class Totals:
    """One product's rows, summed up."""

    left: int
    price: Decimal
    sold: int
    takings: Decimal
    orders: frozenset[str]


@dataclass(frozen=True)
class Sample:
    """One look while the race runs: the stock as the page shows it, and the pieces in orders."""

    at: float
    left: int
    sold: int


def read_totals(sku: str) -> Totals:
    """Sum up the rows of one product, all in one statement, so in one snapshot."""
    with connection.cursor() as cursor:
        cursor.execute(_TOTALS, [sku])
        left, price, sold, takings, orders = cursor.fetchone()
    return Totals(int(left), price, int(sold), takings, frozenset(orders))


def disagreements(totals: Totals, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Compare the rows with one another and with the answers to the buyers."""
    answered = {outcome.order for outcome in outcomes if outcome.order}
    checks = (
        (
            totals.takings == totals.sold * totals.price,
            f"the orders' totals are {totals.takings} for {totals.sold} pieces",
        ),
        (answered <= totals.orders, f"{len(answered - totals.orders)} acknowledged orders aren't there"),
        (
            totals.orders <= answered,
            f"{len(totals.orders - answered)} orders are there that no answer named",
        ),
    )
    return tuple(sentence for holds, sentence in checks if not holds)


@contextmanager
def sampled(sku: str, wanted: bool) -> Iterator[list[Sample]]:
    """Look at a product every 10 ms from a connection of its own while the block runs, if that is wanted."""
    samples = [look(sku)] if wanted else []  # before any buyer buys, however late the thread begins
    over = threading.Event()
    thread = threading.Thread(target=_sample, args=(sku, samples, over), daemon=True)
    if wanted:
        thread.start()
    try:
        yield samples
    finally:
        over.set()
        if wanted:
            thread.join()


def look(sku: str) -> Sample:
    """See what is committed by now: the stock that the page shows, and the pieces in orders."""
    with connection.cursor() as cursor:
        cursor.execute(_SAMPLE, [sku])
        left, sold = cursor.fetchone()
    return Sample(time.monotonic(), int(left), int(sold))


def _sample(sku: str, samples: list[Sample], over: threading.Event) -> None:
    try:
        while True:
            last = over.is_set()
            samples.append(look(sku))
            if last:
                break
            over.wait(SAMPLE_EVERY)
    finally:
        connection.close()
