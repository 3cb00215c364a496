"""`python -m benchmarks.checkout.steps`: what each step of an order by `combined` costs web and PostgreSQL.

One process asks the served application (`config.wsgi`) for one order after the other, on a PostgreSQL of its
own, with a clock around each step: processor time of the thread, the medians of all orders. Then it sells
whole batches, and PostgreSQL tells how long it has taken for each statement, and by which plan.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from statistics import median
from typing import Any, Final
from unittest import mock

import psycopg
from django.utils.module_loading import import_string
from rich.console import Console
from rich.table import Table

from benchmarks.checkout.testbed import SETTINGS, open_servers
from benchmarks.console import open_console
from config.serve import SERVED
from tests.load.delivery import deliver
from tests.load.shop import PRODUCTION

SKU: Final = "steps"
WARM_UP: Final = 100
BATCH: Final = 14
"""Orders in a batch of 32 buyers at 2 workers."""

STEPS: Final = {
    "django.core.handlers.wsgi.WSGIHandler.__call__": "Django's handler, the request object",
    "django.core.handlers.base.BaseHandler.get_response": "middleware, calling the view",
    "config.wsgi.Handler.resolve_request": "address",
    "orders.http.api.require_small_json": "headers checked",
    "orders.http.api.limit_address": "rate limit by address",
    "orders.http.api.caller_of": "caller",
    "orders.http.operations.read_cart": "body read and checked",
    "orders.http.operations.limit_customer": "rate limit by customer",
    "orders.http.operations.client_key": "idempotency key",
    "orders.http.operations.place": "cart, receipt, sale",
    "inventory.group_commit.GroupCommit.submit": "place in the batch",
    "inventory.strategies.combined.Combined.sell_batch": "batch: transaction",
    "inventory.strategies.combined.take": "batch: units taken, but for the statement",
    "orders.selling.checkout.write_orders": "batch: orders written, but for the statement",
    "psycopg.Cursor.execute": "batch: statements",
    "orders.http.operations._created": "answer",
    "django.http.response.HttpResponseBase.close": "signals behind the request",
}
"""What is counted for each function by its path: its own time, without that of the others here."""


class Clock:
    """Processor time of this thread by step; an inner step's is not counted for the outer one."""

    def __init__(self) -> None:
        self.orders: dict[str, list[float]] = {step: [] for step in STEPS.values()}
        self._order: dict[str, int] = defaultdict(int)
        self._inner = [0]

    def around(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its time counted for `step`."""

        def timed(*arguments: Any, **options: Any) -> Any:
            self._inner.append(0)
            begun = time.thread_time_ns()
            try:
                return function(*arguments, **options)
            finally:
                spent = time.thread_time_ns() - begun
                self._order[step] += spent - self._inner.pop()
                self._inner[-1] += spent

        return timed

    def end_order(self) -> None:
        """Keep what this order has taken, in microseconds."""
        for step, times in self.orders.items():
            times.append(self._order[step] / 1000)
        self._order.clear()


@contextmanager
def clocked() -> Iterator[Clock]:
    """Have every step timed within the block."""
    clock = Clock()
    with ExitStack() as stack:
        for path, step in STEPS.items():
            owner, _, name = path.rpartition(".")
            where = _import(owner)
            stack.enter_context(mock.patch.object(where, name, clock.around(step, getattr(where, name))))
        yield clock


def _import(path: str) -> Any:
    """Return a module, or a class in one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        return import_string(path)


def order(application: Callable[..., Any], path: str = "/checkout/") -> None:
    """Place one order as the web server has it placed."""
    body = json.dumps({"lines": [{"sku": SKU, "quantity": 1}]}).encode()
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_HOST": "127.0.0.1",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
    }
    statuses: list[str] = []
    application(environ, lambda status, headers, error=None: statuses.append(status))
    if statuses != ["201 Created"]:
        raise RuntimeError(f"the order was answered by {statuses}; expected 201 Created")


def sell_batch(size: int) -> float:
    """Sell to so many buyers in one batch; return the microseconds of this thread."""
    from benchmarks.checkout.batches import ticket
    from inventory import Stock

    batch = [ticket(SKU) for _ in range(size)]
    begun = time.thread_time_ns()
    Stock("combined").strategy.sell_batch(batch)  # type: ignore[attr-defined]
    return (time.thread_time_ns() - begun) / 1000


@contextmanager
def server_messages() -> Iterator[list[str]]:
    """Have PostgreSQL tell how long it takes for each statement of Django's connection within the block."""
    from django.db import connection

    messages: list[str] = []
    connection.ensure_connection()
    raw: Any = connection.connection
    raw.add_notice_handler(lambda notice: messages.append(notice.message_primary))
    raw.execute("SET client_min_messages = log")
    raw.execute("SET log_min_duration_statement = 0")
    yield messages
    raw.execute("RESET log_min_duration_statement")
    raw.execute("RESET client_min_messages")


def statements(messages: Sequence[str]) -> dict[str, list[float]]:
    """Return milliseconds by what the server did for a statement, as in `execute WITH`.

    Example:
        >>> statements(["duration: 0.250 ms  execute _pg3_0: SELECT id FROM inventory_item"])
        {'execute SELECT': [0.25]}
    """
    found: dict[str, list[float]] = defaultdict(list)
    for message in messages:
        if match := re.match(r"duration: ([\d.]+) ms  (parse|bind|execute) \S+:\s+(WITH|SELECT)\b", message):
            found[f"{match[2]} {match[3]}"].append(float(match[1]))
    return dict(found)


def plan(size: int) -> list[str]:
    """Return PostgreSQL's plan of the statement that writes a batch, executed and rolled back."""
    from django.db import connection

    from inventory import Line
    from orders.selling.writing import Receipt, _lines, _orders, _statement

    receipts = [Receipt((Line(SKU, 1),), "combined", pay_within=900.0) for _ in range(size)]
    values = [json.dumps(_orders(receipts)), json.dumps(_lines(receipts))]
    connection.ensure_connection()
    raw: Any = connection.connection
    with raw.transaction(force_rollback=True), psycopg.ClientCursor(raw) as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, COSTS OFF) {_statement(keys=False, customers=False)}", values)
        return [row[0] for row in cursor.fetchall()]


def measure(orders: int) -> tuple[Clock, list[float], list[str]]:
    """Return the clock of so many orders, and what batches took here and in PostgreSQL."""
    from config.server import load_shop
    from config.wsgi import application

    load_shop()
    for _ in range(WARM_UP):
        order(application)
        sell_batch(BATCH)
    with clocked() as clock:
        for _ in range(orders):
            order(application)
            clock.end_order()
    batches = [sell_batch(BATCH) for _ in range(orders // 5)]
    with server_messages() as messages:
        for _ in range(orders // 5):
            sell_batch(BATCH)
    return clock, batches, messages


def show(console: Console, clock: Clock, batches: Sequence[float], messages: Sequence[str]) -> None:
    """Print the tables."""
    table = Table("step of an order, alone in its batch", "µs", "share")
    times = {step: median(values) for step, values in clock.orders.items()}
    for step, spent in times.items():
        table.add_row(step, f"{spent:.0f}", f"{spent / sum(times.values()):.0%}")
    console.print(table)
    whole = median(batches)
    console.print(f"a batch of {BATCH}: {whole:.0f} µs of the web, {whole / BATCH:.0f} per order")
    table = Table(f"PostgreSQL, batches of {BATCH}", "calls", "mean ms", "µs per order")
    for statement, values in statements(messages).items():
        mean = sum(values) / len(values)
        table.add_row(statement, str(len(values)), f"{mean:.3f}", f"{mean * 1000 / BATCH:.0f}")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkout.steps", description=__doc__)
    parser.add_argument("--orders", type=int, default=1000, help="that are timed (default 1000)")
    parser.add_argument("--plan", action="store_true", help="print PostgreSQL's plan of a batch, too")
    options = parser.parse_args(arguments)
    console = open_console()
    with open_servers() as servers, servers.connect() as database:
        deliver(database, {SKU: 1_000_000})
        os.environ.update(PRODUCTION | SERVED | SETTINGS | servers.environment)
        os.environ["CHECKOUT_STRATEGY"] = "combined"
        show(console, *measure(options.orders))
        if options.plan:
            console.print("\n".join(plan(BATCH)), highlight=False)


if __name__ == "__main__":
    main()
