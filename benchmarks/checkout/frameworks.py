"""`python -m benchmarks.checkout.frameworks`: POST /checkout/ read by hand, and through django-ninja.

One shop serves all addresses with the strategy `combined`; in each round all are asked in a random order.
*read* has django-ninja read the request, *typed* has it validate and write the answer as well. `--alone`
takes the processor time of one thread instead, without a sale: what is left is the interface.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

from rich.console import Console
from rich.table import Table

from benchmarks.checkout import steps
from benchmarks.checkout.rounds import BUYERS
from benchmarks.checkout.subjects import Subject
from benchmarks.checkout.testbed import SETTINGS, open_servers, open_testbed
from benchmarks.console import open_console
from config.serve import SERVED
from tests.load.shop import PRODUCTION

HAND, READ, TYPED = "by hand", "django-ninja, read", "django-ninja, typed"
SUBJECTS = (
    Subject(HAND, "/checkout/"),
    Subject(READ, "/checkout/read/"),
    Subject(TYPED, "/checkout/typed/"),
)
ORDERED = {
    "id": str(UUID(int=7)),
    "state": "placed",
    "total": "5.00",
    "currency": "EUR",
    "strategy": "combined",
    "customer": "",
    "created_at": "2026-01-01T00:00:00+00:00",
    "pay_by": None,
    "lines": [{"sku": "steps", "name": "Steps", "quantity": 1, "unit_price": "5.00", "shipped": 0}],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print ratios to the view by hand, medians over the rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkout.frameworks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--alone", action="store_true", help="one thread, without a sale")
    options = parser.parse_args(arguments)
    console = open_console()
    with open_servers() as servers:
        if options.alone:
            os.environ.update(PRODUCTION | SERVED | SETTINGS | servers.environment)
            _alone(console)
            return
        with open_testbed(servers, 2, 16, CHECKOUT_STRATEGY="combined") as testbed:
            runs: dict[str, list[dict[str, Any]]] = {subject.name: [] for subject in SUBJECTS}
            for number in range(-1, options.rounds):  # the first warms up
                for subject in random.sample(SUBJECTS, len(SUBJECTS)):
                    figures = testbed.run(subject, buyers=BUYERS, seconds=options.seconds)
                    if number >= 0:
                        runs[subject.name].append(figures)
    table = Table("POST /checkout/, combined", "orders/s", "× by hand", "web µs per order", "× by hand")
    for name, own in runs.items():
        cells = []
        for figure in ("sold_per_second", "web_cpu_us"):
            ratios = [run[figure] / base[figure] for run, base in zip(own, runs[HAND], strict=True)]
            cells += [f"{median(run[figure] for run in own):.0f}", f"{median(ratios):.2f}"]
        table.add_row(name, *cells)
    console.print(table)


def _alone(console: Console, orders: int = 4000) -> None:
    from config.wsgi import application

    table = Table("POST /checkout/, without the sale", "µs of one thread", "more than by hand")
    receipt = SimpleNamespace(id=UUID(int=7), body=ORDERED)
    times: dict[str, list[float]] = {subject.name: [] for subject in SUBJECTS}
    with mock.patch("orders.http.operations.place", return_value=receipt):
        for _ in range(orders):
            for subject in SUBJECTS:
                begun = time.thread_time_ns()
                steps.order(application, subject.path)
                times[subject.name].append((time.thread_time_ns() - begun) / 1000)
    for name, own in times.items():
        table.add_row(name, f"{median(own):.0f}", f"{median(own) - median(times[HAND]):.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
