"""Buyers who come at the same moment, each in a thread with a connection of its own."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from django.db import connections

from inventory import Line, SoldOut
from orders.selling.checkout import checkout


def served_at_once(buyers: int, sku: str, strategy: str) -> int:
    """Let each of `buyers` want one unit at once; return how many have got it, the others were refused."""
    start = threading.Barrier(buyers)

    def buy(_: int) -> bool:
        try:
            start.wait(60)
            checkout([Line(sku, 1)], strategy)
        except SoldOut:
            return False
        else:
            return True
        finally:
            connections.close_all()

    with ThreadPoolExecutor(buyers) as pool:
        return sum(pool.map(buy, range(buyers)))
