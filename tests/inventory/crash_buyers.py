"""Eight buyers without end: `python -m tests.inventory.crash_buyers SKU [asynchronous]`.

They say each order's id when the shop has acknowledged it, and stop when the database is gone. With
`asynchronous` no commit waits for the disk: that is the shop that the test must find out.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor


def main(sku: str, asynchronous: str = "") -> None:
    """Buy until the database is gone."""
    import django
    from django.conf import settings

    if asynchronous:
        settings.DATABASES["default"].setdefault("OPTIONS", {})["options"] = "-c synchronous_commit=off"
    django.setup()

    from django.db import DatabaseError, InterfaceError

    from inventory.domain import Line
    from orders.services import checkout

    def buy(_: int) -> None:
        while True:
            try:
                order = checkout([Line(sku, 1)], "async_reserve")
            except (DatabaseError, InterfaceError):
                return
            sys.stdout.write(f"{order.pk}\n")
            sys.stdout.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(buy, range(8)))


if __name__ == "__main__":
    main(*sys.argv[1:])
