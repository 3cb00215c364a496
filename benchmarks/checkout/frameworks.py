"""`python -m benchmarks.checkout.frameworks`: POST /checkout/ read by hand, and through django-ninja.

One shop serves all addresses with the strategy `combined`; in each round all are asked in a random order.
*read* has django-ninja read the request, *typed* has it validate and write the answer as well.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.checkout.rounds import BUYERS
from benchmarks.checkout.subjects import Subject
from benchmarks.checkout.testbed import open_servers, open_testbed
from benchmarks.console import open_console

HAND, READ, TYPED = "by hand", "django-ninja, read", "django-ninja, typed"
SUBJECTS = (
    Subject(HAND, "/checkout/"),
    Subject(READ, "/checkout/read/"),
    Subject(TYPED, "/checkout/typed/"),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print ratios to the view by hand, medians over the rounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkout.frameworks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    options = parser.parse_args(arguments)
    console = open_console()
    runs: dict[str, list[dict[str, Any]]] = {subject.name: [] for subject in SUBJECTS}
    with open_servers() as servers, open_testbed(servers, 2, 16, CHECKOUT_STRATEGY="combined") as testbed:
        for subject in SUBJECTS:
            testbed.run(subject, buyers=BUYERS, seconds=1)
        for number in range(options.rounds):
            for subject in random.sample(SUBJECTS, len(SUBJECTS)):
                figures = testbed.run(subject, buyers=BUYERS, seconds=options.seconds)
                runs[subject.name].append(figures)
                console.print(
                    f"round {number + 1}  {subject.name:<20} {figures['sold_per_second']:>6.0f}/s"
                    f"  web {figures['web_cpu_us']:.0f} µs  load {os.getloadavg()[0]:.1f}"
                )
    table = Table("POST /checkout/, combined", "orders/s", "× by hand", "web µs per order", "× by hand")
    for name, own in runs.items():
        cells = []
        for figure in ("sold_per_second", "web_cpu_us"):
            ratios = [run[figure] / base[figure] for run, base in zip(own, runs[HAND], strict=True)]
            cells += [f"{median(run[figure] for run in own):.0f}", f"{median(ratios):.2f}"]
        table.add_row(name, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
