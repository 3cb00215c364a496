"""`python -m benchmarks.checkout.web_servers`: the shop under each installed web server, side by side.

All are up at the same time on the same PostgreSQL and Redis, with two processes of sixteen threads (gevent:
of coroutines; waitress, which has one process: 32 threads). In each round each is asked, in random order, by
32 buyers: an empty view behind all middleware, and for orders of one product by `combined`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.checkout.subjects import EMPTY, VIEWS, Subject
from benchmarks.checkout.testbed import Testbed, open_servers, open_testbed
from benchmarks.figures import Table
from config.serve import server
from config.server import HOST
from tests.load.shop import Command

APPLICATION: Final = "config.wsgi:application"
BUYERS, SECONDS = 32, 1.5
COMBINED: Final = Subject("combined", "/checkout/", "combined")
SUBJECTS: Final = (next(view for view in VIEWS if view.name == EMPTY), COMBINED)


def gunicorn(port: int, workers: int, threads: int) -> list[str]:
    """Return the command of gunicorn with threads: what a Django project is mostly served by."""
    shape = ["--worker-class", "gthread", "--workers", str(workers), "--threads", str(threads)]
    return [sys.executable, "-m", "gunicorn", APPLICATION, "--bind", f"{HOST}:{port}", *shape]


def gevent(port: int, workers: int, threads: int) -> list[str]:
    """Return the command of gunicorn with coroutines; as many connections as it is sent."""
    shape = ["--worker-class", "gevent", "--workers", str(workers)]
    return [sys.executable, "-m", "gunicorn", APPLICATION, "--bind", f"{HOST}:{port}", *shape]


def waitress(port: int, workers: int, threads: int) -> list[str]:
    """Return the command of waitress, which has one process, with the threads of all workers."""
    where = f"--listen={HOST}:{port}"
    return [sys.executable, "-m", "waitress", where, f"--threads={workers * threads}", APPLICATION]


COMMANDS: Final[dict[str, Command]] = {
    "granian": server,
    "gunicorn gthread": gunicorn,
    "gunicorn gevent": gevent,
    "waitress": waitress,
}
MODULES: Final = {"gunicorn gthread": "gunicorn", "gunicorn gevent": "gevent", "waitress": "waitress"}


def missing(name: str) -> bool:
    """Return whether a server is not installed here."""
    return find_spec(MODULES.get(name, "granian")) is None


def measure(testbeds: dict[str, Testbed], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a record of each round, server and subject; a line of each is printed as it goes."""
    for subject in SUBJECTS:
        for testbed in testbeds.values():
            testbed.run(subject, buyers=BUYERS, seconds=0.8)
    for number in range(rounds):
        for name in random.sample(list(testbeds), len(testbeds)):
            for subject in SUBJECTS:
                figures = testbeds[name].run(subject, buyers=BUYERS, seconds=SECONDS)
                record = figures | {"round": number, "peer": name, "case": subject.name}
                print(_line(f"round {number + 1}  {name}", record), flush=True)
                yield record


def _line(label: str, record: dict[str, Any]) -> str:
    speed, web = record["answers_per_second"], record.get("web_cpu_us", 0) / 1000
    figures = f"{speed:>6.0f}/s  p99 {record.get('p99_ms', 0):>4.0f} ms  web {web:.2f} ms"
    faults = sum(record[fault] for fault in ("oversold", "unaccounted", "lost", "failed"))
    return f"{label:<28}{record['case']:<12}{figures}  load {os.getloadavg()[0]:.1f}  faults {faults}"


def summary(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a row of Markdown for each server: medians, and ratios to gunicorn's threads by round."""
    table = Table(records, "case")
    yield "| | empty × gthread | `combined` × gthread | web ms, empty | web ms, `combined` | its p99 ms |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name in table.peers():
        ratios = [
            table.ratio(name, subject.name, "answers_per_second", "gunicorn gthread") for subject in SUBJECTS
        ]
        costs = [table.figure(name, subject.name, "web_cpu_us") for subject in SUBJECTS]
        slowest = table.figure(name, COMBINED.name, "p99_ms")
        cells = [
            *map(str, ratios),
            *(f"{cost.median / 1000:.2f}" if cost else "–" for cost in costs),
            f"{slowest.median:.0f}" if slowest else "–",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure those that are installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkout.web_servers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of all servers (default 5)")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), help="these servers")
    options = parser.parse_args(arguments)
    present = {name: COMMANDS[name] for name in options.only if not missing(name)}
    print("not installed:", ", ".join(sorted(filter(missing, COMMANDS))) or "none", flush=True)
    with open_servers() as servers, ExitStack() as stack:
        opened = partial(open_testbed, servers, 2, 16)
        testbeds = {name: stack.enter_context(opened(command)) for name, command in present.items()}
        records = list(measure(testbeds, options.rounds))
    print("\n".join(summary(records)))


if __name__ == "__main__":
    main()
