"""The lab's own checkout over HTTP, under each sound lesson: many buyers at once, then the rows are added up.

The shop is served once; each request names its lesson.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.load.shop import Shop
from tests.load.wire import Wire

UNITS, BUYERS, AT_ONCE = 20, 60, 8
PATIENCE = 60.0
"""Seconds in which a buyer who hears *busy* asks again."""

ENVIRONMENT = {"LAB_CHECKOUT": "true"}


def names() -> list[str]:
    """Return the lessons that are sound in several processes and whose servers are here."""
    from orders.lab.strategies import STRATEGIES

    return [
        name
        for name, strategy in STRATEGIES.items()
        if strategy.sound and strategy.sound_across_processes and strategy.unavailable() is None
    ]


def try_out(name: str, shop: Shop) -> dict[str, Any]:
    """Let buyers ask for three times as much as there is; compare their answers with the rows."""
    from orders.lab.race.lab_products import race_in_progress, stock_up_cart

    with race_in_progress() as race:
        skus = [product.sku for product in stock_up_cart(race, 1, name, UNITS)]
        begun = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as crowd:
            answers = list(crowd.map(lambda _: _buy(shop, name, skus), range(BUYERS)))
        seconds = time.monotonic() - begun
        details = [sentence for sku in skus for sentence in judge(sku, answers)]
    answered = Counter(status for status, _ in answers)
    return {
        "name": name,
        "sold": answered[201],
        "refused": answered[409],
        "seconds": seconds,
        "details": details,
    }


def _buy(shop: Shop, name: str, skus: list[str]) -> tuple[int, str]:
    """Ask for one unit of each until the answer is final; return its status, and the order."""
    deadline = time.monotonic() + PATIENCE
    with Wire(shop.address, PATIENCE) as wire:
        request = wire.post("/lab/checkout/", {"strategy": name, "cart": dict.fromkeys(skus, 1)})
        while True:
            reply = wire.ask(request)
            if reply.status != 503 or time.monotonic() > deadline:
                return reply.status, reply.json()["order"] if reply.status == 201 else ""
            time.sleep(0.05)  # asks again, as a buyer does


def judge(sku: str, answers: list[tuple[int, str]]) -> list[str]:
    """Return what is wrong with the rows of a product, in sentences."""
    from orders.lab.race.audit import read_totals

    totals = read_totals(sku)
    answered = {order for _, order in answers if order}
    wrong = []
    if (totals.sold, totals.left) != (UNITS, 0):
        wrong.append(f"{sku}: {totals.sold} sold and {totals.left} left of {UNITS}")
    if totals.orders != answered:
        wrong.append(f"{sku}: {len(totals.orders)} orders, and buyers heard of {len(answered)}")
    if others := sorted({status for status, _ in answers} - {201, 409}):
        wrong.append(f"{sku}: answers with status {others}")
    return wrong
